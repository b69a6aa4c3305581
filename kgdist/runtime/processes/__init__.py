"""Processes on this machine, and words with them.

child.py        a process of ours and its owner: the two ends of their pipes
chunks.py       processes that transform attributes, chunk by chunk
control.py      the shared numbers between workers
forking.py      the loop of a process that forks others
forkserver.py   how processes are started: a Python, and one that imports once and forks the others
keeper.py       what starts a user's commands, and leaves none of them
pipes.py        waiting for pipes; bytes to lines, lines to JSON or text
script_line.py  the line of such a process, as it sees it itself
scripted.py     a process of a user's command, and its line
worker.py       what the fork server and its workers run
workers.py      crews of processes or threads, watched
"""
