"""The process's one etcd lease (DESIGN R1, R6): when to grant and renew it, and until when it allows serving.

Law: validity is measured from the *sending* of the grant or renewal that succeeded, less a margin for clock rate, so this
process never believes longer than etcd does. A renewal is sent only if the cores ran (a tick is the proof) and the own store
answered since the last one: a process that cannot commit lets its lease end, so that another may be promoted (history 27).
A lease that is over by this process's own clock is given up and never renewed: etcd may have heard renewals whose answers
were lost, and would keep the set's key for a primary that may not serve.

    none --tick--> granting --granted--> held --gone--> none
    held --store silent past the lease, or over by the own clock--> (revoked) none
"""

from dataclasses import dataclass

from lockstep.core.clock import Now


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """etcd granted the lease that was asked for at `sent_ms` (CLOCK_BOOTTIME)."""

    lease_id: int
    ttl_ms: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """etcd answered the renewal sent at `sent_ms`."""

    lease_id: int
    ttl_ms: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """etcd does not know the lease any more."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class LeaseCallFailed:
    """A grant or renewal was not answered; it may be tried again."""


@dataclass(frozen=True, slots=True)
class StoreAnswered:
    """The own store answered something (a heartbeat or an append)."""


@dataclass(frozen=True, slots=True)
class LeaseTick:
    """Time passed, in the loop that runs the cores."""


LeaseInput = LeaseGranted | LeaseRenewed | LeaseGone | LeaseCallFailed | StoreAnswered | LeaseTick


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Ask etcd for a lease of `ttl_seconds`; answered by `LeaseGranted` or `LeaseCallFailed`."""

    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew; answered by `LeaseRenewed`, `LeaseGone` or `LeaseCallFailed`."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class RevokeLease:
    """Revoke: all its keys go. Not answered."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class ServeUntil:
    """Feed `LeaseExtended` to every replica."""

    lease_id: int
    serve_until_ms: int


@dataclass(frozen=True, slots=True)
class StopServing:
    """Feed `LeaseLost` to every replica, before anything else is performed."""


LeaseEffect = GrantLease | RenewLease | RevokeLease | ServeUntil | StopServing


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How long, and how carefully."""

    lease_seconds: int = 3
    """Longer than an etcd election (1.1-1.5 s); a hung primary is replaced after it."""
    margin_fraction: float = 0.01
    """Part of the lease taken off for clocks that run at different rates (1e-3 is a bad one)."""
    margin_ms: int = 50
    """Taken off besides: a socket write that the scheduler delays."""
    renew_every_ms: int = 500
    """How often a renewal is sent while all is well."""
    call_timeout_ms: int = 1000
    """A call without an answer for so long counts as failed."""


class LeaseKeeper:
    """Lives as long as the broker process; driven by its driver. One call to etcd is under way at most."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._lease_id = 0
        self._serve_until_ms = 0
        self._calling_since_ms: int | None = None
        self._sent_ms = 0
        self._store_answered_ms: int | None = None

    @property
    def lease_id(self) -> int:
        """The lease held, 0: none."""
        return self._lease_id

    def held(self, now: Now) -> int:
        """The lease under which anything may be asked of etcd; 0: there is none, or it is over by the own clock."""
        return self._lease_id if now.boottime_ms < self._serve_until_ms else 0

    def handle(self, given: LeaseInput, now: Now) -> list[LeaseEffect]:
        """Take one input; returns effects to perform in order."""
        match given:
            case LeaseGranted():
                self._calling_since_ms = None
                if self._lease_id:
                    # An attempt that was given up, or the one after it: keys are under the lease that is held.
                    return [RevokeLease(given.lease_id)] if given.lease_id != self._lease_id else []
                if now.boottime_ms >= self._ends_ms(given.sent_ms, given.ttl_ms):
                    return [RevokeLease(given.lease_id)]
                self._lease_id = given.lease_id
                return self._extended(given.sent_ms, given.ttl_ms)
            case LeaseRenewed():
                self._calling_since_ms = None
                if given.lease_id != self._lease_id:
                    return []
                if now.boottime_ms >= self._serve_until_ms:
                    # It left behind a sleep, perhaps: an etcd that was set back has the lease again, and not who led meanwhile.
                    return self._give_up()
                return self._extended(given.sent_ms, given.ttl_ms)
            case LeaseGone():
                self._calling_since_ms = None
                if given.lease_id != self._lease_id:
                    return []
                self._lease_id = self._serve_until_ms = 0
                return [StopServing()]
            case LeaseCallFailed():
                self._calling_since_ms = None
                return []
            case StoreAnswered():
                self._store_answered_ms = now.boottime_ms
                return []
            case LeaseTick():
                return self._tick(now.boottime_ms)

    def _ends_ms(self, sent_ms: int, ttl_ms: int) -> int:
        """Until when a grant or renewal sent at `sent_ms` allows serving."""
        return sent_ms + ttl_ms - int(ttl_ms * self._settings.margin_fraction) - self._settings.margin_ms

    def _extended(self, sent_ms: int, ttl_ms: int) -> list[LeaseEffect]:
        self._serve_until_ms = max(self._serve_until_ms, self._ends_ms(sent_ms, ttl_ms))
        return [ServeUntil(self._lease_id, self._serve_until_ms)]

    def _give_up(self) -> list[LeaseEffect]:
        gone, self._lease_id, self._serve_until_ms = self._lease_id, 0, 0
        return [StopServing(), RevokeLease(gone)]

    def _tick(self, now_ms: int) -> list[LeaseEffect]:
        settings = self._settings
        if self._lease_id and (now_ms >= self._serve_until_ms or self._is_store_silent(now_ms)):
            return self._give_up()
        if self._calling_since_ms is not None:
            if now_ms - self._calling_since_ms < settings.call_timeout_ms:
                return []
            self._calling_since_ms = None
        if not self._lease_id:
            if self._store_answered_ms is None or self._is_store_silent(now_ms):
                return []
            self._calling_since_ms = self._sent_ms = now_ms
            return [GrantLease(settings.lease_seconds)]
        if now_ms - self._sent_ms < settings.renew_every_ms:
            return []
        if self._store_answered_ms is None or self._store_answered_ms <= self._sent_ms:
            return []
        self._calling_since_ms = self._sent_ms = now_ms
        return [RenewLease(self._lease_id)]

    def _is_store_silent(self, now_ms: int) -> bool:
        """Whether the own store answered nothing for as long as a lease lasts."""
        silent_since_ms = self._store_answered_ms if self._store_answered_ms is not None else self._sent_ms
        return now_ms - silent_since_ms > self._settings.lease_seconds * 1000
