"""Proof by system calls: no append answer leaves the store before the fdatasync of its group returned."""

import shutil
from pathlib import Path

import pytest

from lockstep.core.store_protocol import Appended
from tests.integration.store_process import StoreProcess, StoreStream, publishing


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_no_append_answer_leaves_before_its_fdatasync_returned(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "pwritev,pwritev2,pwrite64,fdatasync,fsync,sendmsg,write,writev"
    command = ["strace", "-f", "-ttt", "-s", "300", "-y", "-o", str(trace), "-e", f"trace={calls}"]
    store = StoreProcess(tmp_path / "data", command=command)
    appends = 40
    async with store.running() as channel:
        stream = StoreStream(channel)
        await stream.open()
        await stream.append(publishing(1))
        for first in range(2, 2 + appends):
            assert isinstance(await stream.append(publishing(first)), Appended)
        await store.end()
    # One append at a time: an answer (it names the set) may leave only between an fdatasync's return and the next pwritev.
    # Groups are known by their header; the thread that wrote one syncs it (the spare segment has a thread of its own).
    writer, is_durable, groups, answers = b"", True, 0, 0
    for line in trace.read_bytes().splitlines():
        thread = line.split(b" ", 1)[0]
        if b" pwritev" in line and b'"LKSG' in line:
            writer, is_durable = thread, False
        elif thread == writer and b"fdatasync" in line and line.endswith(b"= 0"):
            # Whole, or the second half of a call that strace shows in two.
            groups += not is_durable
            is_durable = True
        elif (b" write(" in line or b" writev(" in line) and b"<socket:" in line and b"orders" in line:
            assert is_durable, f"an answer left before the sync returned: {line!r}"
            answers += 1
    assert groups >= appends
    assert answers >= appends
