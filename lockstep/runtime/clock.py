"""The two clocks of a process, as cores get them.

Law: leases and timeouts use CLOCK_BOOTTIME, which goes on while the machine sleeps (DESIGN R6, history 10d); the wall clock
only goes into records.
"""

import time

from lockstep.core.clock import Now

_MILLION = 1_000_000


def boottime_ms() -> int:
    """CLOCK_BOOTTIME in milliseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _MILLION


def read_now() -> Now:
    """This moment on both clocks."""
    return Now(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _MILLION, time.time_ns() // _MILLION)
