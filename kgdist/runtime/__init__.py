"""A training as processes, on one machine or many; a user's script on many.

brought.py    rows that a training starts at instead of random ones
checks.py     what is refused before anything is written, here and on each machine
course.py     what happens while all stand still: validation, checkpoint, the end
doctor.py     whether this machine has what kgdist needs
estimate.py   what a training against all entities will take
gnn.py        a training by workers that have a partition each, side by side
interrupt.py  what Ctrl-C, SIGTERM and SIGHUP mean
ip_config.py  the machines of ip_config.txt
job.py        what a run consists of, from its options
local.py      a whole training on this machine
observe.py    what a run shows while it trains
ports.py      ports of this machine
protocol.py   what launcher and agents say to each other: the table
ray_agents.py   a cluster of Ray as machines
ray_chunks.py   chunks of attributes as tasks of Ray
ray_session.py  Ray, from its beginning to its end
ray_train.py    Ray Train as what starts workers
share.py      what one of such workers trains on
solo.py       the link between a loop and the session it is in
start.py      where rows and steps start: at random, at what is brought, a checkpoint
storage.py    what machines that come and go share: partitions and checkpoints
told.py       the options of a training, from a command line, from Python, from its run, from the first of its workers
"""
