"""A prepared branch of a distributed transaction, made by hand: what a script needs in the place of a coordinator."""

from collections.abc import Callable

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, ParticipantName, branch_xid, generation_tag
from lockstep.core.cluster_map import Keys
from lockstep.core.commands import EndCommand, PrepareBranchCommand, SelectDtxCommand, StartCommand
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.ids import BrokerId, Incarnation, SetName, TransactionKey
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.coordinator.core.messages import Decide, Effect
from tests.simulation.client import Client
from tests.simulation.coordinator import Coordinator
from tests.simulation.loop import SECOND
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import ETCD, Stage

GLOBAL_ID = GlobalId(bytes(range(GLOBAL_ID_BYTES)))
CLUSTER = "sim"
SECOND_SET = SetName("s2")


def xid_of_it(stage: Stage) -> Xid:
    """The branch's name, in the generation that the cluster is in."""
    return branch_xid(GLOBAL_ID, 0, generation_tag(_generation(stage)))


def another_xid(stage: Stage) -> Xid:
    """Of a transaction of which nobody writes anything into the decision log."""
    return branch_xid(GlobalId(GLOBAL_ID[::-1]), 0, generation_tag(_generation(stage)))


def prepare(stage: Stage, client: ScriptedClient, xid: Xid, operations: int = 1) -> TransactionKey:
    """Publish to queue `a` in it, so often, end the work, prepare it, and wait for all of that; returns its transaction."""
    transaction = prepare_if_begun(stage, client, xid, operations)
    assert transaction is not None
    return transaction


def prepare_if_begun(
    stage: Stage, client: ScriptedClient, xid: Xid, operations: int = 1
) -> TransactionKey | None:
    """The same; None, and nothing else is done, where its begin is refused."""
    session, name = client.session, xid.encode()
    stage.done(session.submit(SelectDtxCommand(0)))
    started = stage.done(session.submit(StartCommand(0, name)))
    if started.is_rejected:
        return None
    assert started.transaction is not None
    client.all_done([client.publish("a", started.transaction) for _ in range(operations)])
    stage.done(session.submit(EndCommand(0, name, 0)))
    stage.done(session.submit(PrepareBranchCommand(0, name)))
    return started.transaction


def prepare_in_second_set(stage: Stage, first: Xid) -> None:
    """A branch without operations: that holds its transaction up as any other does."""
    client = Client(stage.world, "c2", [SECOND_SET])
    stage.world.clients.append(client)
    _, _, tag = first.branch_id.decode().partition(":")
    name = first._replace(branch_id=f"1:{tag}".encode()).encode()
    for command in (
        SelectDtxCommand(0),
        StartCommand(0, name),
        EndCommand(0, name, 0),
        PrepareBranchCommand(0, name),
    ):
        stage.done(client.sessions[SECOND_SET].submit(command))


def write_participants(stage: Stage, committed: tuple[int, ...] = ()) -> None:
    """The list, by a coordinator that is gone. `committed`: of those it had heard that they have."""
    entry = ParticipantsEntry(
        (ParticipantName("set:s1"), ParticipantName("set:s2")),
        generation_tag(_generation(stage)),
        Incarnation("gone"),
        0,
        committed=committed,
    )
    key = DecisionKeys(CLUSTER).participants(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, entry.encode()))


def only_the_first_set_commits(stage: Stage, client: ScriptedClient) -> Xid:
    """COMMIT is decided over two sets, and coordinator k1 reaches the first one alone, whose branch has this name."""
    xid = xid_of_it(stage)
    prepare(stage, client, xid)
    prepare_in_second_set(stage, xid)
    write_participants(stage)
    decide(stage, Verdict.COMMIT)
    stage.world.coordinators.start("k1")
    away = leader_of_second_set(stage)
    stage.expect(away != stage.map.primary, "the sets are led by two brokers")
    stage.cut("k1", away)
    stage.until(lambda: prepared_count(stage) == 0, what="the first set commits")
    return xid


def committed_without_hazard(stage: Stage) -> None:
    """Waits for the outcome that the log keeps."""
    etcd, key = stage.world.etcd, DecisionKeys(CLUSTER).outcome(GLOBAL_ID)
    stage.until(lambda: etcd.get(key) is not None, what="an outcome")
    entry = etcd.get(key)
    assert entry is not None
    outcome = OutcomeEntry.decode(entry.value)
    stage.expect(outcome.verdict is Verdict.COMMIT and outcome.heuristic is XaStatus.OK, "no hazard")


def leader_of_second_set(stage: Stage) -> BrokerId:
    return next(entry.primary for entry in stage.world.set_maps() if entry.set_name == SECOND_SET)


def forget_participants(stage: Stage) -> None:
    """Nothing is left of it."""
    key = DecisionKeys(CLUSTER).participants(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.delete(key))


def decide(stage: Stage, verdict: Verdict) -> None:
    key = DecisionKeys(CLUSTER).decision(GLOBAL_ID)
    stage.world.etcd.execute(lambda etcd: etcd.put(key, verdict.encode()))


def prepared_count(stage: Stage) -> int:
    """Prepared branches at the primary; -1: there is none."""
    core = stage.primary_core(stage.map.primary)
    return len(core.context.state.transactions.prepared()) if core is not None else -1


def cut_off_when_it_decides(stage: Stage) -> None:
    """The coordinator k1 has all votes, and does not reach etcd any more."""
    _when_it_decides(stage, lambda _: stage.cut("k1", ETCD))


def asleep_when_it_decides(stage: Stage, seconds: float) -> None:
    """The coordinator k1 has all votes, and stands still with what it is about to write."""
    _when_it_decides(stage, lambda process: stage.world.pause(process, int(seconds * SECOND)))


def _when_it_decides(stage: Stage, then: Callable[[Coordinator], None]) -> None:
    coordinators = stage.world.coordinators

    def look(process: Coordinator, effect: Effect) -> None:
        if isinstance(effect, Decide):
            coordinators.before_effect = None
            then(process)

    coordinators.before_effect = look


def is_known(stage: Stage, xid: Xid) -> bool:
    """Whether the primary, which there is, remembers how that branch ended."""
    core = stage.primary_core(stage.map.primary)
    assert core is not None
    return core.context.state.outcomes.find_xid(xid.encode()) is not None


def _generation(stage: Stage) -> str:
    entry = stage.world.etcd.get(Keys(CLUSTER).generation)
    assert entry is not None
    return entry.value.decode()
