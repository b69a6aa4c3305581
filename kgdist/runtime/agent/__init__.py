"""One machine's part of a job on several: a training, or a user's script.

agent.py          its process: commands in, events out
beside.py         what it reads and writes beside its loop
enlist.py         how an agent that was started by hand finds its launcher
roles.py          what a server of a training does, and a trainer
script_site.py    a machine's servers and trainers of a script
shard.py          a machine's rows
site.py           what runs on a machine, whatever the job is
training_site.py  a machine's servers and trainers
"""
