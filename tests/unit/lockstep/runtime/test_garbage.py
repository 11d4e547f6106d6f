"""What a process collects at once is little, whatever comes and goes in it."""

import subprocess
import sys

from lockstep.runtime.garbage import OLD_OBJECTS

AT_ONCE = 10_000
"""Containers of the young generations that are walked in one go: some milliseconds."""


def test_what_is_collected_in_one_go_takes_no_step_for_long() -> None:
    """Of the oldest generation rarely, of the others what a step has time for."""
    program = (
        "import gc; from lockstep.runtime.garbage import tune_garbage_collection as tune; tune();"
        "young, middle, old = gc.get_threshold();"
        "print(young * (middle + 2), young * (middle + 1) * old, gc.get_freeze_count() > 0)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    at_once, before_the_oldest, is_frozen = said.split()
    assert int(at_once) <= AT_ONCE
    assert int(before_the_oldest) >= OLD_OBJECTS
    assert is_frozen == "True"


LOADED = """
import asyncio, collections, gc
from lockstep.runtime.process import run_program

RING = 60_000
walked = []

def watch(phase, info):
    if phase == "start" and info["generation"] < 2:
        walked.append(sum(len(gc.get_objects(generation=number)) for number in range(info["generation"] + 1)))

def collections_before_the_oldest():
    return gc.get_threshold()[2] - gc.get_count()[2]

async def main():
    ring = collections.deque([b"message"] for _ in range(RING))
    gc.callbacks.append(watch)
    before = collections_before_the_oldest()
    for _ in range(900):
        for _ in range(100):
            ring.append([b"message"])
            ring.popleft()
        await asyncio.sleep(0.002)
    ring.extend([b"message"] for _ in range(10_000))
    print(max(walked), before - collections_before_the_oldest())
    return 0

run_program(main)
"""
"""A ring in which 90,000 containers go as they come, and at last 10,000 more stay."""


def test_where_one_goes_for_each_that_comes_little_is_walked_at_once_and_the_oldest_wait() -> None:
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True, text=True).stdout
    walked, nearer = map(int, said.split())
    assert walked < 4 * AT_ONCE, "a look may come late"
    assert nearer <= 2


STAYING = """
import asyncio, gc
from lockstep.runtime import garbage
from lockstep.runtime.process import run_program

garbage.YOUNG_SECONDS = 0.001

def collections_before_the_oldest():
    return gc.get_threshold()[2] - gc.get_count()[2]

async def main():
    kept = []
    before = collections_before_the_oldest()
    for _ in range(30):
        kept.append([[] for _ in range(4_000)])
        await asyncio.sleep(0.01)
    print(before - collections_before_the_oldest())
    return 0

run_program(main)
"""
"""120,000 containers stay, fewer between two collections by the clock than count for one of the oldest."""


def test_what_stays_brings_the_turn_of_the_oldest_nearer_however_slowly_it_comes() -> None:
    said = subprocess.run([sys.executable, "-c", STAYING], capture_output=True, check=True, text=True).stdout
    assert abs(int(said) - 24) <= 2, "one of 5,000"


BEHIND_THE_OLDEST = """
import asyncio, gc
from lockstep.runtime import garbage
from lockstep.runtime.process import run_program

garbage.YOUNG_SECONDS = 0.001

def collections_before_the_oldest():
    return gc.get_threshold()[2] - gc.get_count()[2]

async def main():
    first = collections_before_the_oldest()
    await asyncio.sleep(0.3)
    idle = gc.get_count()[2]
    gc.collect()
    await asyncio.sleep(0.3)
    print(first, idle, collections_before_the_oldest())
    return 0

run_program(main)
"""


def test_the_oldest_wait_for_their_next_turn_no_longer_than_for_the_first() -> None:
    said = subprocess.run(
        [sys.executable, "-c", BEHIND_THE_OLDEST], capture_output=True, check=True, text=True
    ).stdout
    first, idle, second = map(int, said.split())
    assert idle > 10, "there were collections by the clock"
    assert first - 2 <= second <= first


BESIDE_A_THREAD = """
import threading
from lockstep.runtime import garbage
from lockstep.runtime.process import run_program
import asyncio, sys

garbage.YOUNG_SECONDS = 0.0005
sys.setswitchinterval(0.00001)
is_over = threading.Event()
failed = []

def make_tuples():
    while not is_over.is_set():
        try:
            tuple([number] for number in range(2_000))
        except SystemError as error:
            failed.append(error)
            return

async def main():
    threads = [threading.Thread(target=make_tuples) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(2)
    is_over.set()
    for thread in threads:
        thread.join()
    print(failed)
    return 0

run_program(main)
"""


def test_what_other_threads_make_is_left_alone() -> None:
    """A tuple that is not complete yet must be known to nobody."""
    said = subprocess.run(
        [sys.executable, "-c", BESIDE_A_THREAD], capture_output=True, check=True, text=True
    ).stdout
    assert said == "[]\n"
