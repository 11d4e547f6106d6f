"""Limits and times of the backup role, with the reason for each default."""

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.core.pieces import PIECE_COST


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Given by the broker's settings; the simulator draws its own."""

    heartbeat_ms: int = 250
    """A silent subscription says this often that it lives (DESIGN 9: 200-300 ms)."""
    heartbeat_misses: int = 3
    """Heartbeats missing after which the primary's stream counts as lost."""
    subscribe_patience_ms_max: int = 60_000
    """Longest wait for the answer to a subscription: it doubles from the heartbeat's misses on, for big snapshots take time."""
    store_patience_ms: int = 1500
    """The own store owes an answer for so long: whoever waits for this disk must not wait as long as it hangs."""
    memory_patience_ms: int = 5000
    """The own store refuses for so long: a memory that cannot stand must not keep restarted members from standing (R5)."""
    retry_ms: int = 100
    """Wait between attempts to subscribe or to open the store: failover is a matter of tenths of a second."""
    reserve_bytes: int = 64 * 1024 * 1024
    """Room on the own disk below which open transactions are refused: what is prepared already must still find its place."""
    retained_bytes_max: int = 64 * 1024 * 1024
    """Applied frames kept in memory for backups to come, should this replica be promoted."""
    resident_body_bytes_max: int = 256 * 1024 * 1024
    """Content of messages in memory, in either role; beyond it bodies deep in their queues are left to the store. Some seconds of
    traffic at full speed, so that queues that are being worked on never need it, and four sets still fit a small machine.
    """
    piece_cost: int = PIECE_COST
    """Of what is loaded, laid over or applied in one go, in microseconds, about: others have their turn in between."""
    between: Callable[[], object] | None = None
    """Called between transactions that are applied behind their commit, for which nobody waits: a process lets others run."""
