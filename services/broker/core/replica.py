"""One replica of one resource set in a broker process: which role it has, and how it passes from one to the other.

Law: the map decides. A process leads only in an epoch that it began itself by an etcd transaction it can confirm as its own (R5);
a replica that led and stopped has lost its memory, takes a new incarnation, and comes back as a restarted one (R12). It serves
only while its set's lease key lives under a lease that was renewed in time (R6).

    following --PromoteSelf confirmed--> leading --stopped--> following (with a new incarnation)
    leading --hand over--> parting --the backups have heard it--> following (with a new incarnation)
    any --a core has raised--> resting --> following (with a new incarnation)
"""

from itertools import count

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.effects import (
    AnyEffect,
    CloseBackupStream,
    CloseClientStream,
    DropLeaseKey,
    EndBackupStreams,
    EndClientStreams,
    Note,
    PutPresence,
    TakeApart,
    TellBackup,
    TellClient,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.etcd_comparison import mark_set_back
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.inputs import (
    AcceptDataLoss,
    AnyInput,
    BackupSaid,
    ClientSaid,
    HandOver,
    LeaseExtended,
    LeaseKeySeen,
    LeaseLost,
    MapSeen,
    PresencesSeen,
    PrimarySaid,
    StoreConnected,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
    Woken,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import Frames, HandedOver, SubscriptionRefused
from lockstep.core.server_messages import AttachRefused
from lockstep.core.store_protocol import Appended, SetOpened
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import BackupState, FoundDamage
from services.backup.core.faults import Faults
from services.broker.core.candidate import Candidate, obstacle
from services.broker.core.parting import Parting
from services.broker.core.promotion import Candidacy
from services.broker.core.reign_watch import ReignWatch
from services.broker.core.set_facts import SetFacts
from services.broker.core.set_lease import SetLease
from services.broker.core.settings import ReplicaSettings
from services.broker.core.taking_over import TakingOver
from services.primary.core.figures import Figures
from services.primary.core.handing_on import fits
from services.primary.core.observers import TransactionObserverFactory
from services.primary.core.primary import PrimaryCore

_GATHERED = ClientSaid | BackupSaid | StoreSaid
"""What comes often, and decides nothing about who leads, unless a store was opened."""
_ROUTINE_OF_PRIMARY = {ClientSaid, BackupSaid, Appended, Woken}
_ROUTINE_OF_BACKUP = {Frames, Appended, Woken}
"""Inputs, or what is said in them."""
REPLICA_REQUESTS = 1_000_000_000
"""Requests of the replica itself have numbers from here on, below those of the primary's own swaps, which its epoch gives."""


class Replica:
    """Lives as long as the broker process serves the set; driven by the driver."""

    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: ReplicaSettings
    ) -> None:
        """`incarnation`: the process's; the replica's own is derived from it and changes whenever its memory is lost."""
        self.set_name = set_name
        self.broker = broker
        self.settings = settings
        self._process = incarnation
        self._memory_number = 0
        self._facts = SetFacts(set_name)
        next_request = count(REPLICA_REQUESTS + 1).__next__
        self._lease = SetLease(set_name, settings.promotion_retry_ms, next_request)
        self._candidate = Candidate(set_name, broker, self._facts, self._lease, settings, next_request)
        self._dropped_key_ms = 0
        self._marked_ms = -1000
        self._is_store_connected = False
        self._map_due = False
        self._found_damage: FoundDamage | None = None
        """The own disk lost what was acknowledged (R10), and may not know: it is damaged for as long as this process lives."""
        self.faults = Faults()
        self.backup: BackupCore | None = None
        self.primary: PrimaryCore | None = None
        self.figures = Figures()
        self.factories: tuple[TransactionObserverFactory, ...] = ()
        """Of observers that look on beside the tx-queues'."""
        self.reigns = ReignWatch()
        self._parting: Parting | None = None
        self._leaving: PrimaryCore | None = None
        """It has handed its set over, and its last word is not said yet."""
        self._put_off: HandOver | None = None
        """The primary is amid something, and hands over behind that."""
        self._taking_over: TakingOver | None = None
        self._handed: HandedOver | None = None
        """What the last primary told its successor."""
        self.is_chosen = False
        """It leads because somebody said that it should, and not only because others could not."""
        self._effects: list[AnyEffect] = []

    @property
    def set_map(self) -> SetMap | None:
        """The set's entry as this replica knows it."""
        return self._facts.set_map

    @property
    def incarnation(self) -> Incarnation:
        """Names this replica's present memory."""
        return Incarnation(f"{self._process}.{self._memory_number}")

    @property
    def is_serving(self) -> bool:
        return self.primary is not None and not self.primary.stopped and self.primary.is_serving

    @property
    def holds_back(self) -> bool:
        """What clients and backups say now is heard later: it is amid something that nothing may come between."""
        return self.primary is not None and self.primary.is_alone

    @property
    def is_half_done(self) -> bool:
        """Whether of what is applied as a whole only a part is: the state is nobody's to see."""
        if self.primary is not None:
            return bool(self.primary.context.alone.works)
        copy = self.backup.copy if self.backup is not None else None
        return copy is not None and copy.is_amid_frame

    @property
    def is_ahead_of_etcd(self) -> bool:
        """Its disk has seen more than etcd shows, or another generation: it starts nothing (R1)."""
        opened = self.backup.opened if self.backup is not None else None
        return opened is not None and self._facts.is_ahead_of_etcd(opened)

    @property
    def is_disk_unusable(self) -> bool:
        """Its disk is damaged, though all of it is whole by its checksums."""
        backup = self.backup
        opened = backup.opened if backup is not None and backup.state is BackupState.DAMAGED else None
        return opened is not None and opened.is_unusable

    def damage_found(self, disk: DiskId) -> str:
        """What is wrong with that disk, as was found here or told by a primary, and its store may not know; "": nothing."""
        found = self._found_damage
        return found.reason if found is not None and found.disk == disk else ""

    @property
    def has_compared(self) -> bool:
        """Its disk was compared with etcd, and knew nothing that etcd lacks."""
        return self._facts.has_compared

    @property
    def obstacle_to_accepted_loss(self) -> str:
        """Why this replica could not be made the set by an operator (R7), as far as is known; "": it could, or it leads."""
        if self.primary is not None:
            return ""
        return obstacle(self.broker, self.set_map, self.backup)

    @property
    def log_end(self) -> LogIndex:
        """Last index in memory; 0 while nothing is loaded."""
        if self.primary is not None:
            return self.primary.log_end
        copy = self.backup.copy if self.backup is not None else None
        return copy.log_end if copy is not None else LogIndex(0)

    @property
    def commit_index(self) -> LogIndex:
        """Last index that it knows is committed; 0 while nothing is loaded."""
        if self.primary is not None:
            return self.primary.commit_index
        copy = self.backup.copy if self.backup is not None else None
        return copy.commit_index if copy is not None else LogIndex(0)

    @property
    def place(self) -> tuple[Epoch, LogIndex]:
        """The epoch that it leads or follows, 0: none, and `log_end`; for the log."""
        role = self.primary or self.backup
        return (role.epoch if role is not None else Epoch(0)), self.log_end

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order. `more_follow`: what it causes may wait for the next input."""
        if more_follow and isinstance(given, _GATHERED) and self.is_serving and not _is_opening(given):
            assert self.primary is not None, "who serves leads"
            self.primary.take(given, now)
            return []
        if self._is_routine(given):
            return self._handle_routine(given, now)
        self._note_facts(given)
        # A reign may have ended with the input before this one, which was only taken.
        is_heard = self.primary is not None and not self.primary.stopped
        if self.primary is not None and (not isinstance(given, LeaseExtended) or self._lease.is_key_held):
            self._effects += self.primary.handle(given, now)
        if not is_heard and isinstance(given, ClientSaid):
            self._turn_away(given)
        elif not is_heard and isinstance(given, BackupSaid):
            self._refuse_backup(given)
        if self._parting is not None:
            self._parting.take(given)
        if self.backup is not None:
            self._effects += self.backup.handle(given, now)
            self._found_damage = self.backup.found_damage
        self._decide(given, now)
        if isinstance(given, PrimarySaid):
            self.reigns.heard(now)
        elif isinstance(given, Tick):
            self.reigns.look(self.primary.epoch if self.primary and self.is_serving else None, now)
        return self._take_effects()

    def end_by_fault(self, error: Exception, now: Now) -> list[AnyEffect]:
        """`handle` has raised: whatever role this replica has is over, as if its process had died; it begins anew from its disk.
        Returns effects to perform in order.
        """
        judged, backup, taking = self._facts.judged, self.backup, self._taking_over
        found = self.faults.found(error, judged.disk if judged is not None else None, now)
        self._found_damage = found or self._found_damage
        self._effects = [EndClientStreams(self.set_name), EndBackupStreams(self.set_name)]
        if backup is not None:
            self._effects += backup.end_by_fault()
        left = self.primary or ((taking.primary or taking.copy) if taking is not None else None)
        if left is not None:
            self._take_apart(left)
        self._let_go_of_leaving()
        self.backup = self.primary = self._taking_over = self._parting = self._put_off = None
        self._candidate.forget()
        self._candidate.wait(now, self.settings.promotion_retry_ms)
        self._free_key()
        return self._take_effects()

    def _is_routine(self, given: AnyInput) -> bool:
        """What comes often while this replica leads under its key, or follows a primary whose key it sees, and is no fact.

        Nothing follows from it about who leads that a tick does not look at, unless the role ends with it.
        """
        if self._parting is not None or self._put_off is not None:
            return False
        kind: type = type(given.answer) if isinstance(given, StoreSaid) else type(given)
        if self.primary is not None:
            return kind in _ROUTINE_OF_PRIMARY and not self.primary.stopped and self._lease.is_key_held
        if isinstance(given, PrimarySaid):
            kind = type(given.message)
        return (
            kind in _ROUTINE_OF_BACKUP
            and self.backup is not None
            and self.backup.state is BackupState.FOLLOWING
            and bool(self._facts.lease_holder)
        )

    def _handle_routine(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        if self.primary is not None:
            effects, goes_on = self.primary.handle(given, now), not self.primary.stopped
        else:
            assert self.backup is not None, "who follows has a backup"
            effects = self.backup.handle(given, now)
            goes_on = self.backup.state is BackupState.FOLLOWING
            self._found_damage = self.backup.found_damage
            if isinstance(given, PrimarySaid):
                self.reigns.heard(now)
        if goes_on:
            return effects
        self._effects += effects
        self._decide(given, now)
        return self._take_effects()

    def _take_effects(self) -> list[AnyEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _note_facts(self, given: AnyInput) -> None:
        match given:
            case MapSeen():
                self._map_due = self._facts.map_seen(given) or self._map_due
            case LeaseKeySeen():
                self._facts.lease_key_seen(given)
            case PresencesSeen():
                before = self._facts.presences.get(self.broker)
                self._facts.presences_seen(given)
                presence = self._facts.presences.get(self.broker)
                if presence != before and (presence is None or presence[0] != self.incarnation):
                    # Somebody has changed it under the lease that is held, or an etcd that was set back has it as it was.
                    self._put_presence()
            case LeaseExtended():
                if self._lease.extended(given):
                    self._put_presence()
            case LeaseLost():
                self._lease.lost()
            case StoreSaid(answer=SetOpened() as opened):
                self._facts.opened(opened)
            case StoreConnected():
                self._is_store_connected = True
            case StoreLost():
                self._is_store_connected = False
                self._facts.store_lost()
            case AcceptDataLoss():
                if not self._candidate.accept_data_loss():
                    self._note("data loss refused", f"the set is led by {self._facts.lease_holder}")
            case _:
                pass

    def _put_presence(self) -> None:
        if self._lease.lease_id:
            self._effects.append(PutPresence(self.set_name, self.incarnation))

    # --- decisions ---

    def _decide(self, given: AnyInput, now: Now) -> None:
        if isinstance(given, HandOver) and given.to != self.broker:
            self._put_off = given
        if self._put_off is not None:
            self._go_on_leaving(self._put_off, now)
        if isinstance(given, PrimarySaid) and isinstance(given.message, HandedOver):
            self._let_stand(given.message, now)
        if isinstance(given, SwapAnswered):
            if self._lease.answered(given.request, given.verdict, now):
                self._extend_primary(now)
            else:
                self._effects += self._candidate.answered(given, now)
        if self._parting is not None:
            if self._leaving is not None and isinstance(given, Woken | Tick):
                # A turn may come before its time, and is not asked for again then.
                self._effects += self._leaving.go_on_handing_over(now)
                self._end_last_word(self._parting, now)
            if not self._parting.is_over(now):
                return
            self._part(self._parting)
        if self.primary is None and self._taking_over is None:
            won = self._candidate.won()
            if won is not None:
                self._lead(won, now)
        elif self._taking_over is not None:
            if isinstance(given, Woken):
                self._taking_over.pieces.go_on()
            self._take_over(self._taking_over, now)
        if self._taking_over is not None:
            return
        if self.primary is not None and self.primary.stopped:
            self._fall_back(now)
        if self.primary is not None:
            self._authorise(now)
        else:
            if not self.faults.is_resting(now):
                self._follow(now)
            self._effects += self._candidate.stand(self.backup, self.incarnation, now)
            self._drop_stray_key(now)
        self._remember_map()

    def _go_on_leaving(self, given: HandOver, now: Now) -> None:
        """Hand over, when the primary is amid nothing and has ended what cannot go on elsewhere; unless nobody can lead."""
        primary = self.primary
        if primary is None or primary.stopped:
            self._put_off = None
        elif why := self._obstacle_to_hand_over(primary, given.to):
            self._put_off = None
            self._note("hand over refused", why)
            if primary.is_leaving:
                self._effects += primary.stay(now)
        elif primary.is_leaving or not primary.is_amid:
            if not primary.is_leaving:
                self._effects += primary.prepare_to_leave(now)
            if primary.may_leave:
                self._put_off = None
                self._hand_over(primary, given, now)

    def _obstacle_to_hand_over(self, primary: PrimaryCore, to: BrokerId) -> str:
        """Why the set cannot be handed over to that broker; "": it can."""
        entry = primary.membership.set_map.member(to)
        if entry is None or primary.backups.of_member(entry) is None:
            return f"{to} is not in sync"
        if self._facts.presences.get(to, ("",))[0] != entry.incarnation:
            # A backup alone, or a broker that has lost etcd: it would not stand, and what is in memory alone would be lost.
            return f"{to} is not there to be promoted"
        return ""

    def _hand_over(self, primary: PrimaryCore, given: HandOver, now: Now) -> None:
        self.primary = None
        self._leaving = primary
        self._parting = Parting(primary.epoch, primary.backups.by_stream, now)
        self._effects += primary.hand_over(given.to, now, given.is_chosen)
        self._end_last_word(self._parting, now)
        self._candidate.forget()
        self._candidate.wait(now, self.settings.hand_over_wait_ms)

    def _end_last_word(self, parting: Parting, now: Now) -> None:
        """Once it is said, whoever was told is waited for, and nobody has that primary's memory any more."""
        if self._leaving is not None and self._leaving.has_handed_over:
            parting.told(self.settings.parting_ms, now)
            self._candidate.wait(now, self.settings.hand_over_wait_ms)
            self._let_go_of_leaving()

    def _let_stand(self, handed: HandedOver, now: Now) -> None:
        """The primary has stopped for another broker, which is to be first, or for this one; either may be promoted."""
        if self.set_map is None or handed.epoch != self.set_map.epoch:
            return
        self._handed = handed
        if handed.to == self.broker:
            self._candidate.go_first()
        else:
            self._candidate.wait(now, self.settings.hand_over_wait_ms)

    def _fall_back(self, now: Now) -> None:
        """This reign is over: what memory holds may not be what the set has. Begin again from disk as a restarted replica."""
        if self.primary is not None and self.primary.disk_damage:
            self._found_damage = FoundDamage(self.primary.membership.own.disk, self.primary.disk_damage)
        taking = self._taking_over
        left = self.primary or ((taking.primary or taking.copy) if taking is not None else None)
        if left is not None:
            self._take_apart(left)
        self.primary = self._taking_over = None
        self._candidate.forget()
        self._candidate.wait(now, self.settings.promotion_retry_ms)
        self._free_key()

    def _take_apart(self, left: PrimaryCore | LogCopy) -> None:
        """Its memory is nobody's any more."""
        self._effects.append(TakeApart(self.set_name, left.take_apart()))

    def _let_go_of_leaving(self) -> None:
        if self._leaving is not None:
            self._take_apart(self._leaving)
            self._leaving = None

    def _part(self, parting: Parting) -> None:
        """Who followed has heard of the hand-over, or had time enough."""
        self._parting = None
        self._let_go_of_leaving()
        for stream in sorted(parting.streams):
            self._effects.append(CloseBackupStream(self.set_name, stream))
        self._free_key()

    def _free_key(self) -> None:
        """Whoever may be promoted now can be, with what this replica had said before."""
        self._effects.append(DropLeaseKey(self.set_name, self.incarnation))
        self._lease.give_up()
        self._take_new_name()

    def _take_new_name(self) -> None:
        """The map may still name the memory that is gone: nobody may take this replica for it (R5, R12)."""
        self._memory_number += 1
        self._handed = None
        self._put_presence()
        self._map_due = True

    # --- following ---

    def _follow(self, now: Now) -> None:
        """Have a backup core for the epoch and primary that the map names."""
        set_map = self.set_map
        if set_map is None:
            if self.backup is not None:
                self._effects += [*self.backup.end(), *self.backup.drop_memory()]
                self.backup = None
            return
        if self.backup is not None and self.backup.has_lost_memory:
            self._effects += [*self.backup.end(), *self.backup.drop_memory()]
            self.backup = None
            self._take_new_name()
        # What is being loaded serves the next epoch as well, and a big disk is not to be begun anew for each.
        is_loading = self.backup is not None and self.backup.state is BackupState.LOADING
        if self.backup is None or (self.backup.epoch != set_map.epoch and self._map_due and not is_loading):
            self._begin_following(set_map, now)
        self._map_due = self._map_due and is_loading
        if self.backup is None:
            return
        if fence := self._candidate.fence_to_open(self.backup):
            self._begin_following(set_map, now, fence)
        self._facts.judge(self.backup.opened, self.backup.state is BackupState.FOLLOWING)
        if self._facts.is_knowledge_at_stake():
            self._mark_set_back(now)
        if self.backup.state is BackupState.DAMAGED:
            self._leave_damaged(set_map, self.backup)

    def _mark_set_back(self, now: Now) -> None:
        """Everybody is to know, also when etcd's revision has passed what this disk remembers (R1)."""
        opened = self._facts.judged
        assert opened is not None, "somebody knows more"
        if not self._facts.is_set_back and now.boottime_ms - self._marked_ms >= 1000:
            self._marked_ms = now.boottime_ms
            lacking, generation = self._facts.lacking(opened), self._facts.generation
            self._effects.append(mark_set_back(self.set_name, opened.disk, lacking, generation))

    def _begin_following(self, set_map: SetMap, now: Now, fence: Epoch = Epoch(0)) -> None:
        """`fence`: the store has seen this epoch, above the map's; it is opened to stand, and nobody is followed."""
        copy, is_whole, stream = None, False, self._process_stream()
        if self.backup is not None:
            self._effects += self.backup.end()
            if self.backup.copy is not None:
                copy, is_whole = self.backup.copy, self.backup.can_stand_unrestarted
            stream = self.backup.stream
        primary = set_map.primary if set_map.primary not in ("", self.broker) else None
        self.backup = BackupCore(
            self.set_name,
            self.broker,
            self.incarnation,
            fence or set_map.epoch,
            primary if not fence else None,
            copy,
            is_whole,
            stream,
            self.settings.backup,
            self._facts.standing,
            self._found_damage,
        )
        if self._is_store_connected:
            self._effects += self.backup.begin(now)

    def _process_stream(self) -> int:
        """Subscription streams are numbered within the process; every memory of this replica has a range of its own."""
        return self._memory_number * 1_000_000

    def _leave_damaged(self, set_map: SetMap, backup: BackupCore) -> None:
        """R10: a damaged disk is set aside when nobody counts on it any more; the last member never leaves, unless by R7. Nor
        does one that knows of what etcd lacks.
        """
        assert backup.opened is not None
        if set_map.names_disk(backup.opened.disk) and self._candidate.takes_damage():
            self._effects += backup.accept_damage()
            self._found_damage = None
        elif not self._facts.is_knowledge_at_stake() and backup.may_set_aside(
            set_map, self._facts.lease_holder
        ):
            self._effects += backup.set_aside()

    def _drop_stray_key(self, now: Now) -> None:
        """A lease key of this process that nobody serves under keeps everybody from being promoted; also in an etcd that was set
        back, where nobody is to be before all were told.
        """
        if self._facts.is_set_back_untold:
            return
        holder = self._facts.lease_holder
        is_asking = self._candidate.asked is not None
        if holder is None or is_asking or not holder.startswith(f"{self._process}."):
            return
        if now.boottime_ms - self._dropped_key_ms >= 1000:
            self._dropped_key_ms = now.boottime_ms
            self._effects.append(DropLeaseKey(self.set_name, holder))

    def _remember_map(self) -> None:
        """Let the store keep the last map: it tells an etcd that was set back (R1, history 13)."""
        if not self._is_store_connected:
            return
        if self.primary is not None:
            epoch = self.primary.epoch
        elif self.backup is not None and self.backup.opened and self.backup.state is not BackupState.LOADING:
            # A store that refuses it, for its disk is full, say, has the set opened again: nothing would ever be loaded.
            epoch = self.backup.epoch
        else:
            return
        told = self._facts.remember(epoch, self.incarnation)
        if told is not None:
            self._effects.append(told)

    # --- leading ---

    def _lead(self, won: Candidacy, now: Now) -> None:
        backup, holder = self.backup, won.target.primary_incarnation
        if (
            backup is None
            or backup.copy is None
            or backup.opened is None
            or not backup.is_loaded
            or holder != self.incarnation
            or not won.target.names_disk(backup.opened.disk)
            or not (won.is_restarted or backup.can_stand_unrestarted)
        ):
            # The memory went meanwhile: this epoch is never served; the key goes, and the next one begins.
            self._note("promotion not taken", f"epoch {won.target.epoch} was won by {holder}")
            self._effects.append(DropLeaseKey(self.set_name, holder))
            return
        self._note("promoted", f"epoch {won.target.epoch}" + (" restarted" if won.is_restarted else ""))
        # Nobody comes into the set before all of it has what the snapshot of the newcomer holds (R8).
        backup.copy.learn(backup.memory.uncuttable)
        self._effects += backup.end()
        self.backup = None
        self._facts.trust_generation()
        self._lease.put(self._candidate.asked_lease_id)
        self._taking_over = TakingOver(won, backup.copy, backup.opened.disk, self.settings.primary.piece_cost)
        self._taking_over.pieces.go_on()
        self._take_over(self._taking_over, now)

    def _take_over(self, taking: TakingOver, now: Now) -> None:
        """Lead when all of the log is applied, unless another leads by then."""
        epoch = taking.won.target.epoch
        if self.set_map is None or self.set_map.epoch != epoch:
            self._note("promotion lost", f"epoch {epoch} is over")
            self._fall_back(now)
            return
        if not (taking.pieces.works or taking.is_applied):
            taking.applied(self._handed_for(taking))
        if not taking.pieces.works and taking.primary is None:
            taking.lead(self._new_primary(taking, self.set_map, now))
        if taking.pieces.works or taking.primary is None:
            self._effects += taking.pieces.ask(self.set_name, now)
            return
        self._taking_over, self.primary = None, taking.primary
        self._effects += self.primary.begin(now)
        presences = sorted(self._facts.presences.items())
        seen = PresencesSeen(self.set_name, tuple((broker, held, rev) for broker, (held, rev) in presences))
        self._effects += self.primary.handle(seen, now)
        self._extend_primary(now)

    def _new_primary(self, taking: TakingOver, set_map: SetMap, now: Now) -> PrimaryCore:
        return PrimaryCore(
            taking.copy,
            Member(self.broker, taking.disk, self.incarnation),
            set_map,
            self._facts.revision,
            taking.won.is_restarted,
            self.settings.primary,
            now,
            self.factories,
            self.figures,
            taking.handed is not None,
            taking.gone,
        )

    def _handed_for(self, taking: TakingOver) -> HandedOver | None:
        """What the last primary told its successor, if this is the one, and behind that very log."""
        won, copy = taking.won, taking.copy
        handed, self._handed = self._handed, None
        if handed is not None and handed.epoch < copy.state.epoch:
            handed = None  # Another one has led since, and has gone by it, or said why not.
        is_told = handed is not None and handed.epoch + 1 == won.target.epoch and handed.to == self.broker
        self.is_chosen = handed is not None and is_told and handed.is_chosen
        if handed is not None and (won.is_restarted or not fits(handed, won.target.epoch, copy)):
            self._note(
                "handed over in vain", f"epoch {handed.epoch} at {handed.log_end}, this is {copy.log_end}"
            )
            return None
        return handed

    def _extend_primary(self, now: Now) -> None:
        """Tell the primary until when it may serve, if the lease key lives under the present lease."""
        if self.primary is not None and self._lease.is_key_held:
            extended = LeaseExtended(self.set_name, self._lease.lease_id, self._lease.serve_until_ms)
            self._effects += self.primary.handle(extended, now)

    def _authorise(self, now: Now) -> None:
        """Let the primary speak only while the set's lease key lives under the present lease (R6). In an etcd that was set back,
        or of which that may still be said, it gets that again only while all members follow it: none of them has seen a later
        epoch.
        """
        primary = self.primary
        assert primary is not None
        if self._lease.is_key_held:
            return
        primary.streams.serve_until_ms = 0
        is_said_by_now = self._lease.held_ms(now) >= self.settings.regain_wait_ms
        may_be_deposed = primary.may_be_deposed(now)
        if may_be_deposed and (self._facts.is_set_back or not is_said_by_now):
            return
        restore = self._lease.restore(
            primary.membership.read, self.incarnation, now, is_mark_compared=may_be_deposed
        )
        if restore is not None:
            self._effects.append(restore)

    # --- not the primary ---

    def _turn_away(self, given: ClientSaid) -> None:
        epoch = self.set_map.epoch if self.set_map is not None else Epoch(0)
        refused = AttachRefused(
            epoch, LogIndex(0), ErrorCode.NOT_PRIMARY, "this broker is not the primary", ()
        )
        self._effects.append(TellClient(self.set_name, given.stream, refused, 0))
        self._effects.append(CloseClientStream(self.set_name, given.stream))

    def _refuse_backup(self, given: BackupSaid) -> None:
        if self._parting is not None and given.stream in self._parting.streams:
            return  # It was said before the word of the hand-over was heard.
        epoch = self.set_map.epoch if self.set_map is not None else Epoch(0)
        refused = SubscriptionRefused(self.set_name, epoch, f"{self.broker} is not the primary")
        self._effects.append(TellBackup(self.set_name, given.stream, refused))
        self._effects.append(CloseBackupStream(self.set_name, given.stream))

    def _note(self, event: str, details: str) -> None:
        self._effects.append(Note(self.set_name, event, details))


def _is_opening(given: AnyInput) -> bool:
    return type(given) is StoreSaid and type(given.answer) is SetOpened
