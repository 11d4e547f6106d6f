"""Free loopback ports for processes that are started on this machine.

Law: never from the range that the kernel gives to outgoing connections. There, a client that keeps trying the port of a
killed server will one day be given that very port as its own, connect to itself, and keep the restarted server out. And
never twice from one process: what was chosen may not be bound yet, or be free for the moment in which its server restarts.
"""

import random
import socket

_FIRST, _LAST = 20_000, 32_000
_ATTEMPTS_MAX = 1_000
_REMEMBERED_MAX = 6_000
_given: dict[int, None] = {}
"""Chosen by this process, the oldest first; half of the range at most."""


def is_free(port: int) -> bool:
    """Whether a server could bind this loopback port now."""
    with socket.socket() as probe:
        # As servers do: connections of the last process in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_ports(count: int) -> list[int]:
    """`count` different free ports. Somebody else may take one before it is bound: be ready to choose again.

    Raises OSError when there are none.
    """
    chosen: list[int] = []
    for _ in range(_ATTEMPTS_MAX):
        if len(chosen) == count:
            _remember(chosen)
            return chosen
        port = random.randrange(_FIRST, _LAST)
        if port not in chosen and port not in _given and is_free(port):
            chosen.append(port)
    raise OSError(f"no {count} free loopback ports between {_FIRST} and {_LAST}")


def _remember(ports: list[int]) -> None:
    _given.update(dict.fromkeys(ports))
    while len(_given) > _REMEMBERED_MAX:
        del _given[next(iter(_given))]
