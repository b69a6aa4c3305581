"""Run folders and checkpoints.

checkpoint.py  numbered checkpoints with a manifest, verified when read
pieces.py      large arrays written, verified and read by several threads
rundir.py      run folders, also those of DGL-KE
"""
