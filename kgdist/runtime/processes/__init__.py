"""Processes on this machine, and words with them.

bell.py         what wakes a loop that waits
child.py        a process of ours, its job and its words
control.py      the shared numbers between workers
forking.py      what the fork server runs
forkserver.py   the process that imports once and forks the others
interpreter.py  how a Python of ours is started
lines.py        bytes to lines, lines to JSON or text
owner.py        the process that started this one
worker.py       what workers run
workers.py      crews of processes or threads, watched
"""
