"""Roll calls: before anything is concluded from what etcd lacks, everybody whose disk may remember more is asked (DESIGN R1, T3).

Law: an answer counts where the caller's own stamp stands, which it put there a moment ago, and no witness is silent. So all of
them have lived since the call, or were compared since then, with this very etcd.
"""

from lockstep.core.stamps import Stamp, Stamps, StampWriter

CALLER_CHARACTERS = 13
"""Of a UUID that name a caller well enough."""
VALID_MS = 10_000
"""How long a call is believed. Whoever concludes much, as after a crash, calls once for all of it."""


class RollCall:
    """Lives as long as the process that concludes something; driven by whoever reads for it."""

    def __init__(self, caller: str) -> None:
        """`caller` names this process among writers of stamps."""
        self._writer = StampWriter(caller)
        self._stamp: Stamp | None = None
        self._called_ms = 0

    def is_answered(self, stamps: Stamps, now_ms: int) -> bool:
        """Whether these stamps, read at `now_ms` or later, say that nobody remembers more. Without any witness nobody would."""
        if not stamps.witnesses:
            return True
        is_valid = self._stamp is not None and now_ms - self._called_ms <= VALID_MS
        return is_valid and not stamps.lacks(self._stamp) and not stamps.silent

    def call(self, stamps: Stamps, revision: int, now_ms: int) -> tuple[Stamp, Stamps] | None:
        """(own stamp, what is to be written in the place of these stamps, read at `revision` of etcd). None: it is answered, or
        somebody who was called has not answered, and a second call would not help.
        """
        if self.is_answered(stamps, now_ms) or stamps.silent:
            return None
        stamp = self._writer.next(stamps, revision)
        return stamp, stamps.called().stamped(stamp)

    def called(self, stamp: Stamp, sent_ms: int) -> None:
        """The call stands in etcd."""
        self._stamp, self._called_ms = stamp, sent_ms

    def in_doubt(self) -> None:
        """The answer of etcd was lost: the last call may stand there, or not."""
        self._writer.in_doubt()
