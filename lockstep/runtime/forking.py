"""Forks of a process that has gRPC's threads: how a child gets as far as its own program.

Law: between fork and exec a child collects no garbage. uvloop starts programs by a fork in which Python runs a little; a
collection there ends what only exists in the parent: grpcio's asyncio library joins a thread, for ever, and the parent waits
for the child.
"""

import functools
import gc
import os


@functools.cache
def collect_nothing_in_forks() -> None:
    """From now on, in this process; for whoever starts programs."""
    was_enabled: list[bool] = []

    def before() -> None:
        was_enabled.append(gc.isenabled())
        gc.disable()

    def after() -> None:
        if was_enabled.pop():
            gc.enable()

    os.register_at_fork(before=before, after_in_parent=after)
