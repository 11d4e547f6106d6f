"""The primary role of one resource set, for one epoch: takes commands, writes the log, decides what is committed.

Law: a record is committed when it is durable at every counted member (R3), and nobody hears of anything before; nobody hears
anything at all once the lease is over (R6). An epoch is begun by its own record and served when that is committed (R5).

    beginning --epoch record committed--> serving --stop, hand over, a higher epoch, a lost store--> stopped
"""

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import get_args

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.commands import AnyCommand
from lockstep.core.effects import AnyEffect, Note, WakeAt
from lockstep.core.epoch_table import reign_of
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, LogIndex
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    CandidatesSeen,
    ClientSaid,
    ClientStreamClosed,
    ClientStreamDrained,
    ClientStreamFull,
    DecisionHeard,
    LeaseExtended,
    LeaseLost,
    MapSeen,
    MessagesRead,
    NameClaimed,
    NamesSeen,
    ParticipantsListed,
    PresencesSeen,
    StoreConnected,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
    Woken,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import Acknowledge, HandedOver, Refuse
from lockstep.core.store_protocol import Appended
from lockstep.core.taking_apart import emptied
from services.primary.core import decisions
from services.primary.core.aftermath import Aftermath
from services.primary.core.attachments import Attachments
from services.primary.core.backup_hearing import BackupHearing
from services.primary.core.backups import Backups
from services.primary.core.client_hearing import WORK_IN_ONE, ClientHearing
from services.primary.core.client_streams import ClientStreams
from services.primary.core.clients import Clients
from services.primary.core.consuming import deliver
from services.primary.core.context import take_over
from services.primary.core.dead_letters import move_waiting
from services.primary.core.figures import Figures
from services.primary.core.gate import CommitGate
from services.primary.core.gathering import Gathering
from services.primary.core.gone_before import NOTHING_GONE, GoneBefore
from services.primary.core.handing_on import handed_over, roll_back_unfit, take_up
from services.primary.core.housekeeping import Housekeeping
from services.primary.core.known_hosts import KnownHosts
from services.primary.core.listener import PrimaryListener
from services.primary.core.log_keeping import LogKeeping
from services.primary.core.map_keeping import MapKeeping
from services.primary.core.membership import Membership
from services.primary.core.name_claims import NameClaims
from services.primary.core.observers import TransactionObserverFactory, TxQueueObserverFactory
from services.primary.core.own_store import OwnStore
from services.primary.core.reign import DiskDamaged, ReignOver
from services.primary.core.settings import PrimarySettings
from services.primary.core.tx_queue import TxQueues

TAKEN_IN_ONE = 100
"""Messages of clients, and other inputs, that waited for what was done alone and are taken in one step."""
_COMMANDS = frozenset(get_args(AnyCommand))


class _Owed(Enum):
    """What was heard, and is not finished."""

    NOTHING = auto()
    COMMANDS = auto()
    """Commands of clients alone: nobody is waiting to be told anything by them, except their answers."""
    ANYTHING = auto()


class PrimaryCore:
    """Lives for one epoch, from the promotion to `stop`; driven by the replica that was promoted."""

    def __init__(
        self,
        copy: LogCopy,
        own: Member,
        set_map: SetMap,
        map_revision: int,
        is_restarted: bool,
        settings: PrimarySettings,
        now: Now,
        factories: Sequence[TransactionObserverFactory] = (),
        figures: Figures | None = None,
        is_handed_over: bool = False,
        gone: GoneBefore = NOTHING_GONE,
    ) -> None:
        """Take over a copy of the log whose suffix is applied. `copy.retained` are frames kept for backups.

        `own`: this replica as the map names it; `is_restarted`: its memory is not that of the set's last reign (R12);
        `figures`: where to go on counting; `is_handed_over`: it takes up what the last primary told it (T8), before it begins;
        `gone`: what this epoch has ended in the state already.
        """
        self._own = own
        self._copy = copy
        self.epoch: Epoch = set_map.epoch
        tx_queues = TxQueues()
        own_factory = TxQueueObserverFactory(tx_queues, self._subscribed_brokers)
        observers = (own_factory, *factories)
        self.context = take_over(
            copy, self.epoch, reign_of(own.incarnation), tx_queues, observers, settings, now
        )
        if figures is not None:
            self.context.figures = figures
        self.context.figures.gone_before(gone)
        self._names_gone = gone.names
        self._gate = CommitGate()
        gathering = Gathering(settings.gathering_ms_max)
        self.streams = ClientStreams(self.context, self._gate, gathering)
        self._known_hosts = KnownHosts(self.streams)
        self._names = NameClaims(self.context, self._gate, own.incarnation)
        listener = PrimaryListener(self.context)
        copy.state.set_listener(listener)
        self._aftermath = Aftermath(self.context, listener, self.streams, self._names)
        self.attachments = Attachments(self.context, self.streams, self._aftermath)
        clients = Clients(self.context, self.streams, self._names)
        self.client_hearing = ClientHearing(
            self.context, self.streams, self.attachments, clients, self._aftermath
        )
        self.backups = Backups(self.context)
        self.membership = Membership(own, set_map, map_revision)
        self.membership.durable[own] = LogIndex(0)
        self._store = OwnStore(
            self.context, self.membership, lambda member: self.backups.of_member(member) is not None
        )
        self._map = MapKeeping(self.context, self.membership, self.backups, now)
        self._log = LogKeeping(self.context, self.membership, self._store, self.backups, gathering)
        self._backup_hearing = BackupHearing(
            self.context, self.membership, self.backups, self._map, self._log
        )
        self._housekeeping = Housekeeping(self.context, now)
        self._is_restarted = is_restarted
        assert not (is_restarted and is_handed_over), "a restarted replica has lost what it was told"
        self._is_handed_over = is_handed_over
        self._is_ready = False
        self.stopped: str = ""
        """Why this reign is over; "" while it is not."""
        self.disk_damage: str = ""
        """What was found wrong with the own disk, which its store may not know (R10)."""
        self._wakes_ms = 0
        """When it was last to be woken for what was too much for one go."""
        self._owed = _Owed.NOTHING
        """What was taken that the next `handle` has to finish."""
        self._alone = self.context.alone
        self.is_alone = False
        """It is amid something that nothing may come between, or about to leave, or has not heard all that came meanwhile."""
        self.is_leaving = False
        """Nothing more is heard before it hands over, or stays."""
        self._has_just_ended = False
        """Something was done alone until now: it leaves, and what is committed is answered, before more is begun."""
        self._was_part = False
        """It was one of rejects or dead letters that wait: these take turns with what is heard."""
        self._held_back: deque[AnyInput] = deque()
        """What came while something was done alone, in order; votes against a transaction before all else."""
        self._is_woken = False
        """A `Woken` is among it: another one would say no more, and would keep it from growing shorter."""

    # --- driving ---

    @property
    def is_serving(self) -> bool:
        """Whether the epoch's own record is committed."""
        return self._log.is_serving

    @property
    def committed_ms(self) -> int:
        """When its commit index moved last, by CLOCK_BOOTTIME; 0: not yet."""
        return self._log.committed_ms

    @property
    def waits_since_ms(self) -> int:
        """When the oldest record was appended that is not committed, by CLOCK_BOOTTIME; 0: all are."""
        return self._log.waits_since_ms

    @property
    def in_sync_reachable(self) -> int:
        """Members of the in-sync set that have a stream here, and this one: fewer than the minimum complete nothing."""
        return sum(
            entry == self._own or self.backups.of_member(entry) is not None
            for entry in self.membership.set_map.in_sync
        )

    def may_be_deposed(self, now: Now) -> bool:
        """Of one whose lease is over: whether somebody may have led since, of whom etcd may not know."""
        if len(self.membership.set_map.brokers) == 1:
            return False  # There is nobody else.
        return not (self.is_followed_by_all and self.backups.are_heard_lately(now.boottime_ms))

    @property
    def is_followed_by_all(self) -> bool:
        """Whether every member that an entry which may be in force has in sync subscribes to this epoch's log."""
        return all(
            entry == self._own or self.backups.of_member(entry) is not None
            for entry in self.membership.in_sync_perhaps()
        )

    @property
    def log_end(self) -> LogIndex:
        return self.context.writer.log.end

    @property
    def commit_index(self) -> LogIndex:
        return self.context.writer.log.commit_index

    def get_ready(self, handed: HandedOver | None = None) -> Iterator[int]:
        """Before it begins: go on with what was open and in hand in the last reign, if that was handed over, and find the queues
        that may end by themselves. In steps that say what they cost (`Pieces`); what the epoch's record does has been done.
        """
        assert self._is_handed_over == (handed is not None), "what was open is taken up or has been aborted"
        if handed is not None:
            yield from take_up(self.context, handed)
        yield from self.attachments.auto_deletion.begin()
        self._is_ready = True

    def begin(self, now: Now) -> list[AnyEffect]:
        """Fence the own store and append the epoch's first record."""
        assert self._is_ready, "what may end by itself is known"
        self._store.open()
        self.context.pieces.begin(self.context.expiry.look_through())
        self.context.pieces.begin(self._aftermath.look_through())
        self.context.pieces.begin_in_turn(self._housekeeping.look_after_prepared())
        self.context.pieces.go_on()
        self._log.begin(self._own.broker, self._is_restarted, self._is_handed_over)
        return self._finish(now)

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        owed, self._owed = self._owed, _Owed.NOTHING
        was_alone = self.is_alone
        self._hear(given, now)
        if not (was_alone or self.is_alone or self.stopped):
            if owed is _Owed.NOTHING and _is_acknowledgement(given) and self._log.waits_for_others:
                # Nothing is completed by it, and nothing could be done that was not done before.
                return self._take_effects()
            is_more_than_commands = owed is _Owed.ANYTHING or not _is_commands(given)
            if not is_more_than_commands and not self.streams.has_answers and self._log.gathers(now):
                # What they say is said when their frame is committed, and that leaves with who comes back next.
                self._owed = _Owed.COMMANDS
                return self._take_effects()
        return self._finish(now)

    def take(self, given: AnyInput, now: Now) -> None:
        """Take one input without saying or writing anything: the next `handle` does that for both."""
        if self._owed is not _Owed.ANYTHING:
            self._owed = _Owed.COMMANDS if _is_commands(given) else _Owed.ANYTHING
        self._hear(given, now)

    def _hear(self, given: AnyInput, now: Now) -> None:
        if self.stopped:
            return
        self.context.now = now
        self.context.work = 0
        try:
            if self.is_alone:
                self._hear_in_turn(given, now)
            else:
                self._take(given, now)
                if self._alone.works:
                    self._stay_alone()
                    self._take_held_back(now)
                elif self.context.work > WORK_IN_ONE:
                    self._note_alone()
        except DiskDamaged as damaged:
            self.disk_damage = damaged.reason
            self._note("damaged", damaged.reason)
            self._stop(f"the own disk is damaged: {damaged.reason}")
        except ReignOver as over:
            self._stop(over.reason)

    def _hear_in_turn(self, given: AnyInput, now: Now) -> None:
        """Something is done alone, or was a moment ago. Whoever asks whether this primary lives hears so meanwhile, who leads in
        its place ends it at once, and who has left follows it no more: nothing is handed over to him, and no key restored on his
        word. What is durable is known at once, so that what was done before is answered as soon as nothing is.
        """
        match given:
            case LeaseExtended() | LeaseLost() | MapSeen() | StoreSaid(answer=Appended()):
                self._take(given, now)
            case BackupSaid(message=Acknowledge()) | BackupStreamClosed() if (
                given.stream in self.backups.by_stream
            ):
                self._take(given, now)
            case BackupSaid(message=Refuse()) if given.stream in self.backups.by_stream:
                self._held_back.appendleft(given)
                self._hear_refusals(now)
            case ClientSaid() if self.client_hearing.heard_amid(given):
                pass
            case Tick() if self._alone.works:
                self._backup_hearing.tick(now)
            case Woken() if self._alone.works:
                self._alone.go_on()
                self._has_just_ended = not self._alone.works
            case Woken() if self._has_just_ended and not self._was_part and self._are_parts_waiting:
                self._has_just_ended = False
            case Woken() | Tick():
                self._has_just_ended = self._was_part = False
                if not (self._is_woken and isinstance(given, Woken)):
                    self._is_woken |= isinstance(given, Woken)
                    self._held_back.append(given)
                self._take_held_back(now)
            case _:
                self._held_back.append(given)
                if not self._has_just_ended:
                    self._take_held_back(now)

    @property
    def _are_parts_waiting(self) -> bool:
        return bool(self.context.letters.ready) or self.client_hearing.clients.rejects.are_ready

    def _hear_refusals(self, now: Now) -> None:
        """They stand before all that waits: of a transaction that is open when its refusal comes no commit is heard first."""
        while (
            self._held_back and _is_refusal(self._held_back[0]) and not (self._alone.works or self.is_leaving)
        ):
            self._take(self._held_back.popleft(), now)
            self._stay_alone()

    def _take_held_back(self, now: Now) -> None:
        """As much as leaves others their turn, until something is done alone again."""
        context, taken, works = self.context, 0, self._alone.works
        self._hear_refusals(now)
        if not (works or self.is_leaving):
            self.client_hearing.go_on_with_rests()
            self._stay_alone()
            context.work = 0  # Whoever said much takes nothing of what others may say in this step.
        while not (works or self.is_leaving):
            self.client_hearing.go_on_cut_off()
            self._stay_alone()
            if works or not self._held_back or taken >= TAKEN_IN_ONE or context.work > WORK_IN_ONE:
                break
            held_back = self._held_back.popleft()
            taken += _messages_in(held_back)
            self._is_woken &= not isinstance(held_back, Woken)
            self._take(held_back, now)
            self._stay_alone()
            if self.stopped:
                break
        self._note_alone()
        if not works:
            self._wake_for_more(now)  # What waited for more than one turn was not asked for meanwhile.

    def _stay_alone(self) -> None:
        """Something may have been begun that nothing may come between: what it leaves to be done belongs to it."""
        while self._alone.works:
            self._held_back.extendleft(reversed(self.client_hearing.left))
            self.client_hearing.left.clear()
            self._alone.do(self._end_alone())
            if self._alone.works:
                break
            self.client_hearing.go_on_cut_off()
        self._note_alone()

    def _note_alone(self) -> None:
        is_more = self._alone.works or self._held_back or self.client_hearing.has_more
        self.is_alone = self.is_leaving or self._has_just_ended or bool(is_more)

    def _end_alone(self) -> Iterator[int]:
        yield from self.context.state.finish_in_steps()
        yield from self._aftermath.settle_in_steps()
        self.context.writer.log.end_command(self.context.settings.frame_bytes_max)

    def stop(self, reason: str) -> list[AnyEffect]:
        """End this reign: nothing is said any more but that."""
        if not self.stopped:
            self._stop(reason)
        return self._take_effects()

    def prepare_to_leave(self, now: Now) -> list[AnyEffect]:
        """Before it hands over: what clients take for ended then ends, and all of the log leaves, in pieces; it is amid nothing.
        What is said from now on is not heard, unless it has to `stay`.
        """
        if self.stopped:
            return []
        self.context.now = now
        self.is_leaving = self.is_alone = True
        if self.is_serving:
            self._alone.do(self._end_unfit())
        self.context.effects += self._alone.ask(self.context.state.set_name, now)
        return self._take_effects()

    def _end_unfit(self) -> Iterator[int]:
        yield from roll_back_unfit(self.context, self.attachments)
        yield from self._end_alone()
        yield from self._log.cut_in_steps()

    @property
    def is_amid(self) -> bool:
        """Something is being done that nothing may come between."""
        return bool(self._alone.works)

    @property
    def may_leave(self) -> bool:
        """Whether all of that is done."""
        return self.is_leaving and not self._alone.works

    def stay(self, now: Now) -> list[AnyEffect]:
        """It does not hand over: whoever was to lead cannot."""
        self.is_leaving = False
        return self.handle(Woken(self.context.state.set_name), now)

    def hand_over(self, to: BrokerId, now: Now, is_chosen: bool = False) -> list[AnyEffect]:
        """End this reign, which has been prepared for that, for another broker. It is told what is in no log, behind all of it,
        when that is gathered (`go_on_handing_over`). Backups stay subscribed.

        `is_chosen`: somebody said that `to` should lead.
        """
        if self.stopped:
            return []
        assert not self._alone.works, "whatever it was amid is done"
        self.context.now = now
        self._log.cut_all(now)
        self._end(f"handed over to {to}")
        self.context.pieces.give_up()
        self.context.pieces.begin(self._say_last_word(to, is_chosen))
        return self.go_on_handing_over(now)

    def go_on_handing_over(self, now: Now) -> list[AnyEffect]:
        """A piece of what is left of that: another turn is asked for until it `has_handed_over`."""
        context = self.context
        self.backups.reassure(now.boottime_ms)
        context.pieces.go_on()
        context.effects += context.pieces.ask(context.state.set_name, now)
        return self._take_effects()

    @property
    def has_handed_over(self) -> bool:
        """Whether everything is said to whom it was handed over."""
        return bool(self.stopped) and not self.context.pieces.works

    def _say_last_word(self, to: BrokerId, is_chosen: bool) -> Iterator[int]:
        handed = yield from handed_over(self.context, self.attachments, to, is_chosen)
        yield from self.backups.hand_over(handed)

    def take_apart(self) -> Iterator[int]:
        """This reign is over and nobody has its memory any more: leave nothing of it, in steps that say what they cost
        (`taking_apart`).
        """
        context = self.context
        for part in (self._copy, context.dispatch, context.expiry, self.streams):
            yield from part.take_apart()
        yield from self.client_hearing.take_apart()
        yield from emptied(self._held_back, _messages_in)

    def _stop(self, reason: str) -> None:
        self._end(reason)
        for stream in sorted(self.backups.by_stream):
            self.backups.close(stream)

    def _end(self, reason: str) -> None:
        self.stopped = reason
        self._note("stopped", reason)
        self.client_hearing.turn_away_early(reason)
        self._turn_away_held_back(reason)
        self.streams.end_all(ErrorCode.NOT_PRIMARY, reason)
        self.context.state.set_listener(None)

    def _turn_away_held_back(self, reason: str) -> None:
        """Nobody waits for an answer that does not come."""
        waiting = self.client_hearing.resting
        for held_back in self._held_back:
            if isinstance(held_back, ClientSaid):
                waiting.append(held_back.stream)
            elif isinstance(held_back, BackupSaid) and held_back.stream not in self.backups.by_stream:
                self.backups.turn_away(held_back.stream, reason)
        for stream in dict.fromkeys(waiting):
            if stream not in self.streams.by_number:
                self.streams.turn_away(stream, ErrorCode.NOT_PRIMARY, reason)

    def _take(self, given: AnyInput, now: Now) -> None:
        match given:
            case ClientSaid():
                if self.is_serving:
                    self.client_hearing.said(given)
                else:
                    self.client_hearing.said_early(given)
            case ClientStreamClosed():
                self.client_hearing.closed(given.stream)
            case ClientStreamFull() | ClientStreamDrained():
                self.attachments.pace(given.stream, isinstance(given, ClientStreamFull))
            case BackupSaid():
                self._backup_hearing.said(given, now)
            case BackupStreamClosed():
                self._backup_hearing.closed(given.stream)
            case StoreSaid() | StoreConnected() | StoreLost():
                if isinstance(given, StoreLost):
                    self.context.read_back.lost()
                self._store.handle(given, now)
            case MessagesRead():
                unread_since_ms = self.context.read_back.answered(given, now.boottime_ms)
                if unread_since_ms:
                    self._store.cannot_read(unread_since_ms, now)
                # Whoever waited for the same bodies has them now, and is answered with this input.
                self.context.effects += self.context.read_back.requests(now.boottime_ms)
            case LeaseExtended():
                self.streams.serve_until_ms = given.serve_until_ms
            case LeaseLost():
                self.streams.serve_until_ms = 0
            case MapSeen():
                self._map.map_seen(given)
            case PresencesSeen():
                self._map.presences_seen(given)
            case CandidatesSeen():
                self._known_hosts.changed()
                self._known_hosts.tell()
                self._wake_for_more(now)
            case SwapAnswered():
                self._map.answered(given, now)
            case NameClaimed():
                self.client_hearing.name_claimed(given)
            case NamesSeen():
                self._names.seen(given)
            case DecisionHeard():
                if self.is_serving:
                    decisions.heard(self.context, given)
            case ParticipantsListed():
                if self.is_serving:
                    self._housekeeping.forgetting.heard(given)
            case Tick():
                self._tick(now)
            case Woken():
                self._go_on(now)
            case _:
                pass

    def _tick(self, now: Now) -> None:
        self._backup_hearing.tick(now)
        # Somebody else may have cleared what a newcomer waits for.
        self._backup_hearing.go_on(now)
        self._store.tick(now)
        self._log.hurry()
        if self.is_serving:
            self._housekeeping.tick(now)
            if self._alone.works:
                return
            self._names.tick(now)
            # What a transaction has given back whose time is over may be a dead letter of a queue that is about to end.
            self._aftermath.settle()
            self.attachments.look()
            self.attachments.end_timed_out()
            if self._alone.works:
                return
            self.attachments.close_silent()
            self._known_hosts.tell()
            self._wake_for_more(now)
        self.context.effects += self.context.pieces.ask(self.context.state.set_name, now)

    def _go_on(self, now: Now) -> None:
        """What is too much for one go goes on when others had their turn, as long as their commands are taken, too."""
        context = self.context
        context.pieces.go_on()
        self._backup_hearing.go_on(now)
        if self.is_serving and context.writer.log.uncommitted_bytes <= context.settings.uncommitted_bytes_max:
            self._housekeeping.go_on(now)
            if not self._alone.works:
                self.attachments.end_timed_out()
            if self._alone.works:
                return
            self.attachments.close_silent()
            self.client_hearing.purge()
            if self._alone.works:
                return
            self._known_hosts.tell()
            self.client_hearing.select()
            self._wake_for_more(now)
        context.effects += context.pieces.ask(context.state.set_name, now)

    def _wake_for_more(self, now: Now) -> None:
        is_behind = (
            self.context.expiry.is_due(now.wall_ms)
            or self._housekeeping.are_late
            or self.context.dispatch.is_behind
            or self.attachments.is_behind
            or self.client_hearing.clients.purges.are_waiting
            or self._known_hosts.are_waiting
            or self.client_hearing.clients.selections.are_waiting
        )
        if is_behind and self._wakes_ms <= now.boottime_ms:
            self._wakes_ms = now.boottime_ms + 1
            self.context.effects.append(WakeAt(self.context.state.set_name, self._wakes_ms))

    def _finish(self, now: Now) -> list[AnyEffect]:
        """After every input: settle what it caused, see what is committed, write, say what may be said (R6).

        Frames leave behind the decision who is answered, for they may wait for those, and before anything is delivered.
        """
        context, works = self.context, self._alone.works
        is_free = not (self.stopped or works or self.is_leaving or self._has_just_ended)
        if is_free:
            self.client_hearing.bodies_came()
            if works:
                self._stay_alone()
                self._was_part = bool(works)
        if not (self.stopped or works):
            self._aftermath.settle()
            if context.letters.ready and is_free:
                move_waiting(context)
                if not works:
                    self._aftermath.settle()
            if works:
                self._stay_alone()
                self._was_part = bool(works)
            has_lease, was_returning = self.streams.may_speak, context.dispatch.is_returning
            self._map.plan(now, has_lease)
            if self._log.commit(now):
                self._begin_serving()
                self._stay_alone()
            elif was_returning:
                context.dispatch.return_committed()
        if not (self.stopped or works):
            is_behind = context.dispatch.is_returning
            may_speak = has_lease and self._log.is_serving
            if may_speak:
                is_behind |= self._gate.open_to(context.writer.log.commit_index)
            self._log.cut_due(now, self._gate.waited_for)
            if may_speak:
                deliver(context, self.streams)
                self.streams.flush_answers()
                if context.dispatch.is_behind:
                    self._wake_for_more(now)
            else:
                # Nobody is to be woken for it: it goes on with whatever says that this process may speak again.
                context.dispatch.is_behind = False
            if is_behind:
                context.effects += self._alone.ask(context.state.set_name, now)
            self._mind_bodies(now)
            clearing = context.state.clearing
            if clearing.queues and (turns := clearing.turns()) is not None:
                context.pieces.begin(turns)
        if context.work > WORK_IN_ONE:
            self._note_alone()
        if self.is_alone and not (self.stopped or self.may_leave):
            context.effects += self._alone.ask(context.state.set_name, now)
        if context.pieces.works and not (self.stopped or works):
            context.effects += context.pieces.ask(context.state.set_name, now)
        return self._take_effects()

    def _begin_serving(self) -> None:
        self._note("serving", f"epoch {self.epoch}, record {self._log.epoch_index}")
        if self._names_gone:
            self.context.pieces.begin(self._names.release_in_steps(self._names_gone))
            self.context.pieces.go_on()
            self.context.effects += self.context.pieces.ask(self.context.state.set_name, self.context.now)
        self.client_hearing.take_early()

    def _mind_bodies(self, now: Now) -> None:
        """Ask for bodies that somebody waits for; let others go, which are read back from what is durable here only."""
        context = self.context
        context.effects += context.read_back.requests(now.boottime_ms)
        if context.bodies.trim(self.membership.durable[self._own]):
            context.effects += context.pieces.ask(context.state.set_name, now, is_more=True)

    def _subscribed_brokers(self) -> list[BrokerId]:
        return self.backups.brokers()

    def _take_effects(self) -> list[AnyEffect]:
        effects, self.context.effects = self.context.effects, []
        return effects

    def _note(self, event: str, details: str) -> None:
        self.context.effects.append(Note(self.context.state.set_name, event, details))


def _is_commands(given: AnyInput) -> bool:
    return isinstance(given, ClientSaid) and _COMMANDS.issuperset(map(type, given.messages))


def _messages_in(given: AnyInput) -> int:
    return 1 + (len(given.messages) if isinstance(given, ClientSaid) else 0)


def _is_refusal(given: AnyInput) -> bool:
    return isinstance(given, BackupSaid) and isinstance(given.message, Refuse)


def _is_acknowledgement(given: AnyInput) -> bool:
    match given:
        case BackupSaid(message=Acknowledge()) | StoreSaid(answer=Appended()):
            return True
        case _:
            return False
