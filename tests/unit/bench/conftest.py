"""Nobody waits for servers to rest that there are none of."""

import pytest

from bench import load_programs


@pytest.fixture(autouse=True)
def servers_rest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_programs, "SETTLED_LOOKS", 0)
