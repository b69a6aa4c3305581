"""Fixtures of these tests: a real sshd."""

from tests.faults.sshd import home, make_sshd, sshd

__all__ = ["home", "make_sshd", "sshd"]
