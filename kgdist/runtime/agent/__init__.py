"""One machine's part of a training on several.

agent.py      its process: commands in, events out
beside.py     what it reads and writes beside its loop
enlist.py     how an agent that was started by hand finds its launcher
roles.py      what a server does, and a trainer
shard.py      a machine's rows
site.py       a machine's servers and trainers
"""
