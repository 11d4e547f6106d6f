"""The store of one broker: its core, its codec and a data directory.

Law: the work that is counted is what an append waits for; the next segment and the consolidator are aside, as in threads of
their own.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from bench.chain.hop import SET, Hop, Take
from lockstep.core.ids import DiskId, Epoch, Incarnation
from lockstep.core.store_protocol import AnyStoreRequest, OpenSet, SetOpened
from lockstep.runtime.store_client import join_appends
from lockstep.runtime.store_codec import decode_answer, decode_request, encode_answer, encode_request
from services.store.core.disk import Lane
from services.store.core.messages import JobFailed, Perform, Reply, Requested, StoreEffect
from services.store.core.store_core import StoreCore
from services.store.directory_disk import DirectoryDisk
from services.store.lane_threads import perform_job

_STREAM = 1


class StoreHop(Hop):
    """Lives as long as its chain, which closes it."""

    def __init__(self, folder: Path, epoch: Epoch, incarnation: Incarnation) -> None:
        """Makes a data directory in `folder`, and the set's disk in it, of which the broker is to be told."""
        super().__init__("store")
        self._core = StoreCore()
        self._disk = DirectoryDisk(folder, is_prefilled=False)
        self._appends: deque[Perform] = deque()
        self._others: deque[Perform] = deque()
        self._broker = Hop("nobody")
        self._answered: Take = self._made
        self.disk = DiskId("")
        self._perform(self._core.handle(Requested(_STREAM, OpenSet(SET, epoch, incarnation))))
        self.end_turn()
        self._broker.turn()
        self.aside()

    def serve(self, broker: Hop, answered: Take) -> None:
        """From now on it is `broker` that is answered; `answered` takes the words there."""
        self._broker, self._answered = broker, answered

    def tell(self, requests: Iterable[AnyStoreRequest]) -> None:
        """What its broker says in one turn."""
        for request in join_appends(list(requests)):
            assert request is not None
            self.post(self._heard, encode_request(request))

    def close(self) -> None:
        self._disk.close()

    def _made(self, data: bytes) -> None:
        opened = decode_answer(data)
        assert isinstance(opened, SetOpened), opened
        self.disk = opened.disk

    def _heard(self, data: bytes) -> None:
        request = decode_request(data)
        assert request is not None
        self._perform(self._core.handle(Requested(_STREAM, request)))

    def end_turn(self) -> None:
        self._work_off(self._appends)

    def aside(self) -> None:
        while self._others:
            self._work_off(self._others)
            self._work_off(self._appends)

    def _work_off(self, jobs: deque[Perform]) -> None:
        while jobs:
            end = perform_job(self._disk, jobs.popleft(), [])
            assert not isinstance(end, JobFailed), end
            self._perform(self._core.handle(end))

    def _perform(self, effects: list[StoreEffect]) -> None:
        for effect in effects:
            match effect:
                case Perform():
                    (self._appends if effect.lane is Lane.JOURNAL else self._others).append(effect)
                case Reply(_, answer):
                    self._broker.post(self._answered, encode_answer(answer))
