"""Where sockets of processes of one data directory are."""

import os
from pathlib import Path

import pytest

from lockstep.core.errors import Rejected
from lockstep.runtime.local_sockets import PATH_BYTES_MAX, socket_address


def test_a_socket_is_where_its_process_has_its_data() -> None:
    assert socket_address(Path("/data/B1/store.sock")) == "unix:/data/B1/store.sock"


def test_where_a_path_is_too_long_there_is_a_short_one_of_this_user_alone_and_always_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tmp_path = tmp_path_factory.mktemp("s")  # Shorter than one of the test's name.
    long, other = tmp_path / ("x" * 120) / "store.sock", tmp_path / ("y" * 120) / "store.sock"
    address = socket_address(long, tmp_path)
    assert address == socket_address(long, tmp_path) != socket_address(other, tmp_path)
    path = Path(address.removeprefix("unix:"))
    assert len(os.fsencode(path)) <= PATH_BYTES_MAX
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("is_link", [False, True])
def test_no_socket_is_put_where_others_may_go(tmp_path: Path, is_link: bool) -> None:
    place = tmp_path / f"lockstep-{os.getuid()}"
    if is_link:
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    else:
        place.mkdir(mode=0o755)
    with pytest.raises(Rejected, match="open to others"):
        socket_address(Path("/") / ("x" * 200), tmp_path)
