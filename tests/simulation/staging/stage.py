"""The stage of a scenario: a world in which nothing goes wrong by chance, and the words with which a script makes it go wrong.

Law: a script is a plain function; virtual time passes only in `run`, `until`, `done` and what is built of them. `when` acts at
the very place of an effect: the process may crash or stop there, and the effect is not performed. `finish` heals everything,
lets the world come to rest, and asks all checkers (P1 to P8).
"""

from collections.abc import Callable

from lockstep.client.session_events import Close
from lockstep.client.session_settings import SessionSettings
from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import AnyEffect
from lockstep.core.ids import BrokerId, Epoch, LogIndex, SetName
from services.backup.core.settings import BackupSettings
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from services.primary.core.primary import PrimaryCore
from services.primary.core.settings import PrimarySettings
from tests.simulation.broker import Broker
from tests.simulation.checkers import CHECKERS
from tests.simulation.etcd import Etcd
from tests.simulation.history import Operation, PromiseBroken
from tests.simulation.loop import MS, SECOND
from tests.simulation.network import NetworkOptions
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.process import Process
from tests.simulation.promises import Promise
from tests.simulation.replica_view import at_rest, names_astray
from tests.simulation.run import make_record, read_journals
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.world import World

A, B, C = BrokerId("b1"), BrokerId("b2"), BrokerId("b3")
"""The brokers of a scenario; A is the first primary of the only resource set."""
SET = SetName("s1")
ETCD = Etcd.HOST
SAMPLE_US = 300 * MS
REST_US = 60 * SECOND


def calm(**changes: object) -> Options:
    """Options of a world with three brokers, one resource set, real limits, and no chance in it but small delays."""
    options = Options(
        sets=1,
        faults=(),
        small_limits=False,
        rate_error_max=0.0,
        torn_share=1.0,
        network=NetworkOptions(delay_us=100, stall_timeout_us=30 * SECOND),
    )
    options.etcd.expiry_late_us = 100 * MS
    for name, value in changes.items():
        assert hasattr(options, name), name
        setattr(options, name, value)
    return options


class Unmet(Exception):
    """What a script waited for did not come, or a fact that it expected was none."""


class Stage:
    """Lives for one case of a scenario."""

    def __init__(self, parts: Parts | None = None, options: Options | None = None) -> None:
        self.world = World(options or calm(), parts)
        self.world.before_effect = self._before_effect
        self.broken: list[str] = []
        """Sentences, each beginning with its promise, or with `expected`."""
        self._triggers: list[tuple[Callable[[Broker, AnyEffect], bool], Callable[[], None]]] = []
        if self.world.parts.prepare is not None:
            self.world.parts.prepare(self.world)
        self._sample()

    # --- time ---------------------------------------------------------------------------------------------------------

    def retain_little(self) -> None:
        """Before the start: whoever lacks more than a little of the log is sent a whole snapshot."""
        self.world.replica_settings = ReplicaSettings(
            PrimarySettings(retained_bytes_max=1024), BackupSettings(retained_bytes_max=1024)
        )

    def start(self) -> None:
        """Start all machines and wait until every replica is in sync."""
        for broker in self.world.broker_ids:
            self.world.start_machine(broker)
        self.whole()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.world.loop.run_until(self.world.loop.now_us + int(seconds * SECOND))

    def until(self, holds: Callable[[], bool], within_s: float = 20.0, what: str = "") -> None:
        """Let time pass until `holds()`, to the very event; raises `Unmet` after `within_s`."""
        limit_us = self.world.loop.now_us + int(within_s * SECOND)
        while not holds():
            if not self.world.loop.run_next(limit_us):
                raise Unmet(f"{what or 'what the script waited for'} did not come within {within_s:g} s")

    def done(self, promise: Promise, within_s: float = 20.0) -> Operation:
        """Wait for a command's end."""
        operation = promise.operation
        kind = operation.kind if operation is not None else "question"
        self.until(lambda: promise.is_done, within_s, f"the end of {kind}")
        assert operation is not None
        return operation

    def whole(self, within_s: float = 30.0) -> None:
        """Wait until the set is served, with everybody in sync and everything applied everywhere."""
        self.until(lambda: not at_rest(self.world), within_s, "a world that is whole")

    def serves(self, broker: BrokerId, within_s: float = 20.0) -> None:
        """Wait until `broker` serves the epoch that the map has."""
        self.until(
            lambda: (
                (found := self.primary_core(broker)) is not None
                and found.is_serving
                and found.epoch == self.map.epoch
            ),
            within_s,
            f"{broker} as primary",
        )

    def _sample(self) -> None:
        if self.world.brokers.keys() == set(self.world.broker_ids):
            self.world.observer.sample()
        self.world.loop.after(SAMPLE_US, self._sample)

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def map(self) -> SetMap:
        """The entry as etcd has it."""
        return self.world.set_maps()[0]

    @property
    def in_sync(self) -> set[BrokerId]:
        return {member.broker for member in self.map.in_sync}

    @property
    def epoch(self) -> Epoch:
        return self.map.epoch

    def replica(self, broker: BrokerId) -> Replica:
        return self.world.brokers[broker].replicas[SET]

    def primary_core(self, broker: BrokerId) -> PrimaryCore | None:
        """The primary's core of a broker that lives and leads."""
        process = self.world.brokers[broker]
        return process.replicas[SET].primary if process.is_alive else None

    def log_end(self, broker: BrokerId) -> LogIndex:
        return self.replica(broker).log_end

    def durable(self, broker: BrokerId) -> LogIndex:
        """How far a backup's own disk is known to it to reach."""
        backup = self.replica(broker).backup
        return backup.durable_end if backup is not None else LogIndex(0)

    def client(self, name: str = "c1", settings: SessionSettings | None = None) -> ScriptedClient:
        return ScriptedClient(self, name, settings)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def when(self, matches: Callable[[Broker, AnyEffect], bool], then: Callable[[], None]) -> None:
        """Do `then` once, in the place of the next effect that matches."""
        self._triggers.append((matches, then))

    def _before_effect(self, process: Broker, effect: AnyEffect) -> None:
        for trigger in list(self._triggers):
            if trigger[0](process, effect):
                self._triggers.remove(trigger)
                trigger[1]()
                return

    def kill(self, *brokers: BrokerId) -> None:
        """SIGKILL of broker processes; their stores live."""
        for broker in brokers:
            self.world.crash_broker(broker, "killed")

    def kill_store(self, broker: BrokerId) -> None:
        self.world.crash_store(broker)

    def power_loss(self, *brokers: BrokerId) -> None:
        """The machines are gone; what was not synced is torn."""
        for broker in brokers:
            self.world.power_loss(broker)

    def revive(self, *brokers: BrokerId) -> None:
        """Start whatever of these machines does not run."""
        for broker in brokers:
            self.world.start_machine(broker)

    def pause(self, broker: BrokerId, seconds: float) -> None:
        """SIGSTOP of the broker process for so long."""
        self.world.pause(self.world.brokers[broker], int(seconds * SECOND))

    def pause_store(self, broker: BrokerId, seconds: float) -> None:
        self.world.pause(self.world.stores[broker], int(seconds * SECOND))

    def suspend(self, broker: BrokerId, seconds: float) -> None:
        """The machine sleeps for so long."""
        for process in self.processes_of(broker):
            self.world.pause(process, int(seconds * SECOND))
        self.world.clocks[self.world.host_of(broker)].slept(int(seconds * 1000))

    def processes_of(self, broker: BrokerId) -> list[Process]:
        return [self.world.brokers[broker], self.world.stores[broker]]

    def hold(self, source: str, target: str) -> None:
        """Hold what goes from one host to the other: brokers, clients, etcd. Nothing is lost, as TCP has it."""
        self.world.network.block(self._host(source), self._host(target))

    def let_go(self, source: str, target: str) -> None:
        self.world.network.unblock(self._host(source), self._host(target))

    def lose(self, source: str, target: str) -> None:
        """What is held from one host, which has died, to the other never arrives. Without this a part of it may."""
        self.world.network.lose_stalled(self._host(source), self._host(target))

    def keep(self, source: str, target: str) -> None:
        """What one host sends to the other arrives whenever it is let go, also if the first dies before. Else a part may."""
        self.world.network.kept.add((self._host(source), self._host(target)))

    def cut(self, one: str, *others: str) -> None:
        """Hold everything between one host and the others, both ways."""
        for other in others:
            self.hold(one, other)
            self.hold(other, one)

    def mend(self, one: str, *others: str) -> None:
        for other in others:
            self.let_go(one, other)
            self.let_go(other, one)

    def _host(self, name: str) -> str:
        return self.world.host_of(BrokerId(name)) if BrokerId(name) in self.world.broker_ids else name

    def accept_loss(self, broker: BrokerId, after: LogIndex, *lost: Promise, set_name: SetName = SET) -> None:
        """`lockstep cluster recover --accept-data-loss`: what lies behind `after` is given up, that is what `lost` were told."""
        operations = [promise.operation for promise in lost]
        history = self.world.history
        history.operations = [operation for operation in history.operations if operation not in operations]
        self.until(
            lambda: not self._obstacle_to_loss(broker, set_name), what=f"a disk of {broker} that can be taken"
        )
        self.world.observer.loss_accepted(set_name, after)
        self.expect(self.world.accept_loss(set_name, broker), f"the loss is accepted on {broker}")

    def _obstacle_to_loss(self, broker: BrokerId, set_name: SetName) -> str:
        return self.world.brokers[broker].replicas[set_name].obstacle_to_accepted_loss

    # --- the end ------------------------------------------------------------------------------------------------------

    def expect(self, is_so: bool, sentence: str) -> None:
        """A fact that the scenario's rule asks for, beside the promises."""
        if not is_so:
            self.broken.append(f"expected: {sentence} (at {self.world.loop.now_us / 1e6:.6f} s)")

    def finish(self) -> list[str]:
        """Heal, come to rest, check; the sentences of everything that is broken."""
        world = self.world
        self._triggers.clear()
        world.etcd.detain = None
        world.etcd.deliver_detained()
        world.faults.heal()
        world.is_working = False
        sessions = [session for client in world.clients for session in client.sessions.values()]
        limit_us = world.loop.now_us + REST_US
        is_closing = False
        while world.loop.now_us < limit_us:
            world.loop.run_until(world.loop.now_us + 100 * MS)
            if not is_closing and all(session.actors == 0 for session in sessions):
                is_closing = True
                for session in sessions:
                    session.feed(Close())
            is_closed = is_closing and all(session.is_closed for session in sessions)
            if is_closed and not at_rest(world) and not names_astray(world):
                break
        read_journals(world)
        record = make_record(world)
        for promise, check in CHECKERS.items():
            self.broken += [f"{promise}: {sentence}" for sentence in check(record)]
        return self.broken


def perform(stage: Stage, script: Callable[[Stage], None]) -> list[str]:
    """Play a script to its end and check; what contradicts a promise at once ends it there."""
    try:
        script(stage)
        return stage.finish()
    except PromiseBroken as broken:
        return [*stage.broken, f"{broken} (at {stage.world.loop.now_us / 1e6:.6f} s)"]
    except AssertionError as error:
        return [*stage.broken, f"stopped by an assertion: {error!r}"]
    except Unmet as unmet:
        return [*stage.broken, f"expected: {unmet} (at {stage.world.loop.now_us / 1e6:.6f} s)"]
