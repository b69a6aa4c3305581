"""Run folders and checkpoints.

checkpoint.py  numbered checkpoints with a manifest, verified when read
opened.py      a run opened to ask it
pieces.py      large arrays written, verified and read by several threads
rundir.py      run folders, also those of DGL-KE
"""
