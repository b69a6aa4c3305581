"""Partitions sent to machines.

receive.py  what the machines run to take them in
send.py     the sending: what is missing, checked and continued
"""
