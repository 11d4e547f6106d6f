"""The names of all metrics of Lockstep: what each is, its labels, and which service shows it.

Law: nothing is shown that does not stand here, and one thing has one name. Dashboards and alert rules are checked against this.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


BROKER, STORE, COORDINATOR, PROXY = "broker", "store", "coordinator", "proxy"


@dataclass(frozen=True, slots=True)
class MetricName:
    """One metric. Counters end in `_total`; a unit ends the name of what has one."""

    name: str
    kind: Kind
    help: str
    services: tuple[str, ...]
    labels: tuple[str, ...] = ()


_SET = ("set",)
_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_ALL = (
    # Whatever has an event loop.
    MetricName(
        "lockstep_long_steps_total",
        _COUNTER,
        "Steps of the event loop that took more than 50 ms of its thread's processor time.",
        (BROKER, STORE, COORDINATOR, PROXY),
    ),
    MetricName(
        "lockstep_longest_step_seconds",
        _GAUGE,
        "Processor time of the longest of them in the last five minutes; 0: there was none.",
        (BROKER, STORE, COORDINATOR, PROXY),
    ),
    # A broker process.
    MetricName("lockstep_inputs_total", _COUNTER, "Inputs handled by cores.", (BROKER,)),
    MetricName("lockstep_drains_total", _COUNTER, "Batches in which they were fed.", (BROKER,)),
    MetricName("lockstep_core_busy_seconds_total", _COUNTER, "Time spent in cores.", (BROKER,)),
    MetricName("lockstep_tick_lag_seconds", _GAUGE, "How late the last tick was.", (BROKER,)),
    MetricName("lockstep_client_streams", _GAUGE, "Open streams of clients.", (BROKER,)),
    MetricName("lockstep_backup_waiting_bytes", _GAUGE, "What waits to be sent to backups.", (BROKER,)),
    MetricName(
        "lockstep_lease_left_seconds", _GAUGE, "For how long the lease still allows serving.", (BROKER,)
    ),
    MetricName(
        "lockstep_lost_sets",
        _GAUGE,
        "Resource sets that were on its disk when it started and that etcd does not have: alarm on it.",
        (BROKER,),
    ),
    MetricName(
        "lockstep_silent_witnesses",
        _GAUGE,
        "Brokers that are not back since all were down: no abort is presumed, and nothing is decided late; alarm on it.",
        (BROKER,),
    ),
    # A replica, whatever its role.
    MetricName("lockstep_epoch", _GAUGE, "Epoch of the replica.", (BROKER,), _SET),
    MetricName("lockstep_commit_index", _GAUGE, "Highest index known to be committed.", (BROKER,), _SET),
    MetricName("lockstep_log_end", _GAUGE, "Last index of the replica's log.", (BROKER,), _SET),
    MetricName("lockstep_is_primary", _GAUGE, "1 while it serves as primary.", (BROKER,), _SET),
    MetricName("lockstep_is_in_sync", _GAUGE, "1 while it is a backup in sync.", (BROKER,), _SET),
    MetricName(
        "lockstep_tx_total",
        _COUNTER,
        "Transactions that ended in this primary's log; failover: open when a new epoch began, and rolled back.",
        (BROKER,),
        ("set", "outcome"),
    ),
    MetricName(
        "lockstep_messages_enqueued_total", _COUNTER, "Messages that became visible.", (BROKER,), _SET
    ),
    MetricName("lockstep_messages_dequeued_total", _COUNTER, "Messages that left.", (BROKER,), _SET),
    MetricName(
        "lockstep_dead_letters_lost_total",
        _COUNTER,
        "Messages that left a queue with a dead-letter target and came to none: not in the set, full, or too costly to find.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_dead_letters_limited_total",
        _COUNTER,
        "Messages that left a queue for message_queues_max targets, or for those found in time, and not for all that it has.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_session_resumes_total", _COUNTER, "Sessions that came back on a stream.", (BROKER,), _SET
    ),
    MetricName(
        "lockstep_fenced_requests_total",
        _COUNTER,
        "Requests refused because they are of a lower epoch, or of a process that lost the set.",
        (BROKER, STORE),
        _SET,
    ),
    MetricName(
        "lockstep_commit_seconds",
        _HISTOGRAM,
        "Of a frame of records: from the append of the oldest to the commit index behind it; in whole milliseconds.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_failover_seconds",
        _HISTOGRAM,
        "From the last word of the previous primary that was heard here until this one served.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_set_faults_total",
        _COUNTER,
        "Faults that ended the set's part of this broker, which began anew: alarm on it.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_disk_unusable",
        _GAUGE,
        "1: the bytes of the set's disk are whole, and this version cannot use them: alarm on it.",
        (BROKER,),
        _SET,
    ),
    # A resource set, told by its primary while it serves.
    MetricName(
        "lockstep_in_sync_size",
        _GAUGE,
        "Members of the in-sync set, as etcd has it: no swap takes it below the minimum.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_in_sync_reachable",
        _GAUGE,
        "Those of them that have a stream at their primary, and itself.",
        (BROKER,),
        _SET,
    ),
    MetricName("lockstep_min_in_sync", _GAUGE, "Fewer than these complete nothing.", (BROKER,), _SET),
    MetricName("lockstep_set_brokers", _GAUGE, "Brokers that the set was given.", (BROKER,), _SET),
    MetricName(
        "lockstep_commit_waiting_seconds",
        _GAUGE,
        "Age of the oldest record that is appended and not committed; 0: there is none.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_replication_lag_entries",
        _GAUGE,
        "Log entries that a backup has not acknowledged as durable.",
        (BROKER,),
        ("set", "backup"),
    ),
    MetricName("lockstep_queues", _GAUGE, "Queues.", (BROKER,), _SET),
    MetricName("lockstep_messages", _GAUGE, "Messages in all queues.", (BROKER,), _SET),
    MetricName(
        "lockstep_queue_messages",
        _GAUGE,
        "Messages in a queue; of the deepest queues of a set.",
        (BROKER,),
        ("set", "queue"),
    ),
    MetricName("lockstep_sessions", _GAUGE, "Sessions of clients.", (BROKER,), _SET),
    MetricName(
        "lockstep_tx_open",
        _GAUGE,
        "Transactions that are not prepared; of names given out in advance, those in use.",
        (BROKER,),
        _SET,
    ),
    MetricName("lockstep_tx_prepared", _GAUGE, "Branches that wait for their coordinator.", (BROKER,), _SET),
    MetricName(
        "lockstep_tx_queue_bytes", _GAUGE, "Content of tx-queues that are not released.", (BROKER,), _SET
    ),
    MetricName(
        "lockstep_tx_in_doubt_oldest_seconds",
        _GAUGE,
        "Since when the oldest prepared branch waits: alarm on it.",
        (BROKER,),
        _SET,
    ),
    MetricName(
        "lockstep_tx_in_doubt_overdue",
        _GAUGE,
        "Branches that are prepared for longer than --in-doubt-ms.",
        (BROKER,),
        _SET,
    ),
    # Readers of committed events.
    MetricName(
        "lockstep_event_lag_entries",
        _GAUGE,
        "Log entries that a group of readers of committed events has not acknowledged.",
        (BROKER,),
        ("set", "group"),
    ),
    MetricName(
        "lockstep_events_held_seconds",
        _GAUGE,
        "How long ago a transaction committed that holds plans back, as a sibling has no outcome: alarm on it.",
        (BROKER,),
        _SET,
    ),
    # A store.
    MetricName(
        "lockstep_journal_fsync_seconds",
        _HISTOGRAM,
        "Groups written to the journal and synced.",
        (STORE,),
        _SET,
    ),
    MetricName("lockstep_store_written_bytes_total", _COUNTER, "Bytes of groups.", (STORE,)),
    MetricName("lockstep_store_log_end", _GAUGE, "Highest durable index.", (STORE,), _SET),
    MetricName("lockstep_store_unconsolidated", _GAUGE, "Log end less snapshot index.", (STORE,), _SET),
    MetricName(
        "lockstep_store_journal_bytes", _GAUGE, "Bytes of the journal's segment files.", (STORE,), _SET
    ),
    MetricName(
        "lockstep_store_owed_bytes",
        _GAUGE,
        "Bytes of segment files kept for readers of events.",
        (STORE,),
        _SET,
    ),
    MetricName("lockstep_store_lowest_index", _GAUGE, "Lowest index that readers can have.", (STORE,), _SET),
    MetricName("lockstep_store_damaged", _GAUGE, "1: the set is damaged.", (STORE,), _SET),
    MetricName("lockstep_store_stalled_seconds", _GAUGE, "Age of the journal's job.", (STORE,), _SET),
    # A coordinator.
    MetricName(
        "lockstep_distributed_in_hand", _GAUGE, "Transactions that are being ended here.", (COORDINATOR,)
    ),
    MetricName("lockstep_distributed_open", _GAUGE, "Transactions that were begun here.", (COORDINATOR,)),
    MetricName(
        "lockstep_distributed_oldest_seconds",
        _GAUGE,
        "Age of the oldest in hand, since it was begun.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_in_doubt",
        _GAUGE,
        "Transactions that are not over, in the log or here.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_in_doubt_oldest_seconds",
        _GAUGE,
        "Age of the oldest of them: alarm on it.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_in_doubt_overdue",
        _GAUGE,
        "Those that are not over for longer than --in-doubt-ms.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_hazards_total",
        _COUNTER,
        "Branches that ended otherwise than decided.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_holds_total",
        _COUNTER,
        "Times that commits were held for readers of committed events.",
        (COORDINATOR,),
    ),
    MetricName(
        "lockstep_distributed_held_seconds_total",
        _COUNTER,
        "How long commits were held for readers of committed events, in all.",
        (COORDINATOR,),
    ),
    MetricName("lockstep_distributed_steps_total", _COUNTER, "Steps reached.", (COORDINATOR,), ("step",)),
    # A proxy worker.
    MetricName("lockstep_proxy_connections", _GAUGE, "AMQP connections.", (PROXY,)),
    MetricName("lockstep_proxy_logins_total", _COUNTER, "Connections that got past SASL.", (PROXY,)),
    MetricName("lockstep_proxy_links", _GAUGE, "Attached links.", (PROXY,)),
    MetricName("lockstep_proxy_open_transactions", _GAUGE, "Declared and not discharged.", (PROXY,)),
    MetricName(
        "lockstep_proxy_transactions_total",
        _COUNTER,
        "Transactions that ended; done: committed, or prepared; refused: rolled back.",
        (PROXY,),
        ("end",),
    ),
    MetricName(
        "lockstep_proxy_messages_in_total",
        _COUNTER,
        "Messages of clients; done: the brokers have them, refused: they have not.",
        (PROXY,),
        ("end",),
    ),
    MetricName("lockstep_proxy_messages_out_total", _COUNTER, "Messages to clients.", (PROXY,)),
)

NAMES = {one.name: one for one in _ALL}
"""All of them, by name."""
assert len(NAMES) == len(_ALL), "a name stands here once"
