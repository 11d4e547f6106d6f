"""Serving rights: until when this process may speak to clients for a resource set, checked right before the socket write.

Law: an answer leaves only while the lease under which it was made has never ended since (DESIGN R6, history 10e). A renewal
in time prolongs the right; a gap, a lost lease or a dropped lease key ends it, and no later lease revives it.
"""

from lockstep.core.ids import SetName


class ServingRight:
    """One unbroken time of serving; what waits to be sent holds on to the right under which it was made."""

    __slots__ = ("until_ms",)

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        """CLOCK_BOOTTIME; 0: ended."""


class ServingRights:
    """The rights of all sets; lives as long as the process, told by the lease's driver and by the effects of replicas."""

    def __init__(self) -> None:
        self._lease_until_ms = 0
        self._rights: dict[SetName, ServingRight] = {}

    def of(self, set_name: SetName) -> ServingRight:
        """The right under which the set speaks now."""
        right = self._rights.get(set_name)
        if right is None:
            right = self._rights[set_name] = ServingRight(self._lease_until_ms)
        return right

    def extend(self, until_ms: int, now_ms: int) -> None:
        """The process lease was renewed; a right that ended meanwhile is replaced, not prolonged."""
        self._lease_until_ms = max(self._lease_until_ms, until_ms)
        for set_name, right in self._rights.items():
            if now_ms < right.until_ms:
                right.until_ms = max(right.until_ms, until_ms)
            else:
                self._rights[set_name] = ServingRight(until_ms)

    def end(self, set_name: SetName) -> None:
        """The set's lease key is about to be given up: nothing that waits may leave."""
        right = self._rights.pop(set_name, None)
        if right is not None:
            right.until_ms = 0

    def end_all(self) -> None:
        """The process lease is lost."""
        self._lease_until_ms = 0
        for set_name in list(self._rights):
            self.end(set_name)
