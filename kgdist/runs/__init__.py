"""Run folders and checkpoints.

checkpoint.py  numbered checkpoints with a manifest, verified when read
grown.py       a run that has learned an encoder, and entities that it has never seen: a new run
newcomers.py   what files tell of such entities: the way of kgdist-encode
opened.py      a run opened to ask it
pieces.py      large arrays written, verified and read by several threads
rundir.py      run folders, also those of DGL-KE
"""
