"""What a broker is told on its command line about sets that it gives back."""

import pytest

from services.broker.settings import GIVE_BACK_SECONDS, BrokerSettings, parse_arguments

NEEDED = ("--id", "B1", "--listen", "127.0.0.1:0", "--store", "unix:s", "--etcd", "http://127.0.0.1:2379")


def told(*arguments: str) -> BrokerSettings:
    return parse_arguments([*NEEDED, "--cluster", "c", *arguments])


def test_sets_are_given_back_unless_it_is_told_otherwise() -> None:
    assert told().give_back_seconds == GIVE_BACK_SECONDS > 0
    assert told("--give-back-seconds", "0").give_back_seconds == 0
    assert told("--give-back-seconds", "7").give_back_seconds == 7


@pytest.mark.parametrize("given", ["-1", "soon"])
def test_a_time_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        told("--give-back-seconds", given)
    assert "--give-back-seconds" in capsys.readouterr().err
