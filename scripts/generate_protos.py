"""Generates lockstep/wire/v1 from protos/lockstep/wire/v1: messages, services and their types.

Law: the generated code is committed and is what the protos say. `--check` generates into a temporary directory and
compares (names and contents); it exits with 1, naming the files that differ, are missing, or have no proto any more.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc_tools

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("lockstep/wire/v1")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(target: Path) -> None:
    """Runs protoc on every proto of the package; writes below `target` (a directory that has the package's folder)."""
    protos = sorted((PROTOS / PACKAGE).glob("*.proto"))
    if not protos:
        return
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path={PROTOS}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
        # The plugin of this interpreter, not of whatever is first on PATH.
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
        *(str(proto) for proto in protos),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{result.stdout}{result.stderr}protoc failed")
    sys.stderr.write(result.stderr)


def generated_files(root: Path) -> dict[str, bytes]:
    """The generated files below `root`, by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted((root / PACKAGE).glob("*"))
        if path.name.endswith(SUFFIXES)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, change nothing")
    is_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch)
        (target / PACKAGE).mkdir(parents=True)
        generate(target)
        wanted, found = generated_files(target), generated_files(ROOT)
        stale = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if is_check:
            for name in stale:
                print(f"not current: {PACKAGE / name} (run: make protos)", file=sys.stderr)
            return 1 if stale else 0
        for name in stale:
            if name in wanted:
                shutil.copyfile(target / PACKAGE / name, ROOT / PACKAGE / name)
            else:
                (ROOT / PACKAGE / name).unlink()
            print(f"{'wrote' if name in wanted else 'removed'} {PACKAGE / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
