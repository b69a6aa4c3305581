"""Partitions and scripts sent to machines.

receive.py       what the machines run to take them in
script_files.py  what a script needs on its machines
send.py          the sending: what is missing, checked and continued
"""
