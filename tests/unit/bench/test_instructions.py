"""What callgrind's files say."""

from bench.chain.counted import COUNTED
from bench.instructions import TRANSACTIONS, by_title


def file(trigger: str, total: int) -> str:
    return f"version: 1\npart: 2\n\ndesc: Trigger: {trigger}\n\nevents: Ir\nsummary: 1\n\nfn=(1)\n3 4\n\ntotals: {total}\n"


def test_each_file_is_of_one_hop_in_one_case_for_a_message() -> None:
    first = COUNTED[0]
    messages = TRANSACTIONS * first.connections * first.messages
    found = by_title(
        [
            file("Client Request: 0 primary", 1000 * messages),
            file("Client Request: 0 store", 7 * messages),
            file("Program termination", 12345),
        ]
    )
    assert found == {f"{first.workload} {first.title}": {"primary": 1000, "store": 7}}
