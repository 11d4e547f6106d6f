"""Instructions that each hop executes for a message, counted by callgrind: unlike processor time they do not depend on what else
runs, nor on how fast the machine is that day.

Law: what is counted is `bench/chain`: the cores, codecs and journal writes of one set in one process. Event loops, sockets,
threads and the kernel are not in it, nor the calls of the client's library around its core.
"""

import asyncio
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from bench.chain.counted import COUNTED
from bench.compiling import compiled
from bench.programs import running

TRANSACTIONS = 20
"""Of each client, for each hop: after a few a hop does the same again and again."""
_COUNTING = Path(__file__).parent / "chain" / "counting.c"
_PACKAGES = "gcc valgrind"
_SECONDS_MAX = 1800.0
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (?P<case>\d+) (?P<hop>\w+)$", re.MULTILINE)
_TOTAL = re.compile(r"^totals: (?P<count>\d+)$", re.MULTILINE)


def can_count() -> bool:
    """Whether there is a callgrind."""
    return shutil.which("valgrind") is not None


async def counted_instructions(folder: Path) -> dict[str, dict[str, float]]:
    """For a message, by the titles of `COUNTED` and by hop. Takes minutes, of one processor. Raises `Refused` without a compiler.

    `folder`: for what is compiled and written on the way.
    """
    library = await compiled(_COUNTING, folder, (), _PACKAGES, is_library=True)
    command = (
        *("valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={folder}/counts"),
        *(
            sys.executable,
            "-m",
            "bench.chain",
            "--library",
            str(library),
            "--transactions",
            str(TRANSACTIONS),
        ),
    )
    async with (
        asyncio.timeout(_SECONDS_MAX),
        running(
            command,
            # Its journals go with the folder if it is killed.
            env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(folder)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        ) as counting,
    ):
        _, output = await counting.communicate()
    if counting.returncode:
        raise RuntimeError(f"the chain ended with {counting.returncode}: {output.decode()[-2000:]}")
    return by_title(await asyncio.to_thread(_texts, folder))


def _texts(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("counts*")]


def by_title(files: Iterable[str]) -> dict[str, dict[str, float]]:
    """For a message, from the text of callgrind's files: each is of one hop in one case, or of none."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for text in files:
        trigger, total = _TRIGGER.search(text), _TOTAL.search(text)
        if trigger and total:
            case = COUNTED[int(trigger["case"])]
            messages = TRANSACTIONS * case.connections * case.messages
            found[f"{case.workload} {case.title}"][trigger["hop"]] = round(int(total["count"]) / messages)
    return dict(found)
