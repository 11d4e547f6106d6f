"""Proof by system calls: no append answer leaves the store before its group was written and synced."""

import re
import shutil
from pathlib import Path

import pytest

from lockstep.core.store_protocol import Appended
from tests.integration.store_process import StoreProcess, StoreStream, publishing


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_no_append_answer_leaves_before_its_group_is_durable(tmp_path: Path) -> None:
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
    # One append at a time: an answer (it names the set) may leave only between a group's synced write and the next one.
    # Groups are known by their header; strace shows a call that takes long in two halves. Where the file system is not known to
    # sync with a write, the thread that wrote a group syncs it behind that.
    writer, sync, is_durable, groups, answers = b"", b"", True, 0, 0
    for line in trace.read_bytes().splitlines():
        thread = line.split(b" ", 1)[0]
        if b" pwritev" in line and b'"LKSG' in line:
            writer, is_durable = thread, False
            sync = b"pwritev2" if b"RWF_DSYNC" in line else b"fdatasync"
        if thread == writer and sync in line and re.search(rb"= \d+$", line):
            groups += not is_durable
            is_durable = True
        elif (b" write(" in line or b" writev(" in line) and b"<socket:" in line and b"orders" in line:
            assert is_durable, f"an answer left before the sync returned: {line!r}"
            answers += 1
    assert groups >= appends
    assert answers >= appends
