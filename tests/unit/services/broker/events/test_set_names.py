"""Which resource sets there are, where a broker's view of etcd lags."""

import asyncio

import pytest

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.stamps import Stamp
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.etcd import Entry, EtcdRejected
from services.broker.events.set_names import SetNames

EAST, WEST = SetName("east"), SetName("west")
KEYS = Keys("c")


async def nothing_read(_prefix: str) -> tuple[list[Entry], int]:
    """Of an etcd that nobody put anything into."""
    return [], 1


class Etcd:
    """Sets that are there, by their keys."""

    def __init__(self, *keys: str) -> None:
        """In the order in which they were made."""
        self.keys = keys
        self.is_reachable = True

    async def read(self, prefix: str) -> tuple[list[Entry], int]:
        if not self.is_reachable:
            raise EtcdRejected(ErrorCode.UNAVAILABLE, "nobody answers")
        made = enumerate(self.keys, 1)
        entries = [Entry(key, b"", revision, 7, 0) for revision, key in made if key.startswith(prefix)]
        return sorted(entries, key=lambda entry: entry.key), 7


def map_view(name: SetName) -> SetView:
    """Of a set that nobody serves yet."""
    nobody = Incarnation("")
    return SetView(SetMap(name, Epoch(0), BrokerId(""), nobody, (), (), (BrokerId("b"),), 1, 1, nobody))


def view_of(*names: SetName) -> ClusterView:
    view = ClusterView(KEYS)
    view.sets |= {name: map_view(name) for name in names}
    return view


async def test_a_set_that_etcd_has_is_waited_for_until_the_view_has_it() -> None:
    view, etcd = view_of(EAST), Etcd(KEYS.set_map(EAST), KEYS.set_map(WEST), KEYS.set_lease(EAST))
    names = SetNames(view, etcd.read)
    asked = asyncio.ensure_future(names.all())
    await asyncio.sleep(0.05)
    assert not asked.done()
    view.sets[WEST] = map_view(WEST)
    assert await asked == names.known() == [EAST, WEST]


async def test_the_oldest_comes_first_and_what_only_the_view_has_comes_last() -> None:
    """Whoever opens a group asks the first one, whatever sets come meanwhile."""
    north, south = SetName("north"), SetName("a-south")
    view = view_of(EAST, WEST, north, south)
    etcd = Etcd(KEYS.set_map(WEST), KEYS.set_lease(EAST), KEYS.set_map(north), KEYS.set_map(EAST))
    assert await SetNames(view, etcd.read).all() == [WEST, north, EAST, south]


async def test_a_view_that_stays_behind_is_said_and_not_gone_by() -> None:
    names = SetNames(view_of(EAST), Etcd(KEYS.set_map(WEST)).read, wait_seconds=0.05)
    assert names.known() == [EAST]
    with pytest.raises(Rejected) as caught:
        await names.all()
    assert (caught.value.code, caught.value.details["set_name"]) == (ErrorCode.UNAVAILABLE, WEST)


async def test_a_set_without_a_map_entry_is_none() -> None:
    view = view_of(EAST)
    view.sets[WEST] = SetView()
    etcd = Etcd(KEYS.set_map(EAST), KEYS.set_lease(WEST))
    assert await SetNames(view, etcd.read).all() == [EAST]


async def test_what_the_view_has_is_not_believed_to_be_all_while_etcd_is_silent() -> None:
    etcd = Etcd(KEYS.set_map(EAST))
    etcd.is_reachable = False
    with pytest.raises(Rejected) as caught:
        await SetNames(view_of(EAST), etcd.read).all()
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_name_is_missing_only_where_etcd_says_so() -> None:
    etcd = Etcd(KEYS.set_map(EAST), KEYS.set_lease(WEST))
    names = SetNames(view_of(SetName("newer")), etcd.read)
    assert await names.missing({"east", "west", "newer", "nosuch"}) == {"west", "nosuch"}
    etcd.is_reachable = False
    assert await names.missing({"nosuch"}) == set()


async def test_a_name_that_an_etcd_lacks_which_was_set_back_is_not_missing() -> None:
    """The set may have come behind the backup that it was restored from: as etcd says, by a stamp, or by its revision."""
    marked, stamped, behind = view_of(EAST), view_of(EAST), view_of(EAST)
    marked.set_back_by = "broker b"
    stamped.stamp = Stamp("b", 1, 5)
    behind.etcd_revision = 8
    for view in (marked, stamped, behind):
        names = SetNames(view, Etcd(KEYS.set_map(EAST)).read)
        assert await names.missing({"west"}) == set()
