"""The table of mounts says which file system a directory is on."""

from pathlib import Path

import pytest

from lockstep.runtime.file_systems import filesystem_of

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
/dev/vdb /data xfs rw 0 0
none /data tmpfs rw 0 0
/dev/vdc /with\\040space ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/somewhere/else", "ext4"),
        ("/dev/shm/scratch", "tmpfs"),
        ("/dev/shmother", "ext4"),
        ("/data/x", "tmpfs"),
        ("/with space/x", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_says_which_file_system_it_is(directory: str, kind: str) -> None:
    assert filesystem_of(Path(directory), MOUNTS) == kind


def test_a_directory_that_no_mount_names_has_none() -> None:
    assert filesystem_of(Path("/data"), "tmpfs /dev/shm tmpfs rw 0 0\n") == ""
