"""Lineage: the generations of one history of etcd, the present one and those before it that accepted data loss has changed
(DESIGN R1, R7).

Law: accepted loss changes the generation for the whole cluster, so that nobody presumes anything across it, but etcd goes on: its
revisions still compare, and an entry of the map is what it was. So a disk that remembers an earlier generation of the lineage is
of this history: other sets, which lost nothing, start from it. A rebuilt map begins a new lineage: nothing compares across that.
"""

import json
from dataclasses import dataclass

EARLIER_MAX = 100
"""Losses accepted since the map was rebuilt; a disk that has slept through more of them is taken for another history's."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What etcd says."""

    generation: str = ""
    """The present one; "": there is none."""
    earlier: tuple[str, ...] = ()
    """Oldest first."""

    def __contains__(self, generation: str) -> bool:
        return generation == self.generation or generation in self.earlier

    def changed_to(self, generation: str) -> "Lineage":
        """After the loss of data was accepted."""
        earlier = (*self.earlier, self.generation) if self.generation else ()
        return Lineage(generation, earlier[-EARLIER_MAX:])

    def encode(self) -> bytes:
        """The value of the key beside that of the generation."""
        fields = {"generation": self.generation, "earlier": self.earlier}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def read(generation: str, value: bytes) -> "Lineage":
        """Of the values of both keys; b"": the second is absent. A lineage that is not this generation's says nothing: who wrote
        the generation did not know of lineages. Raises `ValueError` for what is none.
        """
        if not value:
            return Lineage(generation)
        try:
            fields = json.loads(value)
            found = Lineage(str(fields["generation"]), tuple(str(one) for one in fields["earlier"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a lineage: {error}") from error
        return found if found.generation == generation else Lineage(generation)
