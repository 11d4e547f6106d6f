"""Forms of runs beside others: which cases they have, for how long, how often, and beside whom.

Law: what stands on the page was measured in one of these forms. A run of another form is a look, and stays off the page
(`register.py`).
"""

from dataclasses import dataclass

from bench.cases import W1, W2, W3, W4_XA, Case
from bench.musts import MUSTS, PEER

ALONE = Case("W1", "publish", 1, 1)
"""One client with one message: nobody to share anything with."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of run is made."""

    cases: tuple[Case, ...]
    seconds: float
    """Of each measurement."""
    rounds: int
    """Six are the least that say how far chance goes, and in which six systems are each in every place."""
    peers: tuple[str, ...]
    minutes: int
    """It takes about so long, at eleven seconds for each measurement of five; what is measured again comes on top."""


_OTHERS = ("postgres", "artemis")
_OVER_MINUTES = (
    *(Case("W1", "publish", size, count) for size, count in ((100, 4), (10, 16), (1, 16))),
    W2[0],
)
"""Of each size of transactions that have a must the case with the most clients: what is put off grows with the rate."""
FORMS = {
    "peers": Form((*W1, *W2, *W3, *W4_XA), 5.0, 6, (PEER, *_OTHERS), 110),
    "musts": Form((ALONE, *(must.case for must in MUSTS)), 5.0, 6, (PEER, *_OTHERS), 65),
    "sustained": Form(_OVER_MINUTES, 300.0, 1, (PEER,), 90),
}
"""By kind, as `results.BESIDE_OTHERS` has them."""
