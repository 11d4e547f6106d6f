"""What is in the layers of images, byte by byte, as whoever pulls them gets it."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class Found(NamedTuple):
    """A file of a layer."""

    layer: str
    path: str
    content: bytes


def files_of(saved: IO[bytes]) -> Iterator[Found]:
    """Every file of every layer, of what `docker save` wrote; layers that images share come once."""
    with tarfile.open(fileobj=saved, mode="r|") as outer:
        for member in outer:
            # Layers that are there twice are links to the first.
            content = outer.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            data = content.read()
            yield Found("", member.name, data if not _is_layer(data) else b"")
            if _is_layer(data):
                yield from _layer(member.name, data)


def _is_layer(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def _layer(name: str, data: bytes) -> Iterator[Found]:
    with tarfile.open(fileobj=io.BytesIO(data)) as layer:
        for member in layer:
            content = layer.extractfile(member) if member.isfile() else None
            if content is not None:
                yield Found(name, member.name.removeprefix("./"), content.read())


def leaks(files: Iterable[Found], secrets: Iterable[bytes]) -> list[str]:
    """A sentence for each file that has one of the secrets, or that is where they are mounted."""
    wanted = [secret for secret in secrets if secret]
    found = []
    for file in files:
        if file.content and file.path.startswith("run/secrets/"):
            found.append(f"{file.path} of layer {file.layer} was shipped")
        if any(secret in file.content for secret in wanted):
            found.append(f"{file.path} of layer {file.layer or 'none'} has a secret of this machine")
    return found


def certificates(bundle: bytes) -> set[bytes]:
    """The certificates of a PEM bundle, each as its first lines: enough to find it again."""
    return {part.strip().replace(b"\r", b"")[:200] for part in bundle.split(_CERTIFICATE)[1:] if part.strip()}
