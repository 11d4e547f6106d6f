"""What resource sets answer that are asked at the same time: one without a primary keeps nobody from what the others say.

Law: what is shown without a set is shown together with that set's name on stderr, and exit status 1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.core.errors import ErrorCode, LockstepError, Rejected

PATIENCE_SECONDS = 10.0
"""A set that has lost its primary has another one when its lease (3 s) is over and a second or two have passed. Whoever is silent
for so long is down, and what the others say is wanted just then. A session would wait for 30 s."""
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class SetAnswers(Generic[_Answer]):
    """By the names of the sets, in the order in which they were asked."""

    said: dict[str, _Answer]
    silent: dict[str, LockstepError]
    """Why those said nothing that were waited for."""

    def check(self) -> None:
        """Raises `Rejected` (UNAVAILABLE) with the names of those that did not answer. What the others said is shown before."""
        if self.silent:
            raise Rejected(ErrorCode.UNAVAILABLE, self.silence, set_names=list(self.silent))

    @property
    def silence(self) -> str:
        """Who did not answer, and why, in words."""
        reasons = dict.fromkeys(error.message for error in self.silent.values())
        sets = "resource sets" if len(self.silent) > 1 else "resource set"
        return f"{sets} {', '.join(self.silent)} did not answer: {'; '.join(reasons)}"


async def ask_sets(
    names: Iterable[str],
    ask: Callable[[str], Awaitable[_Answer]],
    is_enough: Callable[[_Answer], bool] = lambda _: False,
) -> SetAnswers[_Answer]:
    """Asks all of these sets; returns when each has answered or was silent for too long, or one said what `is_enough`.

    Raises why, if there is only one and it does not answer.
    """
    names = list(names)
    asked = {asyncio.ensure_future(_ask(name, ask)): name for name in names}
    waiting = set(asked)
    answers: SetAnswers[_Answer] = SetAnswers({}, {})
    try:
        while waiting and not any(map(is_enough, answers.said.values())):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for answered in done:
                try:
                    answers.said[asked[answered]] = answered.result()
                except LockstepError as error:
                    if len(names) == 1:
                        raise
                    answers.silent[asked[answered]] = error
    finally:
        for other in waiting:
            other.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    answers.said = {name: answers.said[name] for name in names if name in answers.said}
    answers.silent = {name: answers.silent[name] for name in names if name in answers.silent}
    return answers


async def _ask(name: str, ask: Callable[[str], Awaitable[_Answer]]) -> _Answer:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await ask(name)
    except TimeoutError as error:
        text = f"no primary of {name} answered for {PATIENCE_SECONDS:g} s"
        raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=name) from error
