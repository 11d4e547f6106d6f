"""A set's lease key, as its replica sees it: whether the right to serve is this replica's now (DESIGN R6).

Law: the right is there only while the key is known to hang on the very lease that the process holds and renews. A key that was
put under an earlier lease ends with that one, and is put again under the present one before anything is said.
"""

from collections.abc import Callable

from lockstep.core.clock import Now
from lockstep.core.effects import MapRead, RestoreLeaseKey
from lockstep.core.ids import Incarnation, SetName
from lockstep.core.inputs import LeaseExtended, Verdict


class SetLease:
    """Lives as long as its replica, which drives it."""

    def __init__(self, set_name: SetName, retry_ms: int, next_request: Callable[[], int]) -> None:
        """`next_request` numbers what the replica asks of etcd."""
        self._set_name = set_name
        self._next_request = next_request
        self._retry_ms = retry_ms
        self.lease_id = 0
        """The process lease; 0: none."""
        self.serve_until_ms = 0
        """Until when it is valid."""
        self._held_since_ms: int | None = None
        """Since when the present lease is known to be held, once that was asked."""
        self._key_lease_id = 0
        """The lease under which the set's key is known to be this replica's; 0: none."""
        self._request = 0
        self._request_lease_id = 0
        self._not_before_ms = 0

    @property
    def is_key_held(self) -> bool:
        """Whether the key hangs on the lease that is held now."""
        return self.lease_id != 0 and self._key_lease_id == self.lease_id

    def is_valid(self, now: Now) -> bool:
        return self.lease_id != 0 and now.boottime_ms < self.serve_until_ms

    def held_ms(self, now: Now) -> int:
        """For how long the present lease has been held, since this was asked first; 0: there is none."""
        if not self.lease_id:
            return 0
        if self._held_since_ms is None:
            self._held_since_ms = now.boottime_ms
        return now.boottime_ms - self._held_since_ms

    def extended(self, given: LeaseExtended) -> bool:
        """The process lease was granted or renewed; answers whether it is another one than before."""
        is_other = given.lease_id != self.lease_id
        if is_other:
            self._held_since_ms = None
        self.lease_id, self.serve_until_ms = given.lease_id, given.serve_until_ms
        return is_other

    def lost(self) -> None:
        """The process lease is gone."""
        self.lease_id = self._key_lease_id = self.serve_until_ms = 0
        self._held_since_ms = None

    def put(self, lease_id: int) -> None:
        """A promotion has put the key under `lease_id`, which may be gone by now."""
        self._key_lease_id = lease_id

    def give_up(self) -> None:
        """The key is not this replica's any more."""
        self._key_lease_id = self._request = 0

    def restore(
        self, entry: MapRead, holder: Incarnation, now: Now, *, is_mark_compared: bool
    ) -> RestoreLeaseKey | None:
        """The effect that puts the key under the present lease, if it is time to ask for it."""
        if self.is_key_held or self._request or not self.lease_id or now.boottime_ms < self._not_before_ms:
            return None
        self._request, self._request_lease_id = self._next_request(), self.lease_id
        return RestoreLeaseKey(self._set_name, self._request, entry, holder, is_mark_compared)

    def answered(self, request: int, verdict: Verdict, now: Now) -> bool:
        """etcd's answer to `restore`; answers whether it was meant for that."""
        if not self._request or request != self._request:
            return False
        self._request = 0
        if verdict is Verdict.DONE and self._request_lease_id == self.lease_id:
            self._key_lease_id = self.lease_id
        else:
            self._not_before_ms = now.boottime_ms + self._retry_ms
        return True
