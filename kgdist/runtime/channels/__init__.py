"""Lines of JSON with processes on any machine.

channel.py      what all channels are, and the one to a process here
known_hosts.py  which host keys are trusted
ssh.py          the one over SSH
ssh_config.py   how a host is reached
"""
