"""Resource sets as participants, named set:<name>: the coordinator is a client of the brokers, with one session in each set.

Law: as for every port: what the set's resource manager has said is answered (`core/set_answers.py`), and everything else is
`UNREACHABLE`. A set that etcd does not have has no branch: a name that was mistyped has nothing to roll back, or its transaction
would stay in the log for ever. To a commit it stays unreachable: whoever decided that had its vote, and etcd was set back.

A branch has one command of a verb under way, which the session keeps through failovers: whoever asks again waits
for its answer. Commands of their own would gather in the session of a set that commits nothing, and flood it when it is back.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lockstep.client.client import Client
from lockstep.client.resource_manager import ResourceManager, XaError
from lockstep.client.session import Session
from lockstep.core.branch_names import SET_KIND, ParticipantName
from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import SetName
from lockstep.core.xa import BranchState, XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.etcd import EtcdClient
from services.coordinator.core.set_answers import (
    completion,
    refused_completion,
    refused_vote,
    sets_among,
    vote,
)
from services.coordinator.core.votes import Completion, Verb, Vote
from services.coordinator.participant_ports import ParticipantPort

_log = logging.getLogger("lockstep.coordinator")

_Answer = TypeVar("_Answer")

NAME_CHARACTERS_MAX = 255


class ResourceSets(ParticipantPort):
    """Lives as long as the process. A call that is not answered in time goes on in the set; the core repeats it."""

    def __init__(self, etcd: EtcdClient, cluster: str, call_seconds: float) -> None:
        self._etcd = etcd
        self._keys = Keys(cluster)
        self._call_seconds = call_seconds
        self._client: Client | None = None
        self._session: Session | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._under_way: dict[tuple[ParticipantName, Xid, Verb], asyncio.Task[Any]] = {}
        """Until they are answered, or the session is lost."""
        self._there: set[SetName] = set()
        """Sets that etcd had: none is ever deleted."""

    async def close(self) -> None:
        for asking in self._under_way.values():
            asking.cancel()
        if self._client is not None:
            await self._client.close()

    def check(self, participant: ParticipantName) -> None:
        name = participant.removeprefix(SET_KIND)
        if not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX or "/" in name:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"a resource set is named {SET_KIND}<name>, not {participant[:80]!r}",
                participant=participant[:80],
            )

    async def check_there(self, participant: ParticipantName) -> None:
        if not await self._is_there(participant):
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"there is no resource set {participant.removeprefix(SET_KIND)!r}",
                participant=participant,
            )

    async def _is_there(self, participant: ParticipantName) -> bool:
        """False only if etcd says so: without etcd there may be any set."""
        set_name = SetName(participant.removeprefix(SET_KIND))
        if set_name in self._there:
            return True
        try:
            if await self._etcd.get(self._keys.set_map(set_name)) is None:
                return False
        except LockstepError as error:
            _log.debug("event=set_not_looked_up set=%s %s", set_name, error.message)
            return True
        self._there.add(set_name)
        return True

    async def prepare(
        self, participant: ParticipantName, xid: Xid, together: tuple[ParticipantName, ...]
    ) -> Vote:
        resource_sets = sets_among(together)

        async def prepare(manager: ResourceManager) -> Vote:
            try:
                return vote(await manager.prepare(xid, resource_sets))
            except XaError as error:
                return refused_vote(error.code, error.state)

        if not await self._is_there(participant):
            return Vote.UNKNOWN_BRANCH
        return await self._call(participant, xid, Verb.PREPARE, prepare, Vote.UNREACHABLE)

    async def commit(self, participant: ParticipantName, xid: Xid, *, one_phase: bool) -> Completion:
        async def commit(manager: ResourceManager) -> Completion:
            try:
                return completion(await manager.commit(xid, one_phase=one_phase), Completion.COMMITTED)
            except XaError as error:
                if one_phase and error.state is BranchState.PREPARED:
                    # Its client had it vote already; it is the only participant, so telling it is the decision.
                    return await _end(manager.commit(xid), Completion.COMMITTED)
                return refused_completion(error.code, error.state)

        verb = Verb.COMMIT_ONE_PHASE if one_phase else Verb.COMMIT
        return await self._call(participant, xid, verb, commit, Completion.UNREACHABLE)

    async def rollback(self, participant: ParticipantName, xid: Xid) -> Completion:
        async def rollback(manager: ResourceManager) -> Completion:
            return await _end(manager.rollback(xid), Completion.ROLLED_BACK)

        if not await self._is_there(participant):
            return Completion.UNKNOWN_BRANCH
        return await self._call(participant, xid, Verb.ROLL_BACK, rollback, Completion.UNREACHABLE)

    # Inside

    async def _call(
        self,
        participant: ParticipantName,
        xid: Xid,
        verb: Verb,
        call: Callable[[ResourceManager], Awaitable[_Answer]],
        unreachable: _Answer,
    ) -> _Answer:
        asked = participant, xid, verb
        under_way = self._under_way.get(asked)
        if under_way is None:
            under_way = asyncio.create_task(self._ask(participant, xid, call, unreachable))
            under_way.add_done_callback(lambda _: self._under_way.pop(asked))
            self._under_way[asked] = under_way
        done, _ = await asyncio.wait([under_way], timeout=self._call_seconds)
        return under_way.result() if done else unreachable

    async def _ask(
        self,
        participant: ParticipantName,
        xid: Xid,
        call: Callable[[ResourceManager], Awaitable[_Answer]],
        unreachable: _Answer,
    ) -> _Answer:
        try:
            session = self._session or await self._connect()
            return await call(await session.resource_manager(participant.removeprefix(SET_KIND)))
        except LockstepError as error:
            _log.debug("event=no_answer participant=%s xid=%s %r", participant, xid, error)
            return unreachable

    async def _connect(self) -> Session:
        """Raises `LockstepError` while no broker is registered."""
        async with self._connecting:
            if self._session is None:
                members, _ = await self._etcd.get_prefix(self._keys.members)
                addresses = [str(json.loads(member.value)["address"]) for member in members]
                if not addresses:
                    raise Rejected(ErrorCode.UNAVAILABLE, "no broker is registered")
                self._client = Client(addresses)
                self._session = self._client.session()
            return self._session


async def _end(verb: Awaitable[XaStatus], asked: Completion) -> Completion:
    try:
        return completion(await verb, asked)
    except XaError as error:
        return refused_completion(error.code, error.state)
