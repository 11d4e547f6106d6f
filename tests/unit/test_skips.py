"""The list of tests that may be skipped in CI."""

import pytest

from tests.conftest import is_allowed_skip, read_allowed_skips


def test_a_skip_needs_a_reason() -> None:
    assert read_allowed_skips("# comment\n\ntests/a.py -- no FUSE here\n") == {"tests/a.py": "no FUSE here"}
    for line in ("tests/a.py", "tests/a.py -- ", " -- reason"):
        with pytest.raises(ValueError, match=r"skips\.txt"):
            read_allowed_skips(line)


def test_the_list_names_modules_classes_and_tests() -> None:
    allowed = {"tests/a.py": "r", "tests/b.py::T": "r", "tests/c.py::test_x": "r"}
    for node in (
        "tests/a.py",
        "tests/a.py::test_y[1]@group",
        "tests/b.py::T::test_z",
        "tests/c.py::test_x[a::b]",
    ):
        assert is_allowed_skip(node, allowed), node
    for node in ("tests/aa.py", "tests/b.py::test_z", "tests/c.py::test_xx", "tests/c.py"):
        assert not is_allowed_skip(node, allowed), node
