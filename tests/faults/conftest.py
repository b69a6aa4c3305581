"""Fixtures of these tests: a real sshd, and networks of machines on this host."""

from tests.faults.netns import make_network
from tests.faults.sshd import home, make_sshd, sshd

__all__ = ["home", "make_network", "make_sshd", "sshd"]
