"""What is read from a client's commits around a harm."""

import asyncio

import pytest

from bench.failover import Commits, NeverCommitted, watched


def commits(*each: tuple[float, float]) -> Commits:
    made: Commits = asyncio.Queue()
    for one in each:
        made.put_nowait(one)
    return made


async def test_the_first_commit_is_of_a_transaction_that_was_begun_after_the_harm() -> None:
    found = commits((8.0, 9.0), (9.5, 10.5), (10.5, 12.0), (12.0, 13.0))
    assert await watched(found, begin=10.0) == (2.0, 1.5)
    assert found.get_nowait() == (12.0, 13.0), "nobody waits for more"


async def test_the_longest_pause_may_come_behind_the_first_commit() -> None:
    found = commits((10.0, 10.5), (10.5, 11.0), (11.0, 14.0), (14.0, 14.5), (14.5, 16.0), (16.0, 29.0))
    assert await watched(found, begin=10.0, seconds=6.0) == (0.5, 3.0)


async def test_a_pause_that_begins_while_it_is_watched_is_waited_for() -> None:
    found = commits((10.0, 10.5), (10.5, 15.5), (15.5, 25.5))
    assert await watched(found, begin=10.0, seconds=6.0) == (0.5, 10.0)


async def test_a_client_that_never_commits_again_is_not_waited_for_without_end() -> None:
    with pytest.raises(NeverCommitted):
        await watched(commits((8.0, 9.0)), begin=10.0, seconds_max=0.01)
