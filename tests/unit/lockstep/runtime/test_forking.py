"""A child that is forked collects no garbage before it is another program; its parent goes on as before."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gc, os, sys
import uvloop
from lockstep.runtime.forking import collect_nothing_in_forks

FOUND, TOLD = os.pipe()

async def start():
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0

if sys.argv[1] == "protected":
    collect_nothing_in_forks()
    collect_nothing_in_forks()
if sys.argv[2] == "disabled":
    gc.disable()
os.register_at_fork(after_in_child=lambda: os.write(TOLD, b"child %d" % gc.isenabled()))
uvloop.run(start())
print(os.read(FOUND, 100).decode(), "parent %d" % gc.isenabled())
"""


@pytest.mark.parametrize(
    ("protection", "collection", "said"),
    [
        ("none", "enabled", "child 1 parent 1"),
        ("protected", "enabled", "child 0 parent 1"),
        ("protected", "disabled", "child 0 parent 0"),
    ],
)
def test_a_child_collects_nothing_and_its_parent_as_before(
    protection: str, collection: str, said: str
) -> None:
    command = (sys.executable, "-c", PROGRAM, protection, collection)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == (said, "")
