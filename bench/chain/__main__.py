"""`python -m bench.chain`: what callgrind observes for `bench/instructions.py`. One file of counts for each case and hop.

Law: a hop is counted in turns of its own, for the same transactions as the others.
"""

import argparse
import ctypes
import tempfile
from pathlib import Path

from bench.chain.chain import Chain
from bench.chain.counted import COUNTED, HOPS
from bench.chain.hop import Hop
from lockstep.runtime.garbage import tune_garbage_collection

WARMING_UP = 5
"""Transactions of each client before anything is counted."""


def main(library: Path, transactions: int) -> None:
    """`library`: `counting.c`, compiled. `transactions`: of each client, for each hop that is counted."""
    counting = ctypes.CDLL(str(library))
    counted: Hop | None = None

    def turn(hop: Hop) -> None:
        if hop is not counted:
            hop.turn()
            return
        counting.toggle()
        hop.turn()
        counting.toggle()

    for number, case in enumerate(COUNTED):
        with (
            tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch,
            Chain(Path(scratch), case, turn) as chain,
        ):
            chain.fill(WARMING_UP + len(HOPS) * transactions)
            chain.work(WARMING_UP)
            tune_garbage_collection()
            for name in HOPS:
                counted = next(hop for hop in chain.hops if hop.name == name)
                chain.work(transactions)
                counted = None
                counting.write_as(f"{number} {name}".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--transactions", type=int, required=True)
    given = parser.parse_args()
    main(given.library, given.transactions)
