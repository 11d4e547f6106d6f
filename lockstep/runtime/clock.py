"""The two clocks of a process, as cores get them.

Law: leases and timeouts use CLOCK_BOOTTIME, which goes on while the machine sleeps (DESIGN R6, history 10d); the wall clock
only goes into records.
"""

from time import CLOCK_BOOTTIME, clock_gettime_ns, time_ns

from lockstep.core.clock import Now

_MILLION = 1_000_000


def boottime_ms() -> int:
    """CLOCK_BOOTTIME in milliseconds."""
    return clock_gettime_ns(CLOCK_BOOTTIME) // _MILLION


def read_now() -> Now:
    """This moment on both clocks."""
    return Now(clock_gettime_ns(CLOCK_BOOTTIME) // _MILLION, time_ns() // _MILLION)
