"""Limits and times of callers without a session stream (`transactions.proto`), with the reason for each default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Given by the broker; tests draw smaller ones."""

    sessions_max: int = 1000
    """Sessions of callers on one broker: each is a stream inside the process, and a session of the set."""
    session_timeout_ms: int = 60_000
    """How long a session lives without a call, unless its caller says otherwise: long enough for work on what was acquired."""
    session_timeout_ms_max: int = 300_000
    """As the primary's own limit."""
    transaction_timeout_ms: int = 60_000
    """Of a transaction whose caller does not say: nobody's stream ends with it, so it must end by itself."""
    transaction_timeout_ms_max: int = 3_600_000
    """What a forgotten transaction may hold on to at most."""
    transactions_max: int = 10_000
    """Open transactions of callers on one broker; as the primary's limit for one set."""
    answer_seconds: float = 8.0
    """How long a call waits for its set; below what a forwarding broker waits for this one."""
    wait_ms_max: int = 5000
    """Longest wait of one Acquire, for the same reason."""
    acquired_max: int = 1000
    """Messages of one Acquire; those beyond it are for the next one."""
    acquired_bytes_max: int = 8 * 1024 * 1024
    """Bytes of one Acquire behind which no further message is taken: a few of the largest writes."""
    unanswered_max: int = 1000
    """Commands of one session under way: below the answers that a set keeps for it."""
