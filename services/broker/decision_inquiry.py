"""Looks into the decision log for prepared branches that ask (DESIGN T4), and for sets that are about to forget outcomes (T5).

Law: what a branch hears is one read at one revision. A question that is not answered is asked again by the primary.
"""

import asyncio
from collections.abc import Callable

from lockstep.core.branch_names import set_participant
from lockstep.core.effects import AskDecision, ListParticipants
from lockstep.core.inputs import DecisionHeard, ParticipantsListed
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.process import spawn


class DecisionInquiry:
    """Lives as long as the process; its core bounds how many questions are under way."""

    def __init__(
        self, reader: DecisionLogReader, feed: Callable[[DecisionHeard | ParticipantsListed], None]
    ) -> None:
        self._reader = reader
        self._feed = feed
        self._tasks: set[asyncio.Task[None]] = set()

    def perform(self, effect: AskDecision | ListParticipants) -> None:
        call = self._ask(effect) if isinstance(effect, AskDecision) else self._list(effect)
        task = spawn(call, f"decision log, for {effect.set_name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, effect: AskDecision) -> None:
        view = await self._reader.read(effect.global_id)
        self._feed(DecisionHeard(effect.set_name, effect.request, effect.transaction, view))

    async def _list(self, effect: ListParticipants) -> None:
        found = await self._reader.list(set_participant(effect.set_name), effect.up_to_ms)
        self._feed(ParticipantsListed(effect.set_name, effect.request, found))
