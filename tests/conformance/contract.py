"""The rows of the DTX contract, one function for each (`lockstep.core.xa`; AMQP 0-10's dtx class, X/Open XA).

Law: what is asserted is what the contract's table says, and what clients see; a row may leave branches for its rig to end.
"""

from collections.abc import Callable

from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.conformance.rig import Rig

OK, RBROLLBACK, RBTIMEOUT, RDONLY = XaStatus.OK, XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT, XaStatus.RDONLY
HEURCOM, HEURRB = XaStatus.HEURCOM, XaStatus.HEURRB

Row = Callable[[Rig], None]
ROWS: dict[str, Row] = {}
NEEDS_BACKUP: set[str] = set()
"""Rows that say what a backup does."""


def row(text: str, needs_backup: bool = False) -> Callable[[Row], Row]:
    """A row by its words in the table: verb, state, answer."""

    def take(function: Row) -> Row:
        assert text not in ROWS, text
        ROWS[text] = function
        if needs_backup:
            NEEDS_BACKUP.add(text)
        return function

    return take


# --- select, start ------------------------------------------------------------------------------------------------------


@row("start, end; session has not selected dtx; 503")
def not_selected(rig: Rig) -> None:
    s, other = rig.session(dtx=False), rig.session("s2")
    assert rig.start(s, rig.xid()) == 503
    xid = rig.prepared(other)
    assert rig.start(s, xid, join=True) == 503
    assert rig.end(s, xid) == 503


@row("prepare, commit, rollback, recover, forget, time-outs; session has not selected dtx; they work")
def completion_without_select(rig: Rig) -> None:
    s, tm = rig.session(), rig.session("tm", dtx=False)
    one, two, three = rig.ended(s), rig.ended(s), rig.ended(s)
    assert rig.set_timeout(tm, one, 100) == OK
    assert rig.get_timeout(tm, one) == "100 s"
    assert rig.prepare(tm, one) == rig.prepare(tm, two) == rig.prepare(tm, three) == OK
    assert rig.recover(tm) == sorted([one, two, three])
    assert rig.commit(tm, one) == OK
    assert rig.rollback(tm, two) == OK
    assert rig.end_heuristically(tm, three, commit=False) == OK
    assert rig.forget(tm, three) == OK


@row("start; xid unknown; ok, branch active and associated with this session")
def start_unknown(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.bodies("q") == []
    assert rig.end(s, xid) == OK
    assert rig.commit(s, xid, one_phase=True) == OK
    assert rig.bodies("q") == [b"in branch"]


@row("start; xid known, neither join nor resume; 530")
def start_known(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    active, ended, prepared = rig.active(other), rig.ended(s), rig.prepared(s)
    for xid in (active, ended, prepared):
        assert rig.start(s, xid) == 530
    heuristic = rig.prepared(s)
    assert rig.end_heuristically(s, heuristic, commit=True) == OK
    assert rig.start(s, heuristic) == 530


@row("start join; known, active; ok: two sessions, one branch")
def join_active(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    xid = rig.active(s, bodies=[b"one"])
    assert rig.start(other, xid, join=True) == OK
    rig.publish(other, "q", [b"two"], xid)
    rig.publish(s, "q", [b"three"], xid)
    assert rig.end(s, xid) == OK
    assert rig.prepare(s, xid) == 409
    assert rig.end(other, xid) == OK
    assert rig.prepare(s, xid) == OK
    assert rig.bodies("q") == []
    assert rig.commit(other, xid) == OK
    assert rig.bodies("q") == [b"one", b"two", b"three"]


@row("start join; unknown; 404")
def join_unknown(rig: Rig) -> None:
    s = rig.session()
    assert rig.start(s, rig.xid(), join=True) == 404
    committed, rolled_back = rig.prepared(s), rig.prepared(s)
    assert rig.commit(s, committed) == rig.rollback(s, rolled_back) == OK
    assert rig.start(s, committed, join=True) == rig.start(s, rolled_back, join=True) == 404


@row("start join; prepared; 503")
def join_prepared(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.start(s, xid, join=True) == 503
    assert rig.commit(s, xid) == OK


@row("start join + resume; any; 503")
def join_and_resume(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.start(s, xid, join=True, resume=True) == 503
    assert rig.start(s, rig.xid(), join=True, resume=True) == 503


@row("start resume; suspended by this session; ok")
def resume_suspended(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s, bodies=[b"one"])
    assert rig.end(s, xid, suspend=True) == OK
    rig.publish(s, "q", [b"outside"])
    assert rig.start(s, xid, resume=True) == OK
    rig.publish(s, "q", [b"two"], xid)
    assert rig.end(s, xid) == OK
    assert rig.commit(s, xid, one_phase=True) == OK
    assert rig.bodies("q") == [b"outside", b"one", b"two"]


@row("start resume; unknown or not suspended; 503")
def resume_not_suspended(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    assert rig.start(s, rig.xid(), resume=True) == 503
    ended = rig.ended(s)
    assert rig.start(s, ended, resume=True) == 503
    active = rig.active(other)
    assert rig.end(other, active, suspend=True) == OK
    assert rig.start(s, active, resume=True) == 503


@row("start of another xid; session still associated with one; 503")
def start_another(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.start(s, rig.xid()) == 503
    assert rig.end(s, xid) == OK
    assert rig.commit(s, xid, one_phase=True) == OK
    assert rig.bodies("q") == [b"in branch"]


# --- end ----------------------------------------------------------------------------------------------------------------


@row("end; associated; ok: what follows in the session is outside the branch")
def end_associated(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    rig.publish(s, "q", [b"outside"])
    assert rig.bodies("q") == [b"outside"]
    assert rig.rollback(s, xid) == OK
    assert rig.bodies("q") == [b"outside"]


@row("end fail; associated; rbrollback, branch is rollback-only")
def end_fail(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.end(s, xid, fail=True) == RBROLLBACK
    assert rig.prepare(s, xid) == RBROLLBACK
    assert rig.rollback(s, xid) == OK
    assert rig.bodies("q") == []


@row("end suspend; associated; ok: stays associated, suspended")
def end_suspend(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.end(s, xid, suspend=True) == OK
    assert rig.prepare(s, xid) == 409
    assert rig.end(s, xid) == OK
    assert rig.commit(s, xid, one_phase=True) == OK
    assert rig.bodies("q") == [b"in branch"]


@row("end suspend + fail; associated; 503, and the branch is rollback-only")
def end_suspend_and_fail(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.end(s, xid, suspend=True, fail=True) == 503
    assert rig.end(s, xid) == OK
    assert rig.prepare(s, xid) == RBROLLBACK
    assert rig.rollback(s, xid) == OK


@row("end; not associated with this session; 409")
def end_not_associated(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    xid = rig.active(other)
    assert rig.end(s, xid) == 409
    assert rig.end(other, xid) == OK
    assert rig.end(other, xid) == 409


@row("end; other xid than started; 503")
def end_another(rig: Rig) -> None:
    s = rig.session()
    ended, xid = rig.ended(s), rig.active(s)
    assert rig.end(s, ended) == 503
    assert rig.end(s, xid) == OK


@row("end of an unknown xid; 409")
def end_unknown(rig: Rig) -> None:
    assert rig.end(rig.session(), rig.xid()) == 409


@row("end; timed out; rbtimeout")
def end_timed_out(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.set_timeout(s, xid, 1) == OK
    rig.pass_time(2)
    assert rig.end(s, xid) == RBTIMEOUT


@row("session closed or lost; associated; branch is rollback-only, prepare then answers rbrollback")
def session_closed(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    rig.publish(other, "q", [b"message"])
    xid = rig.active(s)
    assert rig.take(s, "q", 1, xid) == [(b"message", 0)]
    rig.close(s)
    assert rig.prepare(other, xid) == RBROLLBACK
    assert rig.rollback(other, xid) == OK
    assert rig.take(other, "q", 1) == [(b"message", 1)]


@row("session closed or lost; another is associated too; branch is rollback-only")
def one_of_two_sessions_closed(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    xid = rig.active(s)
    assert rig.start(other, xid, join=True) == OK
    rig.close(s)
    assert rig.end(other, xid) == OK
    assert rig.prepare(other, xid) == RBROLLBACK
    assert rig.rollback(other, xid) == OK
    assert rig.bodies("q") == []


# --- prepare ------------------------------------------------------------------------------------------------------------


@row("prepare; ended; ok when durable at every in-sync broker")
def prepare_ended(rig: Rig) -> None:
    s = rig.session()
    rig.publish(s, "q", [b"message"])
    xid = rig.active(s, "q", [b"reply"])
    rig.take(s, "q", 1, xid)
    assert rig.end(s, xid) == OK
    assert rig.prepare(s, xid) == OK
    assert rig.recover(s) == [xid]
    assert rig.commit(s, xid) == OK
    assert rig.bodies("q") == [b"reply"]


@row("prepare; ended, empty or read-only; ok by default")
def prepare_empty(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s, bodies=[])
    assert rig.recover(s) == [xid]
    assert rig.commit(s, xid) == OK
    assert rig.commit(s, xid) == 404


@row("prepare; ended, empty or read-only; rdonly where the session asked for it")
def prepare_read_only(rig: Rig) -> None:
    s = rig.session(hears_read_only=True)
    xid = rig.ended(s, bodies=[])
    assert rig.prepare(s, xid) == RDONLY
    assert rig.recover(s) == []
    assert rig.commit(s, xid) == 404
    assert rig.prepare(s, rig.ended(s)) == OK


@row("prepare; not ended; 409")
def prepare_not_ended(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.prepare(s, xid) == 409
    assert rig.end(s, xid) == OK
    assert rig.prepare(s, xid) == OK


@row("prepare; rollback-only; rbrollback, xid stays known until rollback")
def prepare_rollback_only(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.end(s, xid, fail=True) == RBROLLBACK
    assert rig.prepare(s, xid) == RBROLLBACK
    assert rig.prepare(s, xid) == RBROLLBACK
    assert rig.rollback(s, xid) == OK
    assert rig.prepare(s, xid) == 404


@row("prepare; refused by a backup or the store while the branch was open; rbrollback", needs_backup=True)
def prepare_refused(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    rig.refuse(xid)
    assert rig.prepare(s, xid) == RBROLLBACK
    assert rig.recover(s) == []
    assert rig.rollback(s, xid) == OK
    assert rig.bodies("q") == []


@row("prepare; unknown; 404")
def prepare_unknown(rig: Rig) -> None:
    assert rig.prepare(rig.session(), rig.xid()) == 404


@row("prepare again; prepared; ok, and commit still works")
def prepare_again(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.prepare(s, xid) == OK
    assert rig.commit(s, xid) == OK
    assert rig.bodies("q") == [b"in branch"]


# --- commit -------------------------------------------------------------------------------------------------------------


@row("commit one-phase; ended, not prepared; ok, xid forgotten")
def commit_one_phase(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.commit(s, xid, one_phase=True) == OK
    assert rig.commit(s, xid, one_phase=True) == 404
    assert rig.bodies("q") == [b"in branch"]
    assert rig.start(s, xid) == OK


@row("commit one-phase; prepared; 409")
def commit_one_phase_prepared(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.commit(s, xid, one_phase=True) == 409
    assert rig.commit(s, xid) == OK


@row("commit two-phase; prepared; ok, xid forgotten")
def commit_two_phase(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.commit(s, xid) == OK
    assert rig.bodies("q") == [b"in branch"]
    assert rig.recover(s) == []
    assert rig.commit(s, xid) == 404


@row("commit two-phase; not prepared; 409")
def commit_not_prepared(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.commit(s, xid) == 409
    assert rig.prepare(s, xid) == OK


@row("commit; not ended or suspended; 409")
def commit_not_ended(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.commit(s, xid, one_phase=True) == 409
    assert rig.commit(s, xid) == 409
    assert rig.end(s, xid, suspend=True) == OK
    assert rig.commit(s, xid, one_phase=True) == 409
    assert rig.end(s, xid) == OK


@row("commit; rollback-only; rbrollback, forgotten")
def commit_rollback_only(rig: Rig) -> None:
    s = rig.session()
    for one_phase in (True, False):
        xid = rig.active(s)
        assert rig.end(s, xid, fail=True) == RBROLLBACK
        assert rig.commit(s, xid, one_phase=one_phase) == RBROLLBACK
        assert rig.commit(s, xid, one_phase=one_phase) == 404
    assert rig.bodies("q") == []


@row("commit; unknown, or already finished; 404")
def commit_unknown(rig: Rig) -> None:
    s = rig.session()
    assert rig.commit(s, rig.xid()) == 404
    xid = rig.prepared(s)
    assert rig.rollback(s, xid) == OK
    assert rig.commit(s, xid) == 404


@row("commit; already finished, the same command repeated by its session; its first answer")
def commit_repeated(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.commit(s, xid, lose_answer=True) == OK
    assert rig.bodies("q") == [b"in branch"]


@row("commit; timed out before prepare; rbtimeout, work undone, then 404")
def commit_timed_out(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.set_timeout(s, xid, 1) == OK
    rig.pass_time(2)
    assert rig.commit(s, xid, one_phase=True) == RBTIMEOUT
    assert rig.commit(s, xid, one_phase=True) == 404
    assert rig.bodies("q") == []


@row("commit; heuristically rolled back or committed; heurrb or heurcom, kept until forget")
def commit_heuristic(rig: Rig) -> None:
    s = rig.session()
    for is_commit, status in ((True, HEURCOM), (False, HEURRB)):
        xid = rig.prepared(s)
        assert rig.end_heuristically(s, xid, commit=is_commit) == OK
        assert rig.commit(s, xid) == status
        assert rig.commit(s, xid) == status
        assert rig.recover(s) == [xid]
        assert rig.forget(s, xid) == OK
        assert rig.commit(s, xid) == 404
        assert rig.recover(s) == []
    assert rig.bodies("q") == [b"in branch"]


# --- rollback -----------------------------------------------------------------------------------------------------------


def _accepting(rig: Rig, s: str, bodies: list[bytes]) -> bytes:
    """A branch that accepts messages of q, which is empty otherwise."""
    rig.publish(s, "q", bodies)
    xid = rig.active(s)
    assert rig.take(s, "q", len(bodies), xid) == [(body, 0) for body in bodies]
    return xid


@row(
    "rollback; ended, prepared or rollback-only; ok, forgotten, messages back in their order, delivery count + 1"
)
def rollback_known(rig: Rig) -> None:
    s = rig.session()
    for state in ("ended", "prepared", "rollback-only"):
        bodies = [b"%d, %s" % (number, state.encode()) for number in range(3)]
        xid = _accepting(rig, s, bodies)
        assert rig.end(s, xid, fail=state == "rollback-only") in (OK, RBROLLBACK)
        if state == "prepared":
            assert rig.prepare(s, xid) == OK
        assert rig.rollback(s, xid) == OK
        assert rig.rollback(s, xid) == 404
        assert rig.bodies("q") == bodies
        assert rig.take(s, "q", 3) == [(body, 1) for body in bodies]


@row("rollback; not ended; 409")
def rollback_not_ended(rig: Rig) -> None:
    s = rig.session()
    xid = rig.active(s)
    assert rig.rollback(s, xid) == 409
    assert rig.end(s, xid) == OK
    assert rig.rollback(s, xid) == OK


@row("rollback; timed out; rbtimeout")
def rollback_timed_out(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.set_timeout(s, xid, 1) == OK
    rig.pass_time(2)
    assert rig.rollback(s, xid) == RBTIMEOUT
    assert rig.rollback(s, xid) == 404


@row("rollback; unknown; 404")
def rollback_unknown(rig: Rig) -> None:
    assert rig.rollback(rig.session(), rig.xid()) == 404


# --- recover, forget ----------------------------------------------------------------------------------------------------


@row("recover; any; xids prepared or heuristically finished, stable while scanned")
def recover_lists(rig: Rig) -> None:
    s = rig.session()
    assert rig.recover(s) == []
    prepared = [rig.prepared(s) for _ in range(4)]
    heuristic = rig.prepared(s)
    assert rig.end_heuristically(s, heuristic, commit=False) == OK
    assert rig.recover(s) == sorted([*prepared, heuristic])
    assert rig.commit(s, prepared[0]) == OK
    assert rig.recover(s) == sorted([*prepared[1:], heuristic])


@row("recover; open branches are not in it")
def recover_without_open(rig: Rig) -> None:
    s, other = rig.session(), rig.session("s2")
    rig.active(other)
    rig.ended(s)
    assert rig.recover(s) == []


@row("forget; heuristically finished; ok, record dropped")
def forget_heuristic(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.end_heuristically(s, xid, commit=True) == OK
    assert rig.forget(s, xid) == OK
    assert rig.recover(s) == []
    assert rig.forget(s, xid) == 404


@row("forget; anything else; 404 unknown, 409 otherwise")
def forget_others(rig: Rig) -> None:
    s = rig.session()
    assert rig.forget(s, rig.xid()) == 404
    xid = rig.prepared(s)
    assert rig.forget(s, xid) == 409
    assert rig.commit(s, xid) == OK
    assert rig.forget(s, xid) == 404
    assert rig.forget(s, rig.ended(s)) == 409


# --- time-outs ----------------------------------------------------------------------------------------------------------


@row("get-timeout; known; seconds, default 60")
def get_timeout(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.get_timeout(s, xid) == "60 s"
    assert rig.set_timeout(s, xid, 3600) == OK
    assert rig.get_timeout(s, xid) == "3600 s"


@row("get-timeout, set-timeout; unknown; 404")
def timeouts_unknown(rig: Rig) -> None:
    s = rig.session()
    assert rig.get_timeout(s, rig.xid()) == 404
    assert rig.set_timeout(s, rig.xid(), 10) == 404


@row("set-timeout; over the maximum; 542")
def set_timeout_too_long(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.set_timeout(s, xid, 3601) == 542
    assert rig.get_timeout(s, xid) == "60 s"


@row("set-timeout 0; known; no time-out")
def set_timeout_zero(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.set_timeout(s, xid, 4) == OK
    assert rig.set_timeout(s, xid, 0) == OK
    rig.pass_time(6)
    assert rig.get_timeout(s, xid) == "0 s"
    assert rig.commit(s, xid, one_phase=True) == OK


@row("time passes; prepared; nothing: time-outs end at prepare")
def prepared_does_not_time_out(rig: Rig) -> None:
    s = rig.session()
    xid = rig.ended(s)
    assert rig.set_timeout(s, xid, 4) == OK
    assert rig.prepare(s, xid) == OK
    rig.pass_time(6)
    assert rig.recover(s) == [xid]
    assert rig.commit(s, xid) == OK
    assert rig.bodies("q") == [b"in branch"]


# --- across failures ----------------------------------------------------------------------------------------------------


@row(
    "primary lost, backup promoted; prepared branch; in recover() at once, invisible and locked, both outcomes work",
    True,
)
def prepared_and_failover(rig: Rig) -> None:
    s = rig.session()
    for is_commit in (True, False):
        bodies = [b"%d, %d" % (number, is_commit) for number in range(3)]
        xid = _accepting(rig, s, bodies)
        assert rig.end(s, xid) == OK
        assert rig.prepare(s, xid) == OK
        rig.kill_primary()
        assert rig.recover(s) == [xid]
        assert rig.bodies("q") == bodies
        assert rig.free("q") == 0
        assert (rig.commit(s, xid) if is_commit else rig.rollback(s, xid)) == OK
        assert rig.recover(s) == []
        left = [(b"in branch", 0)] if is_commit else [(body, 1) for body in bodies]
        assert rig.take(s, "q", len(left)) == left
        assert rig.bodies("q") == []


@row("primary lost, backup promoted; open branch; aborted, and whoever knows its xid is told", True)
def open_and_failover(rig: Rig) -> None:
    s = rig.session()
    rig.publish(s, "q", [b"message"])
    associated, ended = rig.active(s), rig.xid()
    assert rig.take(s, "q", 1, associated) == [(b"message", 0)]
    other = rig.session("s2")
    ended = rig.ended(other)
    rig.kill_primary()
    assert rig.recover(s) == []
    assert rig.end(s, associated) == RBROLLBACK
    assert rig.prepare(s, associated) == RBROLLBACK
    assert rig.rollback(s, associated) == OK
    assert rig.rollback(s, associated) == 404
    assert rig.commit(other, ended, one_phase=True) == RBROLLBACK
    assert rig.commit(other, ended, one_phase=True) == 404
    assert rig.bodies("q") == [b"message"]


@row("old primary returns; prepared branch that ended meanwhile; no zombie xid", True)
def no_zombie(rig: Rig) -> None:
    s = rig.session()
    committed, rolled_back = rig.prepared(s, bodies=[b"one"]), rig.prepared(s, bodies=[b"two"])
    rig.kill_primary()
    assert rig.commit(s, committed) == OK
    assert rig.rollback(s, rolled_back) == OK
    rig.kill_primary()
    rig.kill_primary()
    assert rig.recover(s) == []
    assert rig.commit(s, committed) == rig.rollback(s, rolled_back) == 404
    assert rig.bodies("q") == [b"one"]


@row("whole cluster killed and restarted; prepared branch; in recover(), locked, both outcomes work")
def prepared_and_restart(rig: Rig) -> None:
    s = rig.session()
    for is_commit in (True, False):
        bodies = [b"%d, %d" % (number, is_commit) for number in range(2)]
        xid = _accepting(rig, s, bodies)
        assert rig.end(s, xid) == OK
        assert rig.prepare(s, xid) == OK
        rig.restart_all()
        s = rig.session(f"after {is_commit}")
        assert rig.recover(s) == [xid]
        assert rig.bodies("q") == bodies
        assert rig.free("q") == 0
        assert (rig.commit(s, xid) if is_commit else rig.rollback(s, xid)) == OK
        left = [b"in branch"] if is_commit else bodies
        assert [body for body, _ in rig.take(s, "q", len(left))] == left
        assert rig.bodies("q") == []


@row("whole cluster killed and restarted; open branch; aborted")
def open_and_restart(rig: Rig) -> None:
    s = rig.session()
    rig.publish(s, "q", [b"message"])
    xid = rig.active(s)
    rig.take(s, "q", 1, xid)
    rig.restart_all()
    s = rig.session("after")
    assert rig.recover(s) == []
    assert rig.prepare(s, xid) == 404
    assert rig.bodies("q") == [b"message"]


@row("whole cluster killed and restarted; heuristic outcome; kept until forget")
def heuristic_and_restart(rig: Rig) -> None:
    s = rig.session()
    xid = rig.prepared(s)
    assert rig.end_heuristically(s, xid, commit=False) == OK
    rig.restart_all()
    s = rig.session("after")
    assert rig.recover(s) == [xid]
    assert rig.commit(s, xid) == HEURRB
    assert rig.forget(s, xid) == OK


# --- after a restart, by the sentences of Reliability Requirements ------------------------------------------------------


def _prepared_with_both_kinds(rig: Rig) -> tuple[str, bytes]:
    """A prepared branch that enqueues and dequeues a durable and a non-durable message; the cluster is restarted."""
    s = rig.session()
    rig.publish(s, "q", [b"durable taken"])
    rig.publish(s, "q", [b"non-durable taken"], durable=False)
    xid = rig.active(s, bodies=[b"durable put"])
    rig.publish(s, "q", [b"non-durable put"], xid, durable=False)
    assert len(rig.take(s, "q", 2, xid)) == 2
    assert rig.end(s, xid) == OK
    assert rig.prepare(s, xid) == OK
    rig.restart_all()
    return rig.session("after"), xid


@row("restart, commit; durable messages enqueued appear, non-durable ones are lost, dequeued ones are gone")
def commit_after_restart(rig: Rig) -> None:
    s, xid = _prepared_with_both_kinds(rig)
    assert rig.bodies("q") == [b"durable taken"]
    assert rig.free("q") == 0
    assert rig.commit(s, xid) == OK
    assert rig.bodies("q") == [b"durable put"]


@row(
    "restart, rollback; durable messages dequeued are back, non-durable ones are lost, enqueued ones are gone"
)
def rollback_after_restart(rig: Rig) -> None:
    s, xid = _prepared_with_both_kinds(rig)
    assert rig.rollback(s, xid) == OK
    assert rig.bodies("q") == [b"durable taken"]


@row("any; malformed xid; 542")
def malformed_xid(rig: Rig) -> None:
    s = rig.session()
    head = b"\x00\x00\x00\x01"
    for bad in (
        b"",
        b"x",
        head + b"\x41" + b"g" * 65,
        head + b"\x01g" + b"b" * 65,
        head + b"\x00",
        b"\xff" * 5,
    ):
        assert rig.start(s, bad) == 542
        assert rig.commit(s, bad) == 542
    longest = Xid(2**31 - 1, b"g" * 64, b"b" * 64).encode()
    assert rig.start(s, longest) == OK
    # It is the same each time that the row is played: who ends it hears of it, so that nothing of it stays.
    assert rig.end(s, longest) == OK
    assert rig.rollback(s, longest) == OK
