"""Options of the command line: what they mean by default, and which contradict each other."""

import argparse
import shlex

import pytest

from services.proxy.security.settings import (
    SecuritySettings,
    TlsSettings,
    add_security_arguments,
    security_of,
)


def settings(arguments: str) -> SecuritySettings:
    parser = argparse.ArgumentParser()
    add_security_arguments(parser)
    return security_of(parser.parse_args(shlex.split(arguments)))


def test_without_users_everybody_is_anonymous() -> None:
    assert settings("") == SecuritySettings(("ANONYMOUS",))


def test_with_users_nobody_is_anonymous_unless_that_is_said() -> None:
    assert settings("--users f").mechanisms == ("SCRAM-SHA-256", "PLAIN")
    assert settings("--users f --mechanism ANONYMOUS --mechanism PLAIN").mechanisms == ("ANONYMOUS", "PLAIN")


def test_options_of_tls() -> None:
    given = settings(
        "--mechanism EXTERNAL --tls-certificate c --tls-key k --tls-client-ca a --tls-client-certificates required"
    )
    assert given.tls == TlsSettings("c", "k", "a", "required", "common-name")
    assert given.mechanisms == ("EXTERNAL",)


@pytest.mark.parametrize(
    "arguments",
    [
        "--mechanism PLAIN",
        "--mechanism ANONYMOUS --mechanism SCRAM-SHA-256",
        "--users f --mechanism ANONYMOUS",
        "--tls-key k",
        "--tls-client-ca a",
        "--tls-client-certificates optional",
        "--tls-certificate c --tls-client-ca a",
        "--tls-certificate c --tls-client-certificates required",
        "--mechanism EXTERNAL",
        "--mechanism EXTERNAL --tls-certificate c",
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError):
        settings(arguments)
