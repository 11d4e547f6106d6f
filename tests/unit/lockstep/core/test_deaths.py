"""Why a message is a dead letter: once for each queue and reason, the last one first."""

from lockstep.core.deaths import DEATHS_MAX, Death, DeathReason, Deaths, died_again

REJECTED, EXPIRED = DeathReason.REJECTED, DeathReason.EXPIRED


def test_the_last_death_comes_first() -> None:
    deaths = died_again(died_again((), "a", REJECTED, 1), "b", EXPIRED, 2)
    assert deaths == (Death("b", EXPIRED, 1, 2, 2), Death("a", REJECTED, 1, 1, 1))


def test_the_same_death_is_counted_and_comes_first_again() -> None:
    deaths = died_again(died_again((), "a", REJECTED, 1), "b", EXPIRED, 2)
    assert died_again(deaths, "a", REJECTED, 3) == (
        Death("a", REJECTED, 2, 1, 3),
        Death("b", EXPIRED, 1, 2, 2),
    )
    assert died_again(deaths, "a", EXPIRED, 3)[0] == Death("a", EXPIRED, 1, 3, 3)


def test_of_too_many_deaths_the_first_and_the_last_are_kept() -> None:
    deaths: Deaths = ()
    for number in range(3 * DEATHS_MAX):
        deaths = died_again(deaths, f"q{number}", REJECTED, number)
        assert len(deaths) <= DEATHS_MAX
    last = [death.first_ms for death in deaths]
    assert last == [*range(3 * DEATHS_MAX - 1, 2 * DEATHS_MAX, -1), 0]
