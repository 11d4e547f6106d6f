"""The client of etcd, where no etcd is needed: what leaves, and what does not any more."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aetcd import rpc

from lockstep.core.errors import ErrorCode
from lockstep.runtime import etcd
from lockstep.runtime.etcd import EtcdClient, EtcdRejected, Put
from lockstep.runtime.etcd_endpoints import Endpoint, Endpoints


class Machine:
    """One endpoint, for which whoever asks waits; the machine may sleep meanwhile."""

    address = "host:1"
    is_suspect = False

    def __init__(self, slept_ms: int) -> None:
        self.boottime_ms = 1_000
        self.slept_ms = slept_ms
        self.sent = 0
        self.kv = SimpleNamespace(Txn=self._transact)

    async def connected(self, _: float) -> Endpoint:
        self.boottime_ms += self.slept_ms
        return cast(Endpoint, self)

    async def _transact(self, _: Any, **__: Any) -> Any:
        self.sent += 1
        return rpc.TxnResponse(succeeded=True)


@pytest.mark.parametrize(("slept_ms", "leaves"), [(0, True), (1_900, True), (2_100, False), (60_000, False)])
async def test_a_change_does_not_leave_behind_a_sleep(
    slept_ms: int, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An etcd that was set back meanwhile has what it compares, and not who has led, or decided, since."""
    machine = Machine(slept_ms)
    monkeypatch.setattr(etcd, "boottime_ms", lambda: machine.boottime_ms)
    client = EtcdClient("host:1", 2.0)
    client._endpoints = cast(Endpoints, machine)
    change = client.transact([], [Put("a", b"b")])
    if leaves:
        assert (await change).succeeded
    else:
        with pytest.raises(EtcdRejected) as refused:
            await change
        assert refused.value.code is ErrorCode.UNAVAILABLE
    assert machine.sent == leaves
