"""What a replica may take part with while its disk remembers more than etcd has, and from when on that is settled."""

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.inputs import MapSeen
from lockstep.core.store_protocol import RememberMap, SetOpened
from services.backup.core.backup_memory import LogStanding
from services.broker.core.set_facts import SetFacts

SET, ME = SetName("west"), Incarnation("me")
B1 = BrokerId("B1")
ENTRY = SetMap(SET, Epoch(2), B1, ME, (Member(B1, DiskId("d1"), ME),), (), (B1,), 1, 0, ME)


def test_once_a_primary_has_taken_it_a_disk_that_remembers_more_is_told_what_etcd_has() -> None:
    facts = SetFacts(SET)
    facts.map_seen(MapSeen(SET, ENTRY, 5, ENTRY.encode(), "g"))
    opened = SetOpened(
        SET,
        Epoch(2),
        ME,
        DiskId("d1"),
        LogIndex(0),
        (),
        LogIndex(0),
        LogIndex(0),
        Epoch(2),
        ENTRY.encode(),
        9,
        "g",
        "",
    )
    facts.opened(opened)
    assert facts.standing(opened) is LogStanding.AHEAD
    assert facts.remember(Epoch(2), ME) is None, "it is the only one that knows"
    facts.judge(opened, is_following=True)
    assert facts.standing(opened) is LogStanding.OURS
    told = facts.remember(Epoch(2), ME)
    assert told is not None and isinstance(told.request, RememberMap) and told.request.revision == 5
