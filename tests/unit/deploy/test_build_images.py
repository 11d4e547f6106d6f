"""deploy/build-images.sh with a docker and a python3 in place of this machine's: what a build is given of pip's settings."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.deploy.kubernetes import DEPLOY

DOCKER = """#!/bin/sh
if [ "$1" = version ]; then echo 20.10.24; exit; fi
for word in "$@"; do
    case $word in id=pip_configuration,src=*) cat "${word#*,src=}" >>"$0.given" ;; esac
done
"""
WITHOUT_PIP = """#!/bin/sh
[ "$1 $2" != "-m pip" ] || { echo "No module named pip" >&2; exit 1; }
exec %s "$@"
"""
WITH_SETTINGS = """#!/bin/sh
if [ "$1 $2 $3" = "-m pip config" ]; then cat "$0.settings"; exit; fi
[ "$1 $2" != "-m pip" ] || exit 0
exec %s "$@"
"""


def given_settings(directory: Path, python: str, authorities: str = "of this machine") -> dict[str, str]:
    """Of pip, as a build finds them. `python`: what python3 is meanwhile; `authorities`: its bundle of certificates."""
    bundle = directory / "bundle.pem"
    bundle.write_text(authorities)
    for name, text in (("docker", DOCKER), ("python3", python % sys.executable)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "LOCKSTEP_DOCKER": str(directory / "docker"),
        "BASE_IMAGE": "base",
        "SSL_CERT_FILE": str(bundle),
    }
    script = DEPLOY / "build-images.sh"
    ran = subprocess.run([script, "cli"], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    configuration = configparser.RawConfigParser()
    configuration.read_string((directory / "docker.given").read_text())
    assert configuration.sections() == ["global"]
    return dict(configuration["global"])


def test_images_are_built_where_pip_is_not_installed(tmp_path: Path) -> None:
    assert given_settings(tmp_path, WITHOUT_PIP) == {"cert": "/run/secrets/ca_bundle"}


def test_a_bundle_without_certificates_is_not_what_pip_is_told_to_trust(tmp_path: Path) -> None:
    assert given_settings(tmp_path, WITHOUT_PIP, authorities="") == {}


def test_what_the_environment_says_to_pip_counts_more_than_its_files(tmp_path: Path) -> None:
    (tmp_path / "python3.settings").write_text(
        ":env:.index-url='https://environment.example/simple'\n"
        "global.cert='/home/somebody/bundle.pem'\n"
        "global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'\n"
        "global.index-url='https://file.example/simple'\n"
        "install.index-url='https://install.example/simple'\n"
    )
    assert given_settings(tmp_path, WITH_SETTINGS) == {
        "cert": "/run/secrets/ca_bundle",
        "index-url": "https://environment.example/simple",
        "extra-index-url": "https://one.example/simple https://two.example/simple",
    }
