"""Which cases and hops are counted."""

from bench.cases import COSTS

HOPS = ("client", "primary", "backup", "store")
COUNTED = tuple(case for case in COSTS if case.operation in ("publish", "move"))
"""What clients of the chain can do."""
