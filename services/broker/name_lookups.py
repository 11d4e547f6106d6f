"""Name lookups: which resource set has a name, as etcd says now; asked for together.

Law: an answer is of a read that began after it was asked for. What is asked for while a read is under way waits for the next,
which carries up to `OPERATIONS_MAX` names: so a burst of new names costs etcd and this process one call for each of that many,
and the lease of the process never waits behind thousands of them.
"""

import asyncio
import logging

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.etcd import OPERATIONS_MAX, EtcdClient
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.process import spawn

_log = logging.getLogger("lockstep.broker")

WAITING_MAX = 4_096
"""Names that wait for an answer; whoever asks beyond them is told to come again."""


class NameLookups:
    """Lives as long as the process; one read of etcd is under way at a time."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self._waiting: dict[str, asyncio.Future[bytes | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._refusals = LimitLog(_log)

    async def value(self, key: str) -> bytes | None:
        """The value of a key of the directory; None: there is none. Raises `Rejected` UNAVAILABLE: etcd does not answer, or too
        many names are being asked for."""
        answer = self._waiting.get(key)
        if answer is None:
            if len(self._waiting) >= WAITING_MAX:
                text = f"{len(self._waiting)} names are being looked up: ask again"
                self._refusals.refused("name_lookups_max", text)
                raise Rejected(ErrorCode.UNAVAILABLE, text)
            answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            self._reading = spawn(self._read(), "lookups of names")
        # Shielded: others may wait for the same name.
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Whoever still waits is told that nobody looks."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        for answer in self._waiting.values():
            answer.cancel()

    async def _read(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[:OPERATIONS_MAX]
            answers = {key: self._waiting.pop(key) for key in keys}
            try:
                found = await self._etcd.get_many(keys)
            except LockstepError as error:
                text = f"names={len(keys)} error={error}"
                self._refusals.seldom("names_not_looked_up", text, level=logging.INFO)
                for answer in answers.values():
                    _fail(answer, error)
            except BaseException:
                for answer in answers.values():
                    answer.cancel()
                raise
            else:
                for key, answer in answers.items():
                    if not answer.done():
                        answer.set_result(found[key].value if key in found else None)


def _fail(answer: "asyncio.Future[bytes | None]", error: LockstepError) -> None:
    if not answer.done():
        answer.set_exception(Rejected(ErrorCode.UNAVAILABLE, error.message, **error.details))
        answer.exception()  # It is looked at: whoever asked may be gone.
