"""What `perf stat` says."""

from bench.instructions import counted


def test_a_count_is_read_and_its_absence_is_none() -> None:
    assert counted("123456,,instructions,100000,100.00,,\n") == 123456
    assert counted("77,,instructions:u,1,100.00,,\n") == 77
    assert counted("<not supported>,,instructions,0,100.00,,\n") is None
    assert counted("12,,cycles,1,100.00,,\n") is None
    assert counted("") is None
