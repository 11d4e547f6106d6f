"""Long things come one behind the other, and something always waits: each is answered, and its primary can leave (P7, T8).

A client ends transactions of many single operations, without waiting for one to end. Each end is done in pieces between which
nothing comes. The first is answered while others wait for their turn; what was answered is there when the primary dies then; and
a hand-over comes behind the one that is under way, and waits for no more.
"""

from tests.simulation.options import Options
from tests.simulation.promises import Promise
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("each is answered", "it dies", "it is handed over")
OPERATIONS, ENDS = 60, 24


def options_of(case: object) -> Options:
    return calm(piece_cost=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client()
    client.declare("a")
    ends = _end_many(client)
    stage.until(lambda: is_amid(stage), what="the end of a transaction")
    if case == "it is handed over":
        ask_hand_over(stage, A, B)
        stage.until(lambda: stage.primary_core(A) is None, what="the end of the reign")
        stage.expect(not ends[-1].is_done, "it left while some waited")
        stage.serves(B)
    else:
        stage.until(lambda: ends[0].is_done, what="an answer")
        stage.expect(not ends[2].is_done, "it is answered before those behind it are done")
        if case == "it dies":
            stage.kill(A)
            stage.until(lambda: stage.map.primary in (B, C), what="a successor")
            stage.serves(stage.map.primary)
    for number, end in enumerate(ends):
        is_ok = stage.done(end).is_ok
        stage.expect(is_ok or (case == "it dies" and number > 0), "it is committed")
    committed = sum(end.operation is not None and end.operation.is_ok for end in ends)
    stage.expect(len(set(client.browse("a"))) >= OPERATIONS * committed, "all of that is there")
    stage.revive(A)
    stage.whole()


def _end_many(client: ScriptedClient) -> list[Promise]:
    keys = [client.begin() for _ in range(ENDS)]
    client.all_done([client.publish("a", key) for key in keys for _ in range(OPERATIONS)])
    return [client.commit(key) for key in keys]


def is_amid(stage: Stage) -> bool:
    core = stage.primary_core(A)
    return core is not None and bool(core.context.alone.works)
