"""Watches every replica's inputs and effects: who holds which log, what is called committed, which branches were reached.

Law: it only looks. What contradicts a promise at once (two contents of one index, a committed record replaced) it raises at
once, so that the run ends where the mistake shows; all else is left to the checkers.
"""

from typing import TYPE_CHECKING

from lockstep.core.effects import AnyEffect, TellBackup, TellClient, TellStore
from lockstep.core.frames import Frame
from lockstep.core.ids import BrokerId, Epoch, LogIndex, SetName, TransactionKey
from lockstep.core.inputs import AnyInput, BackupSaid, PrimarySaid, StoreSaid
from lockstep.core.replication import Frames, HandedOver, Refuse
from lockstep.core.store_protocol import AppendFrames, BeginInstall, StateChunk, Truncate
from lockstep.core.transaction_states import TransactionState
from services.backup.core.backup_memory import BackupState
from tests.simulation import branch_points
from tests.simulation.attachments_owed import AttachmentsOwed
from tests.simulation.checkers.record import ReplicaView
from tests.simulation.committed_log import CommittedLog, HeldLog
from tests.simulation.history import PromiseBroken
from tests.simulation.replica_view import view_of

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

HASHED_SAMPLES = 6
BESIDE_CONTENT_BYTES = 4096
"""What a frame may have beside content."""


class Observer:
    """Lives as long as its world, which tells it of everything that a replica takes and gives."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.logs = {set_name: CommittedLog(set_name) for set_name in world.set_names}
        self.views: list[ReplicaView] = []
        self.halts: list[str] = []
        self.epochs: dict[SetName, Epoch] = {}
        """The highest epoch in which a client was told anything under a lease."""
        self.refused: list[tuple[SetName, TransactionKey]] = []
        self.handed_on: dict[tuple[SetName, Epoch], LogIndex] = {}
        """Epochs that were handed over with what was open -> where the log ended, as their primary has said it."""
        self._samples = 0
        self._attachments_owed = AttachmentsOwed()
        self._held: dict[tuple[BrokerId, SetName], HeldLog] = {}

    def forget(self, broker: BrokerId) -> None:
        """A new process of this broker holds nothing yet."""
        for key in [key for key in self._held if key[0] == broker]:
            del self._held[key]
        self._attachments_owed.forget(broker)

    def _held_by(self, process: "Broker", set_name: SetName) -> HeldLog:
        key = process.broker, set_name
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = HeldLog(f"{process.incarnation} ({set_name})")
        return held

    def before(self, process: "Broker", given: AnyInput) -> None:
        """An input is about to be handled."""
        if isinstance(given, BackupSaid) and isinstance(given.message, Refuse):
            self._refused(process, given)
        if branch := branch_points.heard(process, given):
            self._world.branches.reach(branch)
        if branch := branch_points.heard_amid(process, given):
            self._world.branches.reach(branch)

    def observe(self, process: "Broker", given: AnyInput, effects: list[AnyEffect]) -> None:
        """An input was handled; nothing of its effects has been performed."""
        self._attachments_owed.observe(process, given, effects)
        if isinstance(given, StoreSaid):
            self._store_said(process, given)
        elif isinstance(given, PrimarySaid):
            self._primary_said(process, given)
        for effect in effects:
            if branch := branch_points.done(effect, process):
                self._world.branches.reach(branch)
            if isinstance(effect, TellStore):
                self._told_store(process, effect)
            elif isinstance(effect, TellBackup):
                message = effect.message
                if isinstance(message, Frames):
                    for durable, transient in message.frames:
                        self.logs[effect.set_name].seen(durable, transient)
                    self._primary_claims(process, effect.set_name, message.commit_index)
                elif isinstance(message, HandedOver) and message.log_end:
                    self.handed_on[effect.set_name, message.epoch] = message.log_end
            elif isinstance(effect, TellClient) and effect.serve_until_ms:
                self._primary_claims(process, effect.set_name, effect.message.commit_index)

    def _primary_claims(self, process: "Broker", set_name: SetName, commit_index: LogIndex) -> None:
        self.logs[set_name].claim(self._held_by(process, set_name), commit_index)

    def told_client(self, process: "Broker", effect: TellClient) -> None:
        """A client is told something under a lease. After a successor has done so, a deposed primary may not (R6, P8)."""
        if not effect.serve_until_ms:
            return
        epoch, highest = effect.message.epoch, self.epochs.get(effect.set_name, Epoch(0))
        if epoch < highest:
            raise PromiseBroken(
                "P8",
                f"{process.incarnation} answers a client of {effect.set_name} in epoch {epoch} "
                f"({type(effect.message).__name__}), and epoch {highest} has answered before",
            )
        self.epochs[effect.set_name] = epoch

    def _refused(self, process: "Broker", given: BackupSaid) -> None:
        """A vote "no" reached the primary of its epoch: if the transaction is open then, it may never be committed."""
        refuse = given.message
        primary = process.replicas[given.set_name].primary
        assert isinstance(refuse, Refuse)
        if primary is None or refuse.epoch != primary.epoch:
            return
        buffer = primary.context.state.transactions.get(refuse.transaction)
        is_open = buffer is not None and buffer.state is TransactionState.OPEN
        self._world.branches.reach("refusal of an open transaction" if is_open else "refusal too late")
        if is_open:
            self.refused.append((given.set_name, refuse.transaction))

    def _store_said(self, process: "Broker", given: StoreSaid) -> None:
        answer = given.answer
        if isinstance(answer, StateChunk):
            log, held = self.logs[given.set_name], self._held_by(process, given.set_name)
            for durable in answer.frames:
                held.add(log.seen(durable, None), durable)

    def _primary_said(self, process: "Broker", given: PrimarySaid) -> None:
        message = given.message
        if not isinstance(message, Frames):
            return
        log = self.logs[given.set_name]
        for durable, transient in message.frames:
            log.seen(durable, transient)

    def _told_store(self, process: "Broker", effect: TellStore) -> None:
        request = effect.request
        if isinstance(request, AppendFrames):
            log, held = self.logs[effect.set_name], self._held_by(process, effect.set_name)
            primary = process.replicas[effect.set_name].primary
            for durable in request.frames:
                header = log.seen(durable, None)
                held.add(header, durable)
                if primary is not None and header.epoch == primary.epoch:
                    # A primary without backups sends its transient parts to nobody; they count all the same.
                    written = primary.context.writer.log.frames_after(LogIndex(header.first - 1))[0]
                    log.seen(durable, written.transient)
                    self._check_size(written)
            log.claim(held, request.commit_index)
        elif isinstance(request, Truncate):
            self._held_by(process, effect.set_name).cut(request.after)
        elif isinstance(request, BeginInstall):
            held = self._held_by(process, effect.set_name)
            if self.logs[effect.set_name].install(held, request.index, request.epochs, request.reigns):
                self._world.branches.reach("snapshot beyond the commit index")

    def _check_size(self, frame: Frame) -> None:
        """What fills a frame, and one command behind it: more might be so much that no stream carries it, and the set stands."""
        settings = self._world.replica_settings.primary
        size = len(frame.durable) + len(frame.transient)
        if size > settings.frame_bytes_max + settings.command_bytes_max + BESIDE_CONTENT_BYTES:
            raise PromiseBroken("P7", f"frame {frame.header.first}..{frame.header.last} has {size} bytes")

    def check_journals(self) -> None:
        """Every live replica's log, and every journal that was read, must agree with what was committed."""
        for process in self._world.brokers.values():
            for set_name, log in self.logs.items():
                held = self._held.get((process.broker, set_name))
                if held is not None and process.is_alive:
                    frames = [held.frames[first][1] for first in held.firsts]
                    log.check_journal(frames, held.name)
        for store in self._world.stores.values():
            for set_name, reading in sorted(store.journals.items()):
                self.logs[set_name].check_journal(reading.frames, f"the disk of {store.broker}")
                self._world.branches.reach("journals compared")

    def loss_accepted(self, set_name: SetName, after: LogIndex) -> None:
        """An operator gave up what lies behind `after` (R7); nobody holds it any more."""
        self.logs[set_name].loss_accepted(after)
        self.views = [view for view in self.views if view.set_name != set_name or view.applied <= after]

    # --- samples --------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Look at every replica's state, where the log behind it is committed. Hashes are dear: only now and then."""
        self._samples += 1
        is_hashed = self._samples % HASHED_SAMPLES == 0
        for broker in self._world.broker_ids:
            process = self._world.brokers[broker]
            if not process.is_alive:
                continue
            for set_name in self._world.set_names:
                self._claims(process, set_name)
                view = view_of(process, set_name, self._world.loop.now_us, is_hashed)
                if view is not None and self._is_committed(process, view):
                    self.views.append(view)

    def _claims(self, process: "Broker", set_name: SetName) -> None:
        """What a replica that takes part shows to readers of events and in its status is called committed, too (R11)."""
        held, replica = self._held.get((process.broker, set_name)), process.replicas.get(set_name)
        if held is None or replica is None:
            return
        if replica.backup is not None and replica.backup.state is BackupState.FOLLOWING:
            self.logs[set_name].claim(held, replica.commit_index)

    def _is_committed(self, process: "Broker", view: ReplicaView) -> bool:
        """Only what this process itself was held to: a state beyond it may be a suffix."""
        held = self._held.get((process.broker, view.set_name))
        return held is not None and view.applied <= held.claimed
