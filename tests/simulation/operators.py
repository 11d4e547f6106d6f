"""What operators do about an etcd that was set back, as `docs/operations.md` has it: rebuild the map on that etcd as it is, and
give no disk up that can come back; then end the branches that nobody presumes anything of, by what became of the others.

Law: they begin when somebody says that etcd was set back, and what cannot be done now is tried again.
"""

from random import Random
from typing import TYPE_CHECKING

from lockstep.core.branch_names import BranchName, branch_name, branch_xid, generation_tag
from lockstep.core.cluster_map import SetMap
from lockstep.core.commands import CommitBranchCommand, RollbackBranchCommand
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.ids import SetName
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import COMMITS
from lockstep.core.xid import Xid
from services.coordinator.core.messages import State
from tests.simulation.client import Client
from tests.simulation.loop import SECOND
from tests.simulation.map_rebuild import MapRebuild
from tests.simulation.promises import Actor
from tests.simulation.replica_view import state_of

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOKS_EVERY_US = 1 * SECOND
NOTICED_US = 8 * SECOND
"""At most, until somebody does something about it."""
WAITED_FOR = 10
"""Looks in which a branch is left to whoever may end it."""
REFUSALS = 5
PATIENCE_US = 5 * SECOND


class Operators(Client):
    """Live as long as there is something to do for them, and clients are at work."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "operators", world.set_names, world.visitor_settings)
        self._random = Random(f"operators {world.options.seed}")
        self._keys = DecisionKeys(world.keys.cluster)
        self._looks: dict[tuple[SetName, bytes], int] = {}
        """How often a branch was seen that waits."""
        self._refusals = 0
        """Looks in a row in which there were some."""
        self._rebuild = MapRebuild(world)
        self._is_done = False
        """The map is rebuilt, and at the last look nothing was left."""
        next(iter(self.sessions.values())).spawn(self._look_after())

    def _look_after(self) -> Actor:
        world = self.world
        while not self._is_done or world.is_working or self._others_work() or self._is_set_back():
            yield LOOKS_EVERY_US
            if not world.etcd.is_up:
                continue
            self._count_refusals()
            if not self._is_set_back():
                yield from self._end_branches()
                continue
            yield self._random.randrange(NOTICED_US)
            while self._is_set_back():
                self._is_done = False
                yield from self._rebuild.attempt(f"{len(self._rebuild.generations) + 2:08}-rebuilt")
                for broker in self._rebuild.to_stop:
                    world.crash_broker(broker, "stopped by operators")
                    world.loop.after(LOOKS_EVERY_US, world.start_machine, broker)
                yield LOOKS_EVERY_US
                self._count_refusals()

    def _others_work(self) -> bool:
        return any(session.actors for session in self.world.sessions() if session.client is not self)

    def _is_set_back(self) -> bool:
        """As `lockstep status` says; or a set has had no primary for long, and its stores refuse the epoch that etcd has."""
        return self.world.etcd.get(self.world.keys.set_back) is not None or self._refusals > REFUSALS

    def _count_refusals(self) -> None:
        is_refused = any(self._is_refused(set_map) for set_map in self.world.set_maps())
        self._refusals = self._refusals + 1 if is_refused else 0

    def _is_refused(self, set_map: SetMap) -> bool:
        set_name, world = set_map.set_name, self.world
        backups = [
            process.replicas[set_name].backup for process in world.brokers.values() if process.is_alive
        ]
        is_led = world.etcd.get(world.keys.set_lease(set_name)) is not None
        return not is_led and any(one is not None and one.fenced_at > set_map.epoch for one in backups)

    # --- branches -----------------------------------------------------------------------------------------------------

    def _end_branches(self) -> Actor:
        """Those of earlier generations that have waited for long, and lists of them that nobody decides any more."""
        world, states = self.world, self._states()
        generation = world.etcd.get(world.keys.generation)
        assert generation is not None, "a world has a generation"
        tag = generation_tag(generation.value.decode())
        waiting: dict[tuple[SetName, bytes], BranchName] = {}
        for set_name, state in states.items():
            for buffer in state.transactions.prepared() if state is not None else ():
                name = branch_name(Xid.decode(buffer.xid))
                if name.generation != tag:
                    waiting[set_name, buffer.xid] = name
        self._looks = {at: self._looks.get(at, 0) + 1 for at in waiting}
        due = [at for at, looks in sorted(self._looks.items()) if looks > WAITED_FOR]
        self._is_done = bool(self._rebuild.generations) and not waiting and None not in states.values()
        if None in states.values():
            return
        for at in due:
            if not self._is_in_hand(waiting[at]):
                yield from self._end(*at, waiting[at])
        for key, entry in world.etcd.prefix(self._keys.all_participants):
            listed, global_id = ParticipantsEntry.decode(entry.value), self._keys.global_id(key)
            if listed.generation == tag or world.etcd.get(self._keys.decision(global_id)) is not None:
                continue
            xids = [
                branch_xid(global_id, number, listed.generation).encode()
                for number in range(len(listed.participants))
            ]
            live = [
                xid
                for state in states.values()
                for xid in xids
                if state is not None and state.transactions.find_xid(xid)
            ]
            if not live and not self._is_in_hand(BranchName(global_id, 0, listed.generation)):
                world.branches.reach("list of branches given up")
                world.etcd.execute(lambda etcd, key=key: etcd.delete(key))  # type: ignore[misc]

    def _states(self) -> dict[SetName, SetState | None]:
        """What the primaries have; None: there is none that serves."""
        world, found = self.world, dict[SetName, SetState | None]()
        for set_map in world.set_maps():
            process = world.brokers.get(set_map.primary)
            is_led = (
                process is not None and process.is_alive and process.replicas[set_map.set_name].is_serving
            )
            found[set_map.set_name] = state_of(process, set_map.set_name) if process and is_led else None
        return found

    def _is_in_hand(self, name: BranchName) -> bool:
        """Whether a coordinator is about to end it, as `lockstep tx list` shows."""
        return any(name.global_id in process.core.transactions for process in self.world.coordinators.alive())

    def _end(self, set_name: SetName, xid: bytes, name: BranchName) -> Actor:
        world, session = self.world, self.sessions[set_name]
        is_committed = self._is_committed(name)
        world.branches.reach(f"branch {'committed' if is_committed else 'rolled back'} by operators")
        world.trace(set_name, f"operators: {name.global_id.hex()[-8:]} committed: {is_committed}")
        command = CommitBranchCommand(0, xid) if is_committed else RollbackBranchCommand(0, xid)
        yield session.with_patience(session.submit(command), PATIENCE_US)

    def _is_committed(self, name: BranchName) -> bool:
        """By what became of the others, by what is left of the log, and by what its client was told."""
        etcd = self.world.etcd
        decision, outcome = (
            etcd.get(self._keys.decision(name.global_id)),
            etcd.get(self._keys.outcome(name.global_id)),
        )
        if decision is not None or outcome is not None:
            verdict = Verdict(decision.value.decode()) if decision is not None else None
            if outcome is not None and verdict is None:
                verdict = OutcomeEntry.decode(outcome.value).verdict
            return verdict is Verdict.COMMIT
        (mine,) = (mine for mine in self.world.coordinators.begun if mine.global_id == name.global_id)
        states, is_committed = self._states(), State.COMMITTED in mine.told
        for number, set_name in enumerate(mine.sets):
            state = states[set_name]
            found = state.outcomes.find_xid(mine.xid(number).encode()) if state is not None else None
            is_committed |= found is not None and found[1].state in COMMITS
        return is_committed
