"""Programs that tests start."""

import shutil
import sys
from pathlib import Path


def find_program(name: str) -> str | None:
    """Its path: the one that `scripts/setup.sh` has put into `.venv`, or else the machine's own; None: there is none."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
