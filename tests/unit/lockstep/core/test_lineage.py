"""Lineages: which generations are of the history that etcd shows."""

import pytest

from lockstep.core.lineage import EARLIER_MAX, Lineage


def test_every_generation_that_an_accepted_loss_has_changed_is_of_the_lineage() -> None:
    lineage = Lineage("g1").changed_to("g2").changed_to("g3")
    assert Lineage.read("g3", lineage.encode()) == lineage
    assert [generation in lineage for generation in ("g1", "g2", "g3", "g4", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_first_generation_has_none_before_it() -> None:
    assert Lineage.read("g1", b"") == Lineage("g1") == Lineage().changed_to("g1")


def test_a_lineage_of_another_generation_says_nothing() -> None:
    """Whoever wrote the generation last did not know of lineages, and may have begun a new one."""
    stale = Lineage("g1").changed_to("g2").encode()
    assert Lineage.read("g3", stale) == Lineage("g3")


def test_the_oldest_are_forgotten() -> None:
    lineage = Lineage("g")
    for number in range(EARLIER_MAX + 1):
        lineage = lineage.changed_to(f"g{number}")
    assert len(lineage.earlier) == EARLIER_MAX
    assert "g" not in lineage and "g0" in lineage


@pytest.mark.parametrize("value", [b"{", b"[]", b"7", b'{"generation":"g"}'])
def test_anything_else_is_no_lineage(value: bytes) -> None:
    with pytest.raises(ValueError):
        Lineage.read("g", value)
