"""Clients hear on their open streams when others may serve the set: all of them, many in turns (DESIGN 6)."""

import pytest

from lockstep.core.inputs import CandidatesSeen, LeaseExtended, LeaseLost, Woken
from lockstep.core.server_messages import CandidatesChanged, SessionAttached
from services.primary.core import known_hosts
from tests.unit.services.primary.primary_rig import LEASE_MS, SET, Rig, RigClient


def told(client: RigClient) -> int:
    return len(client.heard_of(CandidatesChanged))


def test_every_attached_client_hears_of_a_change_in_this_epoch() -> None:
    rig = Rig()
    clients = [rig.client(), rig.client()]
    rig.feed(CandidatesSeen(SET))
    for client in clients:
        (message,) = client.heard_of(CandidatesChanged)
        assert (message.epoch, message.commit_index) == (rig.core.epoch, rig.core.commit_index)
        assert message.candidates == (), "the addresses are filled in as it is written"


def test_a_client_that_attaches_later_hears_it_with_that_alone() -> None:
    rig = Rig()
    rig.feed(CandidatesSeen(SET))
    client = rig.client()
    rig.pass_time(50)
    assert told(client) == 0
    assert [one.candidates for one in client.heard_of(SessionAttached)] == [()]


def test_a_client_that_has_left_hears_nothing() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.lose_stream()
    rig.feed(CandidatesSeen(SET))
    assert (told(client), told(other)) == (0, 1)


def test_many_clients_hear_it_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_hosts, "STREAMS_TOLD_MAX", 2)
    rig = Rig()
    clients = [rig.client() for _ in range(5)]
    rig.feed(CandidatesSeen(SET))
    assert sum(map(told, clients)) == 2
    assert rig.wakes, "it goes on by itself, before the next tick"
    rig.boottime_ms += 1
    rig.feed(Woken(SET))
    assert sum(map(told, clients)) == 4
    rig.pass_time(50)
    assert [told(client) for client in clients] == [1] * 5
    wakes = len(rig.wakes)
    rig.pass_time(50)
    assert [told(client) for client in clients] == [1] * 5
    assert len(rig.wakes) == wakes


def test_nothing_is_said_behind_the_lease_and_it_is_not_forgotten() -> None:
    rig = Rig()
    client = rig.client()
    rig.feed(LeaseLost(SET))
    rig.feed(CandidatesSeen(SET))
    assert told(client) == 0
    rig.feed(LeaseExtended(SET, 2, rig.boottime_ms + LEASE_MS))
    rig.pass_time(50)
    assert told(client) == 1
