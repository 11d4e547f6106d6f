"""Blocks: stretches of a log between records, counted and marked."""

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.ids import LogIndex
from lockstep.core.pieces import at_once
from lockstep.core.records import Commit, Prepare
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.blocks import BLOCK_EVENTS, BLOCK_FRAMES, Block, BlockCutter
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.core.events.planning import Offset
from services.broker.core.events.state_names import StateNames
from services.broker.events.batches import encode_batches
from tests.unit.lockstep.core.history import SET, Log, message

TAG = generation_tag("a1b2c3d4-0000")
XID = branch_xid(GlobalId(bytes(GLOBAL_ID_BYTES)), 1, TAG).encode()


def blocks(log: Log, after: int = 0, until: int = 1 << 40) -> list[Block]:
    log.flush()
    cutter = BlockCutter(EventBuilder(StateNames(log.state), LogIndex(after)), LogIndex(until))
    found = []
    for frame in log.frames:
        if frame.header.last > after and frame.header.first <= until:
            block = at_once(cutter.feed_in_steps(DecodedFrame.of(frame.durable)))
            if block is not None:
                found.append(block)
    rest = cutter.rest()
    return found if rest is None else [*found, rest]


def busy_log(frames: int, messages: int) -> Log:
    log = Log()
    queue = log.queue("q")
    log.flush()
    for _ in range(frames):
        log.publish(*(message((queue,)) for _ in range(messages)))
        log.flush()
    return log


def test_blocks_follow_each_other_and_hold_everything_once() -> None:
    log = busy_log(20, 300)
    found = blocks(log)
    assert [block.after for block in found] == [0, *(block.end.index for block in found[:-1])]
    assert found[-1].end == Offset(log.state.applied, log.epoch)
    assert sum(block.events for block in found) == 20 * 300 + 1
    assert all(block.events >= BLOCK_EVENTS for block in found[:-1])
    for block in found:
        assert block.marks[-1].offset == block.end
        assert sum(mark.events for mark in block.marks) == sum(done.events for done in block.transactions)
        assert [mark.events for mark in block.marks if mark.events != 300] in ([], [1])


def test_a_block_ends_where_little_is_committed_too() -> None:
    found = blocks(busy_log(BLOCK_FRAMES + 10, 1))
    assert len(found) == 2


def test_a_block_that_is_cut_inside_a_frame_and_the_next_one_hold_everything_once() -> None:
    log = Log()
    queue = log.queue("q")
    for _ in range(5):
        log.publish(message((queue,)))
    whole = [done.index for block in blocks(log) for done in block.transactions]
    for until in range(1, 6):
        (first,) = blocks(log, until=until)
        (second,) = blocks(log, after=until)
        assert first.end == Offset(LogIndex(until), log.epoch)
        assert [done.index for block in (first, second) for done in block.transactions] == whole


def test_nothing_to_read_is_no_block() -> None:
    log = busy_log(1, 1)
    assert blocks(log, after=log.state.applied) == []


def test_a_block_knows_the_commits_of_our_coordinator_and_what_stands_before_them() -> None:
    log = Log()
    queue = log.queue("q")
    ours, other = log.begin(XID), log.begin(b"of somebody else")
    for key, xid in ((ours, XID), (other, b"of somebody else")):
        log.publish(message((queue,)), transaction=key)
        log.prepare(key, xid)
    log.publish(message((queue,)), message((queue,)))
    log.append(Commit(None, other))
    commit = log.append(Commit(None, ours))
    log.publish(message((queue,)))
    (block,) = blocks(log)
    (joint,) = block.joint_commits
    assert (joint.xid, joint.index, joint.before) == (XID, commit, Offset(LogIndex(commit - 1), log.epoch))
    assert joint.events_before == 1 + 2 + 1
    assert block.events == 1 + 2 + 1 + 1 + 1


def test_a_joint_commit_without_events_is_told_by_its_block_and_by_nobody_who_reads() -> None:
    """What was published is not durable; or nothing was done, and the branch has ended with its vote."""
    log = Log()
    queue = log.queue("transient", is_durable=False)
    xids = [branch_xid(GlobalId(bytes([7] * GLOBAL_ID_BYTES)), number, TAG).encode() for number in range(2)]
    committed, read_only = (log.begin(xid) for xid in xids)
    log.publish(message((queue,), is_durable=False), transaction=committed, is_durable=False)
    log.prepare(committed, xids[0], ("east", "orders"))
    ends = [log.commit_prepared(committed)]
    ends.append(log.append(Prepare(None, read_only, True, xids[1], 0, ("east", "orders"), durable_records=0)))
    log.flush()
    (block,) = blocks(log)
    assert [(joint.index, joint.is_empty, joint.resource_sets) for joint in block.joint_commits] == [
        (index, True, ("east", "orders")) for index in ends
    ]
    assert block.events == 0
    start = Offset(LogIndex(0), log.epoch)
    (batch,) = encode_batches(SET, block.transactions, start, block.end, True)
    assert not pb.EventBatch.FromString(batch).transactions
