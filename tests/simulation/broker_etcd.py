"""The etcd side of a broker's driver: watches, transactions that effects name, and the process lease.

Law: a change is sent once; after a failed or doubtful one the entry is read again and fed before the answer (`SwapAnswered`).
Names are claimed and given back one after the other, as their effects came.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lockstep.core.branch_names import begun_ms, set_participant
from lockstep.core.cluster_map import SetMap
from lockstep.core.decision_log import (
    DecisionKeys,
    LoggedParticipants,
    LogView,
    OutcomeEntry,
    ParticipantsEntry,
)
from lockstep.core.decision_log import Verdict as Decision
from lockstep.core.effects import (
    AskDecision,
    ClaimName,
    DropLeaseKey,
    ListParticipants,
    LookUpNames,
    MapRead,
    MarkSetBack,
    PromoteSelf,
    PutPresence,
    ReleaseName,
    RestoreLeaseKey,
    SwapMap,
)
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import (
    CandidatesSeen,
    DecisionHeard,
    LeaseExtended,
    LeaseKeySeen,
    LeaseLost,
    MapSeen,
    NameClaimed,
    NamesSeen,
    ParticipantsListed,
    PresencesSeen,
    SwapAnswered,
    Verdict,
)
from lockstep.core.lineage import Lineage
from lockstep.core.server_messages import (
    AttachRefused,
    CandidatesChanged,
    SessionAttached,
    Told,
)
from lockstep.core.stamps import Stamps
from lockstep.runtime.decision_log import LOOKS
from lockstep.runtime.etcd_values import Put, TransactionResult, as_read
from services.broker.core.lease_keeper import (
    GrantLease,
    LeaseCallFailed,
    LeaseGone,
    LeaseGranted,
    LeaseInput,
    LeaseRenewed,
    RenewLease,
    RevokeLease,
    ServeUntil,
    StopServing,
)
from tests.simulation.etcd import Entry, Etcd
from tests.simulation.etcd_memory import EtcdMemory
from tests.simulation.etcd_session import IN_DOUBT, EtcdSession
from tests.simulation.etcd_transactions import holds, transact
from tests.simulation.loop import MS

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

REREAD_US = 100 * MS
NameEffect = ClaimName | ReleaseName
EtcdEffect = (
    SwapMap
    | PromoteSelf
    | RestoreLeaseKey
    | DropLeaseKey
    | PutPresence
    | MarkSetBack
    | NameEffect
    | LookUpNames
    | AskDecision
    | ListParticipants
)
Operation = Callable[[Etcd], object]


class BrokerEtcd:
    """Lives as long as its broker process."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._world = broker.world
        self._keys = broker.world.keys
        self.keeper = broker.world.parts.make_lease_keeper(broker.world.lease_settings)
        self.session = EtcdSession(
            broker.world.loop, broker.world.network, broker.host, lambda keys: broker.post(self._viewed, keys)
        )

        self._memory = EtcdMemory(broker, self)
        self._roll_call = broker.world.parts.make_roll_call(f"asks {broker.incarnation}")
        self._names: dict[SetName, deque[NameEffect]] = {}
        """The first one is being done."""
        self._candidates: dict[SetName, tuple[str, ...]] = {}
        """As the replica heard last that they are others."""

    def close(self) -> None:
        self.session.close()

    # --- what is there --------------------------------------------------------------------------------------------

    def _viewed(self, changed: list[str] | None) -> None:
        """The watch brought changes of these keys; None: everything was read."""
        remembers = self._memory.viewed()
        if remembers is not None:
            self._feed_map(remembers)
        if changed is None:
            for set_name in self._broker.replicas:
                self._feed_map(set_name)
                self._feed_lease_key(set_name)
                self._feed_presences(set_name)
            return
        is_generation_new = self._keys.generation in changed or self._keys.set_back in changed
        for set_name in self._broker.replicas:
            if is_generation_new or self._keys.set_map(set_name) in changed:
                self._feed_map(set_name)
            if self._keys.set_lease(set_name) in changed:
                self._feed_lease_key(set_name)
            if any(key.startswith(self._keys.presences(set_name)) for key in changed):
                self._feed_presences(set_name)

    def _value(self, key: str) -> Entry | None:
        return self.session.view.get(key)

    @property
    def generation(self) -> str:
        """The cluster's, as this process knows it; "": not at all."""
        entry = self._value(self._keys.generation)
        return entry.value.decode() if entry else ""

    @property
    def lineage(self) -> Lineage:
        """With those of the same history."""
        entry = self._value(self._keys.lineage)
        return Lineage.read(self.generation, entry.value if entry else b"")

    def _feed_map(self, set_name: SetName) -> None:
        entry, known = self._value(self._keys.set_map(set_name)), self.lineage
        is_set_back = self._value(self._keys.set_back) is not None
        memory = self._memory
        of_etcd = known.generation, known.earlier, memory.highest, is_set_back, memory.stamps
        if entry is None:
            self._broker.feed(MapSeen(set_name, None, 0, b"", *of_etcd))
        else:
            set_map = SetMap.decode(entry.value)
            self._broker.feed(MapSeen(set_name, set_map, entry.mod_revision, entry.value, *of_etcd))
        candidates = self._candidates_of(set_name)
        if self._world.options.tells_candidates and candidates != self._candidates.get(set_name, ()):
            self._candidates[set_name] = candidates
            self._broker.feed(CandidatesSeen(set_name))

    def addressed(self, set_name: SetName, message: Told) -> Told:
        """With the addresses of those who may serve the set, the primary's first, where the replica left them empty."""
        if not isinstance(message, SessionAttached | AttachRefused | CandidatesChanged) or message.candidates:
            return message
        return replace(message, candidates=self._candidates_of(set_name))

    def _candidates_of(self, set_name: SetName) -> tuple[str, ...]:
        entry = self._value(self._keys.set_map(set_name))
        if entry is None:
            return ()
        set_map = SetMap.decode(entry.value)
        brokers = sorted(set_map.brokers, key=lambda broker: broker != set_map.primary)
        return tuple(f"broker:{broker}" for broker in brokers)

    def in_sync(self, set_name: SetName) -> tuple[SetMap | None, list[BrokerId]]:
        """The entry, and those who run and are in sync with the memory that it names."""
        entry = self._value(self._keys.set_map(set_name))
        if entry is None:
            return None, []
        set_map = SetMap.decode(entry.value)
        found = []
        for member in set_map.in_sync:
            presence = self._value(self._keys.presence(set_name, member.broker))
            if presence is not None and presence.value == member.incarnation.encode():
                found.append(member.broker)
        return set_map, found

    def _feed_lease_key(self, set_name: SetName) -> None:
        entry = self._value(self._keys.set_lease(set_name))
        self._broker.feed(LeaseKeySeen(set_name, Incarnation(entry.value.decode()) if entry else None))

    def _feed_presences(self, set_name: SetName) -> None:
        prefix = self._keys.presences(set_name)
        seen = tuple(
            (BrokerId(key.removeprefix(prefix)), Incarnation(entry.value.decode()), entry.mod_revision)
            for key, entry in sorted(self.session.view.items())
            if key.startswith(prefix)
        )
        self._broker.feed(PresencesSeen(set_name, seen))

    def read_again(self, set_name: SetName, then: Callable[[], None]) -> None:
        """Read the set's keys until that succeeds, feed them, then call `then`."""
        prefix = f"{self._keys.sets}{set_name}/"

        def read(etcd: Etcd) -> object:
            of_all = self._keys.generation, self._keys.lineage, self._keys.set_back
            keys = (*etcd.prefix(prefix), *(entry for key in of_all for entry in etcd.prefix(key)))
            return etcd.revision, dict(keys)

        def take(result: object) -> None:
            if result is IN_DOUBT:
                self._world.loop.after(REREAD_US, self.read_again, set_name, then)
                return
            assert isinstance(result, tuple)
            revision, found = result
            known = {key for key in self.session.view if key.startswith(prefix)} | set(found)
            self.session.learn({key: found.get(key) for key in sorted(known)}, revision)
            self._feed_map(set_name)
            self._feed_lease_key(set_name)
            self._feed_presences(set_name)
            then()

        if self._broker.is_alive:
            self.session.call(read, lambda result: self._broker.post(take, result))

    # --- transactions ---------------------------------------------------------------------------------------------

    def perform(self, effect: EtcdEffect) -> None:
        keys, lease, set_name = self._keys, self.keeper.held(self._broker.clocks.now()), effect.set_name
        map_key, lease_key = keys.set_map(set_name), keys.set_lease(set_name)
        checks = self._world.parts
        match effect:
            case SwapMap():

                def swap(etcd: Etcd) -> object:
                    if not lease or not self._is_as_read(etcd, map_key, effect.expected):
                        return 0
                    return etcd.put(map_key, effect.set_map.encode())

                self._transact(set_name, effect.request, swap)
            case PromoteSelf():

                def promote(etcd: Etcd) -> object:
                    is_possible = self._is_as_read(etcd, map_key, effect.expected) and lease in etcd.leases
                    is_possible &= self._is_marked_as_asked(etcd, effect)
                    is_possible &= etcd.get(lease_key) is None or not checks.is_lease_key_compared
                    for broker, incarnation, revision in effect.presences:
                        read = MapRead(revision, incarnation.encode())
                        is_possible &= self._is_as_read(etcd, keys.presence(set_name, broker), read)
                    if not is_possible:
                        return 0
                    etcd.put(lease_key, effect.set_map.primary_incarnation.encode(), lease)
                    return etcd.put(map_key, effect.set_map.encode())

                self._transact(set_name, effect.request, promote)
            case RestoreLeaseKey():
                holder = effect.incarnation.encode()

                def restore(etcd: Etcd, key_revision: int) -> object:
                    is_same = self._is_as_read(etcd, map_key, effect.expected)
                    is_same &= self._is_marked_as_asked(etcd, effect)
                    if (
                        not is_same
                        or etcd.mod_revision(lease_key) != key_revision
                        or lease not in etcd.leases
                    ):
                        return 0
                    etcd.put(lease_key, holder, lease)
                    return effect.expected.revision

                def found(key: object) -> None:
                    revision = key.mod_revision if isinstance(key, Entry) and key.value == holder else 0
                    self._transact(set_name, effect.request, lambda etcd: restore(etcd, revision))

                self.session.call(lambda etcd: etcd.get(lease_key), lambda key: self._broker.post(found, key))
            case DropLeaseKey():

                def drop(etcd: Etcd) -> None:
                    entry = etcd.get(lease_key)
                    if lease and entry is not None and entry.value == effect.incarnation.encode():
                        etcd.delete(lease_key)

                self.session.tell(drop)
            case PutPresence():
                self._put_presence(effect)
            case MarkSetBack():
                self.session.tell(lambda etcd: self._memory.mark(etcd, effect))
            case ClaimName() | ReleaseName():
                waiting = self._names.setdefault(set_name, deque())
                waiting.append(effect)
                if len(waiting) == 1:
                    self._do_name(effect)
            case LookUpNames():
                self._broker.feed(NamesSeen(set_name, self._names_of(set_name)))
            case AskDecision():
                self._ask_decision(effect)
            case ListParticipants():
                self._list_participants(effect)

    def _is_as_read(self, etcd: Etcd, key: str, read: MapRead) -> bool:
        """As `as_read`."""
        compares = as_read(key, read.value, read.revision)
        return all(holds(etcd, one) for one in self._world.parts.compared(compares))

    def _is_marked_as_asked(self, etcd: Etcd, effect: PromoteSelf | RestoreLeaseKey) -> bool:
        is_compared = effect.is_mark_compared and self._world.parts.is_mark_compared
        return not is_compared or etcd.get(self._keys.set_back) is None

    def _put_presence(self, effect: PutPresence) -> None:
        """Repeated until it is so, unless the replica has another name by then. By its revision: what is executed late is not to
        take the key from the name that it has then.
        """
        key, lease = self._keys.presence(effect.set_name, self._broker.broker), self.keeper.lease_id
        if self._broker.replicas[effect.set_name].incarnation != effect.incarnation:
            return

        def put(etcd: Etcd, revision: int) -> bool:
            if lease not in etcd.leases:
                return True
            if etcd.mod_revision(key) != revision:
                return False
            etcd.put(key, effect.incarnation.encode(), lease)
            return True

        def answered(result: object) -> None:
            if result is not True:
                self._world.loop.after(REREAD_US, self._broker.post, self._put_presence, effect)

        def is_there(entry: object) -> None:
            if entry is IN_DOUBT:
                answered(entry)
                return
            held = entry if isinstance(entry, Entry) else None
            if held is None or held.value != effect.incarnation.encode() or held.lease != lease:
                revision = held.mod_revision if held is not None else 0
                self.session.call(lambda etcd: put(etcd, revision), answered)

        self.session.call(lambda etcd: etcd.get(key), lambda entry: self._broker.post(is_there, entry))

    # --- the decision log ---------------------------------------------------------------------------------------------

    def _ask_decision(self, effect: AskDecision, looks: int = LOOKS) -> None:
        """As `DecisionLogReader.read`."""
        keys, sent_ms = DecisionKeys(self._keys.cluster), self._world.loop.now_us // MS

        def read(etcd: Etcd) -> LogView:
            generation = etcd.get(self._keys.generation)
            participants = etcd.get(keys.participants(effect.global_id))
            decision = etcd.get(keys.decision(effect.global_id))
            outcome = etcd.get(keys.outcome(effect.global_id))
            stamped = etcd.get(self._keys.stamps)
            stamps = Stamps.decode(stamped.value if stamped else b"")
            return LogView(
                generation.value.decode() if generation else "",
                ParticipantsEntry.decode(participants.value) if participants else None,
                participants.mod_revision if participants else 0,
                Decision(decision.value.decode()) if decision else None,
                OutcomeEntry.decode(outcome.value) if outcome else None,
                etcd.revision,
                etcd.get(self._keys.set_back) is not None,
                stamps,
                stamped.mod_revision if stamped else 0,
                not self._roll_call.is_answered(stamps, sent_ms),
                stamped.value if stamped else b"",
                participants.value if participants else b"",
            )

        def take(result: object) -> None:
            view = result if isinstance(result, LogView) and not result.is_set_back else None
            if view is not None and view.is_unattested and view.has_nothing and looks:
                self._call_the_roll(view)
                self._world.loop.after(REREAD_US, self._broker.post, self._ask_decision, effect, looks - 1)
                return
            self._broker.feed(DecisionHeard(effect.set_name, effect.request, effect.transaction, view))

        self.session.call(read, lambda result: self._broker.post(take, result))

    def _list_participants(self, effect: ListParticipants) -> None:
        """As `DecisionLogReader.list`."""
        keys, own = DecisionKeys(self._keys.cluster), set_participant(effect.set_name)

        def read(etcd: Etcd) -> LoggedParticipants:
            entries = etcd.prefix(keys.all_participants)
            lists = [(keys.global_id(key), ParticipantsEntry.decode(one.value)) for key, one in entries]
            return LoggedParticipants(
                tuple(
                    (global_id, listed)
                    for global_id, listed in lists
                    if begun_ms(global_id) <= effect.up_to_ms and listed.awaited(own)
                )
            )

        def take(result: object) -> None:
            found = result if isinstance(result, LoggedParticipants) else None
            self._broker.feed(ParticipantsListed(effect.set_name, effect.request, found))

        self.session.call(read, lambda result: self._broker.post(take, result))

    def call_the_roll(self) -> None:
        """As if another branch had just found nothing."""
        entry = self._value(self._keys.stamps)
        assert entry is not None, "there are witnesses"
        view = LogView(
            stamps=Stamps.decode(entry.value),
            stamps_revision=entry.mod_revision,
            stamps_value=entry.value,
            revision=self.session.revision,
        )
        self._call_the_roll(view)

    def _call_the_roll(self, view: LogView) -> None:
        """As `RollCalls.call`."""
        sent_ms = self._world.loop.now_us // MS
        asked = self._roll_call.call(view.stamps, view.revision, sent_ms)
        if asked is None:
            return
        stamp, called = asked
        is_as_read = as_read(self._keys.stamps, view.stamps_value, view.stamps_revision)
        compares = self._world.parts.compared(is_as_read)

        def take(result: object) -> None:
            if isinstance(result, TransactionResult) and result.succeeded:
                self._world.branches.reach("broker called the roll")
                self._roll_call.called(stamp, sent_ms)
            elif result is IN_DOUBT:
                self._roll_call.in_doubt()

        self.session.call(
            lambda etcd: transact(etcd, compares, [Put(self._keys.stamps, called.encode())]),
            lambda result: self._broker.post(take, result),
        )

    # --- the directory --------------------------------------------------------------------------------------------

    def _names_of(self, set_name: SetName) -> tuple[tuple[str, str], ...]:
        prefix, owner = self._keys.directory("", "").removesuffix("/"), set_name.encode()
        found = []
        for key in sorted(key for key in self.session.view if key.startswith(prefix)):
            if self.session.view[key].value == owner:
                kind, _, name = key.removeprefix(prefix).partition("/")
                found.append((kind, name))
        return tuple(found)

    def _do_name(self, effect: NameEffect) -> None:
        if isinstance(effect, ClaimName):
            self._claim(effect)
        else:
            self._release(effect)

    def _name_done(self, effect: NameEffect) -> None:
        waiting = self._names[effect.set_name]
        waiting.popleft()
        if waiting:
            self._do_name(waiting[0])

    def _is_leading(self, etcd: Etcd, effect: NameEffect) -> bool:
        held = etcd.get(self._keys.set_lease(effect.set_name))
        return held is not None and held.value == effect.incarnation.encode()

    def _claim(self, effect: ClaimName) -> None:
        key, set_name = self._keys.directory(effect.kind, effect.name), effect.set_name

        def claim(etcd: Etcd) -> object:
            entry = etcd.get(key)
            if entry is not None:
                return entry.value.decode()
            if not self._is_leading(etcd, effect):
                return IN_DOUBT
            etcd.put(key, set_name.encode())
            return set_name

        def answer(verdict: Verdict, owner: SetName) -> None:
            self._broker.feed(NameClaimed(set_name, effect.request, verdict, owner))
            self._name_done(effect)

        def take(result: object) -> None:
            if result is IN_DOUBT:
                self._world.loop.after(
                    REREAD_US, self._broker.post, lambda _: answer(Verdict.IN_DOUBT, SetName("")), None
                )
            else:
                owner = SetName(str(result))
                answer(Verdict.DONE if owner == set_name else Verdict.FAILED, owner)

        self.session.call(claim, lambda result: self._broker.post(take, result))

    def _release(self, effect: ReleaseName) -> None:
        """Read, then delete what was read: a deletion that is executed late does nothing to a later claim."""
        key = self._keys.directory(effect.kind, effect.name)

        def read(etcd: Etcd) -> object:
            entry = etcd.get(key)
            is_own = entry is not None and entry.value == effect.set_name.encode()
            return (
                entry.mod_revision if entry is not None and is_own and self._is_leading(etcd, effect) else 0
            )

        def delete(etcd: Etcd, revision: int) -> object:
            if etcd.mod_revision(key) == revision and self._is_leading(etcd, effect):
                etcd.delete(key)
            return revision

        def again(_: None) -> None:
            self._release(effect)

        def take(result: object) -> None:
            if result is IN_DOUBT:
                self._world.loop.after(REREAD_US, self._broker.post, again, None)
            elif result == 0:
                self._name_done(effect)
            else:
                assert isinstance(result, int)
                self.session.call(
                    lambda etcd: delete(etcd, result), lambda done: self._broker.post(deleted, done)
                )

        def deleted(result: object) -> None:
            if result is IN_DOUBT:
                again(None)
            else:
                self._name_done(effect)

        self.session.call(read, lambda result: self._broker.post(take, result))

    def _transact(self, set_name: SetName, request: int, operation: Operation) -> None:
        """`operation` returns the entry's revision, or 0 when a compare did not hold."""

        def take(result: object) -> None:
            if result is IN_DOUBT or result == 0:
                verdict = Verdict.IN_DOUBT if result is IN_DOUBT else Verdict.FAILED
                self._world.branches.reach(f"etcd transaction {verdict.value}")
                answer = SwapAnswered(set_name, request, verdict, 0)
                self.read_again(set_name, lambda: self._broker.feed(answer))
            else:
                assert isinstance(result, int)
                self._broker.feed(SwapAnswered(set_name, request, Verdict.DONE, result))

        self.session.call(operation, lambda result: self._broker.post(take, result))

    # --- lease ----------------------------------------------------------------------------------------------------

    def handle_lease(self, given: LeaseInput) -> None:
        """Give the lease keeper an input and perform what it wants."""
        for effect in self.keeper.handle(given, self._broker.clocks.now()):
            sent_ms = self._broker.clocks.boottime_ms()
            match effect:
                case GrantLease():
                    self._grant(effect.ttl_seconds * 1000, sent_ms)
                case RenewLease():
                    self._renew(effect.lease_id, sent_ms)
                case RevokeLease():
                    lease = effect.lease_id
                    self.session.tell(lambda etcd, lease=lease: etcd.revoke(lease))  # type: ignore[misc]
                case ServeUntil():
                    for set_name in self._broker.replicas:
                        self._broker.feed(LeaseExtended(set_name, effect.lease_id, effect.serve_until_ms))
                case StopServing():
                    for set_name in self._broker.replicas:
                        self._broker.feed(LeaseLost(set_name))

    def _grant(self, ttl_ms: int, sent_ms: int) -> None:
        lease = self._world.random.getrandbits(40) + 1

        def take(result: object) -> None:
            failed = result is IN_DOUBT
            self.handle_lease(LeaseCallFailed() if failed else LeaseGranted(lease, ttl_ms, sent_ms))

        self.session.call(
            lambda etcd: etcd.grant(lease, ttl_ms * MS), lambda result: self._broker.post(take, result)
        )

    def _renew(self, lease: int, sent_ms: int) -> None:
        ttl_ms = self._world.lease_settings.lease_seconds * 1000

        def take(result: object) -> None:
            if result is IN_DOUBT:
                self.handle_lease(LeaseCallFailed())
            else:
                assert isinstance(result, int)
                self.handle_lease(LeaseRenewed(lease, ttl_ms, sent_ms) if result else LeaseGone(lease))
                remembers = self._memory.saw(result)
                if remembers is not None:
                    self._feed_map(remembers)

        def renew(etcd: Etcd) -> int:
            """etcd's revision; 0: the lease is gone."""
            return etcd.revision if etcd.renew(lease) else 0

        self.session.call(renew, lambda result: self._broker.post(take, result))
