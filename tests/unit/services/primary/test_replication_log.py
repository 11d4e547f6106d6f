"""The log of a new reign: what is kept and what is not committed it knows from the frames that it takes over."""

from collections import deque

import pytest

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.log_copy import LogCopy
from services.primary.core.replication_log import ReplicationLog
from tests.unit.services.replicas import copy_of, frames

COUNT = 10


def applied_copy() -> LogCopy:
    copy = copy_of(*frames(1, 1, COUNT))
    copy.apply_to(LogIndex(COUNT))
    return copy


def log_of(copy: LogCopy, commit_index: int) -> ReplicationLog:
    kept, size = deque(copy.retained), copy.retained_bytes
    return ReplicationLog(Epoch(2), kept, size, LogIndex(0), copy.log_end, LogIndex(commit_index), 1, 1)


@pytest.mark.parametrize("commit_index", range(COUNT + 1))
def test_what_is_not_committed_counts_as_it_would_have_from_the_beginning(commit_index: int) -> None:
    copy = applied_copy()
    log = log_of(copy, commit_index)
    behind = sum(len(frame.durable) + len(frame.transient) for frame in list(copy.retained)[commit_index:])
    assert log.uncommitted_bytes == behind
    log.committed(LogIndex(COUNT))
    assert log.uncommitted_bytes == 0
    log.forget(LogIndex(COUNT), 0)
    assert log.retained_from == COUNT


@pytest.mark.parametrize("index", range(COUNT + 1))
def test_the_frames_behind_an_index_are_those_that_begin_there(index: int) -> None:
    copy = applied_copy()
    expected = list(range(index + 1, COUNT + 1))
    for found in (log_of(copy, COUNT).frames_after(LogIndex(index)), copy.frames_after(LogIndex(index))):
        assert [frame.header.first for frame in found] == expected
