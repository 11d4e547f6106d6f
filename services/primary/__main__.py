"""`python -m services.primary`: a process that has only the primary role, with the arguments of a broker.

A primary loads its own disk, holds a lease and is promoted, and all of that is the broker's, which no other service imports:
services meet only on the wire. So this becomes the broker's program, told to lead and never to follow.
"""

import os
import sys


def main() -> None:
    command = (sys.executable, "-m", "services.broker", "--primary-only", *sys.argv[1:])
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
