"""`lockstep demo`: a cluster, real data, a killed primary, and an account of every message."""

from lockstep.cli.demo.command import demo

__all__ = ["demo"]
