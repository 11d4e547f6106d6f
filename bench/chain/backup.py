"""A backup that follows from an empty log on."""

from collections.abc import Callable

from bench.chain.hop import SET, Hop, Take, empty_copy
from bench.chain.store import StoreHop
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member
from lockstep.core.effects import AnyEffect, OpenSubscription, TellPrimary, TellStore, WakeAt
from lockstep.core.ids import BrokerId, Epoch
from lockstep.core.inputs import AnyInput, PrimarySaid, StoreSaid, Woken
from lockstep.core.replication import Acknowledge
from lockstep.core.store_protocol import AnyStoreRequest
from lockstep.runtime.replication_codec import decode_to_backup, encode_acknowledge, encode_subscribe
from lockstep.runtime.store_codec import decode_answer
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import LogStanding
from services.backup.core.settings import BackupSettings


class BackupHop(Hop):
    """Its subscription's name is its broker's."""

    def __init__(
        self,
        own: Member,
        primary: BrokerId,
        epoch: Epoch,
        store: StoreHop,
        read_now: Callable[[], Now],
    ) -> None:
        super().__init__("backup")
        self._own, self._store, self._read_now = own, store, read_now
        self._core = BackupCore(
            SET,
            own.broker,
            own.incarnation,
            epoch,
            primary,
            empty_copy(),
            True,
            1,
            BackupSettings(),
            lambda opened: LogStanding.OURS,
        )
        self._requests: list[AnyStoreRequest] = []
        self._is_woken = False
        store.serve(self, self._answered)

    def begin(self, primary: Hop, subscribe: Take, acknowledge: Take) -> None:
        """Open the store and subscribe: `subscribe` and `acknowledge` take the words at the primary."""
        self._primary, self._subscribe, self._acknowledge = primary, subscribe, acknowledge
        self._perform(self._core.begin(self._read_now()))
        self.end_turn()

    def frames(self, data: bytes) -> None:
        """The primary's words."""
        self._feed(PrimarySaid(SET, self._core.stream, decode_to_backup(data)))

    def _answered(self, data: bytes) -> None:
        answer = decode_answer(data)
        assert answer is not None
        self._feed(StoreSaid(SET, answer))

    def end_turn(self) -> None:
        """Then it applies what is committed, for which it has itself woken at once."""
        if self._requests:
            self._store.tell(self._requests)
            self._requests = []
        if self._is_woken:
            self._is_woken = False
            self._feed(Woken(SET))

    def _feed(self, given: AnyInput) -> None:
        self._perform(self._core.handle(given, self._read_now()))

    def _perform(self, effects: list[AnyEffect]) -> None:
        for effect in effects:
            match effect:
                case TellStore(request=request):
                    self._requests.append(request)
                case TellPrimary(message=Acknowledge() as message):
                    self._primary.post(self._acknowledge, encode_acknowledge(message, self._own.broker))
                case WakeAt():
                    self._is_woken = True
                case OpenSubscription(subscribe=subscribe):
                    self._primary.post(self._subscribe, encode_subscribe(subscribe, self._own.broker))
