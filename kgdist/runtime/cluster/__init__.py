"""A training on several machines, as its launcher sees it.

attempt.py    one attempt, from connecting to the end
connect.py    how the machines' agents are started
fleet.py      the agents, told and heard together
jobfile.py    how agents find their launcher
launch.py     all of it: attempts until one comes to its end
manual.py     agents that come by themselves
plan.py       what every process of a job on several machines is told
saved.py      which checkpoints all machines have
"""
