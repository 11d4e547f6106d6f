"""Limits and times of one replica, for both its roles."""

from dataclasses import dataclass, field

from services.backup.core.settings import BackupSettings
from services.primary.core.settings import PrimarySettings


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Given by the broker's settings; the simulator draws its own."""

    primary: PrimarySettings = field(default_factory=PrimarySettings)
    backup: BackupSettings = field(default_factory=BackupSettings)
    promotion_retry_ms: int = 100
    """Wait after a promotion that failed, before the next attempt."""
    hand_over_wait_ms: int = 1000
    """How long the others leave a set to the broker that it was handed over to, which takes it within some 20 ms."""
    parting_ms: int = 500
    """How long a replica that handed its set over waits for its backups to hear of it: a round trip, usually."""
    regain_wait_ms: int = 3000
    """For so long a primary whose lease has ended, and whom not all members follow, leaves its key and the entry alone under the
    next one. Where etcd was set back somebody may have led since; whoever is there to know reaches etcd by then, and says so.
    """
    first_promotion_step_ms: int = 3000
    """A new set belongs to the first of its brokers; each further one waits so much longer before it steps in."""
