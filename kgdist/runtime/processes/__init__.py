"""Processes on this machine, and words with them.

child.py       a process of ours and its owner: the two ends of their pipes
control.py     the shared numbers between workers
forkserver.py  how processes are started: a Python, and one that imports once and forks the others
pipes.py       waiting for pipes; bytes to lines, lines to JSON or text
worker.py      what the fork server and its workers run
workers.py     crews of processes or threads, watched
"""
