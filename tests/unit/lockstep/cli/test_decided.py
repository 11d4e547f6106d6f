"""What coordinators say of a participant that is given up, taken together."""

from typing import Any, cast

import pytest

from lockstep.cli.decided import give_up
from lockstep.client import Client, ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.wire.v1 import coordinator_pb2 as pb

ROLLED_BACK = pb.GiveUpParticipantResponse(state=pb.DISTRIBUTED_STATE_ROLLED_BACK)
NOT_HERE = Rejected(ErrorCode.NOT_FOUND, "not in hand here")
TOO_SOON = Rejected(ErrorCode.ILLEGAL_STATE, "told only once")
AWAY = Rejected(ErrorCode.UNAVAILABLE, "away")
SILENT = InDoubt(ErrorCode.UNAVAILABLE, "no answer")
Answer = pb.GiveUpParticipantResponse | LockstepError


class Saying:
    """A client whose coordinators say so."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self.coordinators = self
        self._answers = answers

    async def call_each(self, *_: Any) -> dict[str, Answer]:
        return {f"host:{port}": answer for port, answer in enumerate(self._answers)}


async def told(*answers: Answer) -> str:
    return await give_up(cast(Client, Saying(answers)), bytes(16), "grpc://host:1/gone")


async def test_it_is_done_where_one_has_done_it_and_the_others_have_nothing_of_it() -> None:
    assert await told(NOT_HERE, ROLLED_BACK, NOT_HERE) == "rolled back"
    assert await told(ROLLED_BACK, TOO_SOON) == "rolled back"


@pytest.mark.parametrize("silence", [AWAY, SILENT])
async def test_a_coordinator_that_is_silent_may_tell_on_so_it_is_to_be_repeated(
    silence: LockstepError,
) -> None:
    with pytest.raises(LockstepError) as caught:
        await told(ROLLED_BACK, silence)
    assert caught.value is silence


async def test_why_nobody_has_done_it_is_said_by_whoever_has_it_in_hand() -> None:
    for answers, said in (((NOT_HERE, TOO_SOON), TOO_SOON), ((NOT_HERE, NOT_HERE), NOT_HERE)):
        with pytest.raises(Rejected) as caught:
            await told(*answers)
        assert caught.value is said
