"""One replica of one resource set in a broker process: which role it has, and how it passes from one to the other.

Law: the map decides. A process leads only in an epoch that it began itself by an etcd transaction it can confirm as its own (R5);
a replica that led and stopped has lost its memory, takes a new incarnation, and comes back as a restarted one (R12). It serves
only while its set's lease key lives under a lease that was renewed in time (R6).

    following --PromoteSelf confirmed--> leading --stopped--> following (with a new incarnation)
"""

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.commands import AttachRefused
from lockstep.core.effects import (
    AnyEffect,
    CloseBackupStream,
    CloseClientStream,
    DropLeaseKey,
    Note,
    PromoteSelf,
    PutPresence,
    RestoreLeaseKey,
    TellBackup,
    TellClient,
    TellStore,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex, SetName
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
    StoreConnected,
    StoreLost,
    SwapAnswered,
    Verdict,
)
from lockstep.core.replication import SubscriptionRefused
from lockstep.core.store_protocol import RememberMap
from services.backup.core.backup import BackupCore, BackupState
from services.broker.core.promotion import Candidacy, Standing, candidacy, data_loss_candidacy
from services.broker.core.settings import ReplicaSettings
from services.primary.core.primary import PrimaryCore

REPLICA_REQUESTS = 1_000_000_000
"""Requests of the replica itself have numbers from here on; the primary's own swaps stay below."""


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
        self.set_map: SetMap | None = None
        self._revision = 0
        self._generation = ""
        self._map_bytes = b""
        self._remembered_revision = 0
        self._lease_holder: Incarnation | None = None
        self._is_lease_key_known = False
        self._presences: dict[BrokerId, tuple[Incarnation, int]] = {}
        self._lease_id = 0
        self._serve_until_ms = 0
        self._key_lease_id = 0
        """The lease under which the set's lease key is known to be this replica's; 0: none."""
        self._restore_request = 0
        self._restore_lease_id = 0
        self._asked_lease_id = 0
        """The lease under which the promotion that was asked for puts the lease key."""
        self._dropped_key_ms = 0
        self._is_store_connected = False
        self._request = REPLICA_REQUESTS
        self._asked: Candidacy | None = None
        """A promotion sent, not answered or in doubt."""
        self._is_answer_pending = False
        self._not_before_ms = 0
        self._seen_absent_ms: int | None = None
        self._is_loss_accepted = False
        self._map_due = False
        self.backup: BackupCore | None = None
        self.primary: PrimaryCore | None = None
        self._effects: list[AnyEffect] = []

    @property
    def incarnation(self) -> Incarnation:
        """Names this replica's present memory."""
        return Incarnation(f"{self._process}.{self._memory_number}")

    @property
    def is_serving(self) -> bool:
        return self.primary is not None and not self.primary.stopped and self.primary.is_serving

    @property
    def log_end(self) -> LogIndex:
        """Last index in memory; 0 while nothing is loaded."""
        if self.primary is not None:
            return self.primary.log_end
        copy = self.backup.copy if self.backup is not None else None
        return copy.log_end if copy is not None else LogIndex(0)

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        self._note_facts(given, now)
        if self.primary is not None:
            if not isinstance(given, LeaseExtended) or given.lease_id == self._key_lease_id:
                self._effects += self.primary.handle(given, now)
        elif isinstance(given, ClientSaid):
            self._turn_away(given)
        elif isinstance(given, BackupSaid):
            self._refuse_backup(given)
        if self.backup is not None:
            self._effects += self.backup.handle(given, now)
        self._decide(given, now)
        effects, self._effects = self._effects, []
        return effects

    # --- facts ---

    def _note_facts(self, given: AnyInput, now: Now) -> None:
        match given:
            case MapSeen() if given.mod_revision >= self._revision or given.set_map is None:
                self.set_map, self._revision = given.set_map, given.mod_revision
                self._map_bytes, self._generation = given.map_bytes, given.generation
                self._map_due = True
            case LeaseKeySeen():
                self._lease_holder, self._is_lease_key_known = given.holder, True
                if given.holder is not None:
                    self._seen_absent_ms = None
            case PresencesSeen():
                self._presences = {
                    broker: (incarnation, revision) for broker, incarnation, revision in given.presences
                }
            case LeaseExtended():
                self._lease_extended(given, now)
            case LeaseLost():
                self._lease_id = self._key_lease_id = self._serve_until_ms = 0
            case StoreConnected():
                self._is_store_connected = True
            case StoreLost():
                self._is_store_connected = False
                self._remembered_revision = 0
            case AcceptDataLoss():
                self._is_loss_accepted = True
            case _:
                pass

    def _lease_extended(self, given: LeaseExtended, now: Now) -> None:
        if given.lease_id != self._lease_id:
            self._lease_id = given.lease_id
            self._put_presence()
        self._serve_until_ms = given.serve_until_ms

    def _put_presence(self) -> None:
        if self._lease_id:
            self._effects.append(PutPresence(self.set_name, self.incarnation))

    # --- decisions ---

    def _decide(self, given: AnyInput, now: Now) -> None:
        if isinstance(given, HandOver):
            self._hand_over(given)
        if isinstance(given, SwapAnswered):
            self._swap_answered(given, now)
        self._check_confirmed(now)
        if self.primary is not None and self.primary.stopped:
            self._fall_back(now)
        if self.primary is not None:
            self._authorise(now)
            self._remember_map()
            return
        self._follow(now)
        self._stand(now)
        self._drop_stray_key(now)
        self._remember_map()

    def _hand_over(self, given: HandOver) -> None:
        if self.primary is None or given.to == self.broker or self.set_map is None:
            return
        if self.set_map.member(given.to) is None or given.to not in self.primary.backups.brokers():
            self._note("hand over refused", f"{given.to} is not in sync")
            return
        self._effects += self.primary.stop(f"handed over to {given.to}")

    def _fall_back(self, now: Now) -> None:
        """This reign is over: what memory holds may not be what the set has. Begin again from disk as a restarted replica."""
        self._effects.append(DropLeaseKey(self.set_name, self.incarnation))
        self.primary = None
        self._key_lease_id = 0
        self._restore_request = 0
        self._asked = None
        self._is_answer_pending = False
        self._memory_number += 1
        self._not_before_ms = now.boottime_ms + self.settings.promotion_retry_ms
        self._put_presence()
        self._map_due = True

    def _follow(self, now: Now) -> None:
        """Have a backup core for the epoch and primary that the map names."""
        set_map = self.set_map
        if set_map is None:
            if self.backup is not None:
                self._effects += self.backup.end()
                self.backup = None
            return
        if self.backup is not None and self.backup.has_lost_memory:
            # The map may still name the incarnation whose memory is gone: nobody may take this replica for it (R5, R12).
            self._effects += self.backup.end()
            self.backup = None
            self._memory_number += 1
            self._put_presence()
            self._map_due = True
        if (self.backup is None or self.backup.epoch != set_map.epoch) and (
            self.backup is None or self._map_due
        ):
            self._begin_following(set_map, now)
        self._map_due = False
        if self.backup is not None and self.backup.state is BackupState.DAMAGED:
            self._leave_damaged(set_map, self.backup)

    def _begin_following(self, set_map: SetMap, now: Now) -> None:
        copy, is_whole, stream = None, False, self._process_stream()
        if self.backup is not None:
            self._effects += self.backup.end()
            if self.backup.is_loaded or self.backup.copy is not None:
                copy, is_whole = self.backup.copy, self.backup.can_stand_unrestarted
            stream = self.backup.stream
        primary = set_map.primary if set_map.epoch and set_map.primary != self.broker else None
        self.backup = BackupCore(
            self.set_name,
            self.broker,
            self.incarnation,
            set_map.epoch,
            primary,
            copy,
            is_whole,
            stream,
            self.settings.backup,
        )
        if self._is_store_connected:
            self._effects += self.backup.begin(now)

    def _process_stream(self) -> int:
        """Subscription streams are numbered within the process; every memory of this replica has a range of its own."""
        return self._memory_number * 1_000_000

    def _leave_damaged(self, set_map: SetMap, backup: BackupCore) -> None:
        """R10: a damaged disk is set aside when the map does not name it any more; the last member never leaves."""
        if backup.opened is not None and not set_map.names_disk(backup.opened.disk):
            self._note("set aside", backup.opened.damage)
            self._effects += backup.set_aside()

    def _drop_stray_key(self, now: Now) -> None:
        """A lease key of this process that nobody serves under keeps everybody from being promoted."""
        holder = self._lease_holder
        if holder is None or self._asked is not None or not holder.startswith(f"{self._process}."):
            return
        if now.boottime_ms - self._dropped_key_ms >= 1000:
            self._dropped_key_ms = now.boottime_ms
            self._effects.append(DropLeaseKey(self.set_name, holder))

    def _remember_map(self) -> None:
        """Let the store keep the last map: it tells an etcd that was set back (R1, history 13)."""
        if self._remembered_revision >= self._revision or not self._is_store_connected:
            return
        if self.primary is not None:
            epoch = self.primary.epoch
        elif self.backup is not None and self.backup.opened is not None:
            epoch = self.backup.epoch
        else:
            return
        self._remembered_revision = self._revision
        self._effects.append(
            TellStore(
                self.set_name,
                RememberMap(
                    self.set_name,
                    epoch,
                    self.incarnation,
                    self._map_bytes,
                    self._revision,
                    self._generation,
                ),
            )
        )

    # --- promotion ---

    def _stand(self, now: Now) -> None:
        """Ask to be promoted when nobody leads and this replica may."""
        if self._lease_holder is not None or not self._is_lease_key_known:
            self._seen_absent_ms = None
            return
        if self._seen_absent_ms is None:
            self._seen_absent_ms = now.boottime_ms
        backup, set_map = self.backup, self.set_map
        if set_map is None or backup is None or backup.opened is None or not backup.is_loaded:
            return
        if self._is_answer_pending or now.boottime_ms < self._not_before_ms:
            return
        if (
            not self._lease_id
            or now.boottime_ms >= self._serve_until_ms
            or self.broker not in set_map.brokers
        ):
            return
        if self._is_ahead_of_etcd(backup, set_map):
            return
        if set_map.epoch == 0:
            waited_ms = now.boottime_ms - self._seen_absent_ms
            if waited_ms < set_map.brokers.index(self.broker) * self.settings.first_promotion_step_ms:
                return
        standing = Standing(self.broker, backup.opened.disk, self.incarnation, backup.can_stand_unrestarted)
        if self._is_loss_accepted:
            found: Candidacy | None = data_loss_candidacy(set_map, standing, backup.opened.highest_epoch)
        else:
            found = candidacy(set_map, standing, self._presences)
        if found is None:
            return
        self._request += 1
        self._asked, self._is_answer_pending, self._asked_lease_id = found, True, self._lease_id
        self._effects.append(
            PromoteSelf(self.set_name, self._request, self._revision, found.target, found.presences)
        )

    def _is_ahead_of_etcd(self, backup: BackupCore, set_map: SetMap) -> bool:
        """R1: whoever is ahead of etcd in epoch or revision, or of another generation, starts nothing."""
        opened = backup.opened
        assert opened is not None
        if self._is_loss_accepted:
            return False
        is_ahead = opened.highest_epoch > set_map.epoch or opened.map_revision > self._revision
        is_other = bool(opened.generation) and opened.generation != self._generation
        if is_ahead or is_other:
            self._not_before_ms = self._not_before_ms + 1000
            self._note(
                "ahead of etcd", f"disk has epoch {opened.highest_epoch}, generation {opened.generation!r}"
            )
        return is_ahead or is_other

    def _swap_answered(self, given: SwapAnswered, now: Now) -> None:
        if given.request == self._restore_request:
            self._restore_request = 0
            if given.verdict is Verdict.DONE and self._lease_id == self._restore_lease_id:
                self._key_lease_id = self._lease_id
                self._extend_primary(now)
            else:
                self._not_before_ms = now.boottime_ms + self.settings.promotion_retry_ms
            return
        if given.request != self._request or self._asked is None or not self._is_answer_pending:
            return
        self._is_answer_pending = False
        if given.verdict is Verdict.DONE:
            self.set_map, self._revision = self._asked.target, given.mod_revision
            self._lead(self._asked, now)
        else:
            # In doubt: it may land later, and is confirmed then by the entry itself.
            self._note("promotion " + given.verdict.value, f"epoch {self._asked.target.epoch}")
            self._not_before_ms = now.boottime_ms + self.settings.promotion_retry_ms
            if given.verdict is Verdict.FAILED:
                self._asked = None

    def _check_confirmed(self, now: Now) -> None:
        """A promotion whose answer was lost is confirmed by the entry that it wrote."""
        if self.primary is None and self._asked is not None and self.set_map == self._asked.target:
            self._is_answer_pending = False
            self._lead(self._asked, now)

    def _lead(self, won: Candidacy, now: Now) -> None:
        backup = self.backup
        self._asked = None
        self._is_loss_accepted = False
        if backup is None or backup.copy is None or backup.opened is None or not backup.is_loaded:
            # The memory went meanwhile: this epoch is never served; the key goes, and the next one begins.
            self._effects.append(DropLeaseKey(self.set_name, self.incarnation))
            return
        self._note("promoted", f"epoch {won.target.epoch}" + (" restarted" if won.is_restarted else ""))
        self._effects += backup.end()
        self.backup = None
        copy = backup.copy
        copy.apply_to(copy.log_end)
        own = Member(self.broker, backup.opened.disk, self.incarnation)
        self.primary = PrimaryCore(
            copy, own, won.target, self._revision, won.is_restarted, self.settings.primary, now
        )
        self._key_lease_id = self._asked_lease_id
        self._effects += self.primary.begin(now)
        self._effects += self.primary.handle(
            PresencesSeen(
                self.set_name,
                tuple((broker, held, rev) for broker, (held, rev) in sorted(self._presences.items())),
            ),
            now,
        )
        self._extend_primary(now)

    def _extend_primary(self, now: Now) -> None:
        """Tell the primary until when it may serve, if the lease key lives under the present lease."""
        if self.primary is not None and self._lease_id and self._key_lease_id == self._lease_id:
            extended = LeaseExtended(self.set_name, self._lease_id, self._serve_until_ms)
            self._effects += self.primary.handle(extended, now)

    def _authorise(self, now: Now) -> None:
        """Let the primary speak only while the set's lease key lives under the present lease (R6)."""
        assert self.primary is not None
        if self._key_lease_id == self._lease_id:
            return
        self.primary.streams.serve_until_ms = 0
        if self._restore_request or not self._lease_id or now.boottime_ms < self._not_before_ms:
            return
        self._request += 1
        self._restore_request, self._restore_lease_id = self._request, self._lease_id
        self._effects.append(
            RestoreLeaseKey(self.set_name, self._request, self.primary.membership.revision, self.incarnation)
        )

    # --- not the primary ---

    def _turn_away(self, given: ClientSaid) -> None:
        epoch = self.set_map.epoch if self.set_map is not None else Epoch(0)
        refused = AttachRefused(
            epoch, LogIndex(0), ErrorCode.NOT_PRIMARY, "this broker is not the primary", ()
        )
        self._effects.append(TellClient(self.set_name, given.stream, refused, 0))
        self._effects.append(CloseClientStream(self.set_name, given.stream))

    def _refuse_backup(self, given: BackupSaid) -> None:
        epoch = self.set_map.epoch if self.set_map is not None else Epoch(0)
        refused = SubscriptionRefused(self.set_name, epoch, f"{self.broker} is not the primary")
        self._effects.append(TellBackup(self.set_name, given.stream, refused))
        self._effects.append(CloseBackupStream(self.set_name, given.stream))

    def _note(self, event: str, details: str) -> None:
        self._effects.append(Note(self.set_name, event, details))
