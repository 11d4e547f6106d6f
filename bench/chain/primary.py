"""The primary of the chain's set, from the first record on."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from bench.chain.hop import SET, Hop, Take, empty_copy
from bench.chain.store import StoreHop
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.effects import (
    AnyEffect,
    ClaimName,
    LookUpNames,
    TellBackup,
    TellClient,
    TellStore,
    WakeAt,
)
from lockstep.core.ids import BrokerId
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    ClientSaid,
    LeaseExtended,
    NameClaimed,
    NamesSeen,
    StoreSaid,
    Verdict,
    Woken,
)
from lockstep.core.replication import Acknowledge, Subscribe, ToBackup
from lockstep.core.server_messages import BrokerAnswer, Told
from lockstep.core.store_protocol import AnyStoreRequest
from lockstep.runtime.channels import WRITE_BYTES_MAX
from lockstep.runtime.replication_codec import decode_acknowledge, decode_subscribe, encode_to_backup
from lockstep.runtime.session_codec import decode_request, encode_response
from lockstep.runtime.store_codec import decode_answer
from services.primary.core.primary import PrimaryCore
from services.primary.core.settings import PrimarySettings

_LEASE_MS = 1 << 40
_BACKUP_STREAMS = 1_000_000


class PrimaryHop(Hop):
    """Clients' streams have the numbers that they are added with, from 1; backups' streams begin far behind them."""

    def __init__(self, own: Member, set_map: SetMap, store: StoreHop, read_now: Callable[[], Now]) -> None:
        super().__init__("primary")
        self._store, self._read_now = store, read_now
        self._core = PrimaryCore(empty_copy(), own, set_map, 1, False, PrimarySettings(), read_now())
        self._inputs: list[AnyInput] = []
        self._clients: dict[int, tuple[Hop, Take]] = {}
        self._backups: dict[BrokerId, tuple[Hop, Take]] = {}
        self._backup_streams: dict[int, Subscribe] = {}
        """By their numbers, with the words that began them."""
        self.wakes_at: int | None = None
        """Boot-time milliseconds at which it wants to be woken."""
        store.serve(self, self._answered)

    def begin(self) -> None:
        """Open the store and write the epoch's record."""
        for _ in self._core.get_ready():
            pass
        self._perform(self._core.begin(self._read_now()))
        self._inputs.append(LeaseExtended(SET, 1, _LEASE_MS))

    @property
    def has_work(self) -> bool:
        return bool(self._inputs) or super().has_work

    def wake(self) -> None:
        """In the next turn."""
        self.wakes_at = None
        self._inputs.append(Woken(SET))

    # --- who is there ---

    def add_backup(self, broker: BrokerId, hop: Hop, take: Take) -> None:
        """`take` gets what the broker's subscription says."""
        self._backups[broker] = hop, take

    def add_client(self, stream: int, hop: Hop, take: Take) -> Take:
        """`take` gets what is said on the stream; what is returned takes what the client says."""
        self._clients[stream] = hop, take
        return partial(self._said, stream)

    # --- what comes ---

    def _said(self, stream: int, data: bytes) -> None:
        _, messages = decode_request(data)
        self._inputs.append(ClientSaid(SET, stream, messages))

    def subscribe(self, data: bytes) -> None:
        """A backup's first words."""
        words, _ = decode_subscribe(data)
        stream = _BACKUP_STREAMS + len(self._backup_streams)
        self._backup_streams[stream] = words
        self._inputs.append(BackupSaid(SET, stream, words))

    def acknowledge(self, data: bytes) -> None:
        """A backup's further words; it is named by its subscription."""
        name, epoch, log_end = decode_acknowledge(data)
        stream, words = next(known for known in self._backup_streams.items() if known[1].broker == name)
        message = Acknowledge(SET, epoch, words.broker, words.incarnation, log_end)
        self._inputs.append(BackupSaid(SET, stream, message))

    def _answered(self, data: bytes) -> None:
        answer = decode_answer(data)
        assert answer is not None
        self._inputs.append(StoreSaid(SET, answer))

    def end_turn(self) -> None:
        while self._inputs:
            inputs, self._inputs = self._inputs, []
            now = self._read_now()
            for given in inputs[:-1]:
                self._core.take(given, now)
            self._perform(self._core.handle(inputs[-1], now))

    # --- what it says ---

    def _perform(self, effects: list[AnyEffect]) -> None:
        requests: list[AnyStoreRequest] = []
        to_backups: defaultdict[int, list[ToBackup]] = defaultdict(list)
        to_clients: defaultdict[int, list[Told]] = defaultdict(list)
        for effect in effects:
            match effect:
                case TellClient():
                    to_clients[effect.stream].append(effect.message)
                case TellBackup():
                    to_backups[effect.stream].append(effect.message)
                case TellStore():
                    requests.append(effect.request)
                case WakeAt():
                    self.wakes_at = effect.boottime_ms
                case ClaimName():
                    self._inputs.append(NameClaimed(SET, effect.request, Verdict.DONE, SET))
                case LookUpNames():
                    self._inputs.append(NamesSeen(SET, ()))
        for stream, words in to_backups.items():
            hop, take = self._backups[self._backup_streams[stream].broker]
            for data in encode_to_backup(words, WRITE_BYTES_MAX):
                hop.post(take, data)
        self._store.tell(requests)
        for stream, told in to_clients.items():
            self._tell(stream, told)

    def _tell(self, stream: int, told: Sequence[Told]) -> None:
        hop, take = self._clients[stream]
        messages = [message for message in told if not isinstance(message, BrokerAnswer)]
        hop.post(take, encode_response(SET, messages))
