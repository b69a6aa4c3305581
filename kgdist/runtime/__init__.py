"""A training as processes, on one machine or many.

agent.py        the agent of one machine
attempt.py      one attempt at it, from connecting to the end
bell.py         what wakes it
beside.py       what it reads and writes beside its loop
channel.py      a process on a machine, and lines of JSON with it
child.py        a process of ours, its job and its words
cluster.py      the machines of ip_config.txt
connect.py      how their agents are started
control.py      the shared numbers between them
copy.py         partitions sent to machines
enlist.py       what they do then
fleet.py        the agents, told and heard together
forking.py      what that process runs
forkserver.py   the process that imports once and forks those
insist.py       saving what would be lost otherwise, again and again until there is room
interpreter.py  how a Python of ours is started
interrupt.py    what Ctrl-C, SIGTERM and SIGHUP mean
job.py          what a run consists of, from its options
jobfile.py      how they find their launcher
kept.py         what a training on one machine has on disk, and how the rest gets there
known_hosts.py  which host keys are trusted
launch.py       a whole training on several machines
lines.py        bytes to lines, lines to JSON or text
local.py        a whole training on this machine
manual.py       agents that come by themselves
memory.py       how much memory a run takes
numa.py         which cores a worker runs on
observe.py      what a run shows while it trains
owner.py        the process that started this one
plan.py         what every process of a job on several machines is told
preflight.py    what a machine must have
processes.py    workers as processes
ready.py        what the user has set, to the options of a training
receive.py      the other end of that
refuse.py       what is refused before anything is written
roles.py        what a server does, and a trainer
saved.py        which checkpoints all machines have
shard.py        a machine's rows
silence.py      telling of a file system that does not answer
site.py         a machine's servers and trainers
ssh.py          the same over SSH
ssh_config.py   how a host is reached
start.py        where rows and steps start: at random, another run, a checkpoint
threads.py      workers as threads
trial.py        a training that is one trial of a search
warm.py         kernels compiled before the workers start
worker.py       what they run
workers.py      the workers, watched
"""
