"""Compiles the load programs that are not written in Python."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.environment import Refused
from bench.programs import running


async def compiled(
    source: Path, folder: Path, libraries: Sequence[str], packages: str, *, is_library: bool = False
) -> Path:
    """The program of one C or C++ file, or the library. `packages`: Debian's names of what it needs. Raises `Refused`."""
    is_c = source.suffix == ".c"
    compiler = "cc" if is_c else "c++"
    if shutil.which(compiler) is None:
        raise Refused(f"{source.name} needs a compiler (Debian's names: {packages})")
    program = folder / source.stem
    command = (
        *(
            compiler,
            "-O2",
            "-std=gnu11" if is_c else "-std=c++17",
            "-o",
            str(program),
            str(source),
        ),
        *(("-shared", "-fPIC") if is_library else ()),
        *(f"-l{library}" for library in libraries),
    )
    pipe = asyncio.subprocess.PIPE
    async with running(command, stdout=pipe, stderr=asyncio.subprocess.STDOUT) as compiling:
        output, _ = await compiling.communicate()
    if compiling.returncode != 0:
        raise Refused(f"{source.name} is not compiled (Debian's names: {packages}): {output.decode()[-500:]}")
    return program
