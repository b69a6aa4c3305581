"""A job on several machines, a training or a user's script, as its launcher sees it.

agreement.py         what the trainers of a script do together
attempt.py           one attempt after another, from connecting to the end
connect.py           how the machines' agents are started
encoder_job.py       a training with a graph encoder, as a script of workers
fleet.py             the agents, told and heard together
jobfile.py           how agents find their launcher
launch.py            a training, from options to its end
manual.py            agents that come by themselves
plan.py              what every process of a job is told
saved.py             which checkpoints all machines have
script_attempt.py    one attempt at a script
script_plan.py       what the processes of a script are told
start_rows.py        which machine gets which of the rows that a training starts at
training_attempt.py  one attempt at a training
training_plan.py     what the processes of a training are told
"""
