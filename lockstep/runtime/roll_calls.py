"""Roll calls in etcd (DESIGN R1, T3): how a call is written, and who is told that somebody does not answer."""

import asyncio
import logging
from collections.abc import Callable

from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import LogView
from lockstep.core.roll_call import RollCall
from lockstep.core.stamps import Stamps
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import EtcdClient, EtcdInDoubt, EtcdRejected, Put, as_read

TOLD_EVERY_MS = 60_000

_log = logging.getLogger("lockstep.roll_call")


class RollCalls:
    """Lives as long as the process that concludes something from what etcd lacks."""

    def __init__(
        self, etcd: EtcdClient, cluster: str, roll_call: RollCall, now_ms: Callable[[], int] = boottime_ms
    ) -> None:
        self._etcd = etcd
        self._key = Keys(cluster).stamps
        self._roll_call = roll_call
        self._now_ms = now_ms
        self._told_ms = -TOLD_EVERY_MS

    async def call(self, view: LogView) -> None:
        """Calls all witnesses, if that helps, while the stamps are as the view has them. What comes of it the next read says.
        Never raises for what etcd does.
        """
        sent_ms = self._now_ms()
        asked = self._roll_call.call(view.stamps, view.revision, sent_ms)
        if asked is None:
            self._tell(view.stamps, sent_ms)
            return
        stamp, called = asked
        is_as_read = as_read(self._key, view.stamps_value, view.stamps_revision)
        try:
            result = await self._etcd.transact(is_as_read, [Put(self._key, called.encode())])
        except EtcdRejected as error:
            _log.info("event=roll_not_called %s", error.message)
            return
        except EtcdInDoubt as error:
            self._roll_call.in_doubt()
            _log.info("event=roll_call_in_doubt %s", error.message)
            return
        except asyncio.CancelledError:
            self._roll_call.in_doubt()
            raise
        if result.succeeded:
            self._roll_call.called(stamp, sent_ms)

    def _tell(self, stamps: Stamps, now_ms: int) -> None:
        if stamps.silent and now_ms - self._told_ms >= TOLD_EVERY_MS:
            self._told_ms = now_ms
            _log.warning(
                "event=roll_call_unanswered silent=%s: its disk may remember a decision that etcd has lost, so no abort is "
                "presumed, and nothing decided late; start it, with an empty disk if its own is lost, or end prepared "
                "branches by hand",
                ",".join(stamps.silent[:20]),
            )
