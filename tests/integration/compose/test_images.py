"""What ships: images that run without rights and hold nothing of the machine that made them."""

import json
import os
import subprocess
from pathlib import Path

from tests.integration.compose.engine import Engine
from tests.integration.compose.image_layers import Found, certificates, files_of, leaks

NAMES = tuple(f"lockstep-{kind}:0.1.0" for kind in ("etcd", "store", "broker", "coordinator", "proxy", "cli"))
OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "client-cert")
"""Of pip: those whose values say where packages come from, and by whose leave."""


def certificates_of_this_machine(images: Engine) -> set[bytes]:
    """Those that it trusts beyond what Debian does."""
    paths = (os.environ.get("SSL_CERT_FILE", ""), "/etc/ssl/certs/ca-certificates.crt")
    bundle = next((Path(path).read_bytes() for path in paths if path and Path(path).is_file()), b"")
    debian = images.ask(
        *("run", "--rm", "--entrypoint", "cat", "lockstep-cli:0.1.0", "/etc/ssl/certs/ca-certificates.crt")
    )
    return certificates(bundle) - certificates(debian.encode())


def sources_of_this_machine() -> set[bytes]:
    """Values of pip's configuration that are nobody else's business."""
    listed = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout.splitlines()
    pairs = [line.partition("=")[::2] for line in listed]
    return {value.strip("'\"").encode() for name, value in pairs if name.rpartition(".")[2] in OPTIONS}


def test_no_layer_has_certificates_or_sources_of_the_machine_that_built_it(images: Engine) -> None:
    secrets = certificates_of_this_machine(images) | sources_of_this_machine()
    process = subprocess.Popen(
        [images.docker, "save", *NAMES], stdout=subprocess.PIPE, env=dict(images.environment)
    )
    assert process.stdout is not None
    with process.stdout as saved:
        found = list(leaks(files_of(saved), secrets))
    assert process.wait() == 0
    assert not found, "\n".join(found)
    print(f"searched {len(NAMES)} images for {len(secrets)} secrets")


def test_images_run_as_a_user_without_rights(images: Engine) -> None:
    for inspected in json.loads(images.ask("inspect", *NAMES)):
        assert inspected["Config"]["User"] == "10001:10001", inspected["RepoTags"]
        names = {line.partition("=")[0] for line in inspected["Config"]["Env"]}
        assert names <= {
            "PATH",
            "PYTHONUNBUFFERED",
            "PYTHONDONTWRITEBYTECODE",
            "MALLOC_MMAP_THRESHOLD_",
            "MALLOC_TRIM_THRESHOLD_",
        }


def test_a_secret_in_a_layer_is_found() -> None:
    files = [Found("a", "etc/pip.conf", b"index-url = somewhere"), Found("b", "run/secrets/ca_bundle", b"x")]
    assert len(leaks(files, [b"somewhere"])) == 2
    assert leaks([Found("a", "run/secrets/ca_bundle", b"")], [b"somewhere", b""]) == []
