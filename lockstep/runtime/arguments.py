"""Types of arguments on the command lines of services, for argparse: what is none of a type is said in a sentence."""

import argparse

from lockstep.runtime.etcd_endpoints import parse_endpoints

_PORT_MAX = 65535


def etcd_endpoints(text: str) -> str:
    """As it was given. Raises `argparse.ArgumentTypeError` for what no client of etcd takes."""
    try:
        parse_endpoints(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def port_or_none(text: str) -> int:
    """0: none. Raises `argparse.ArgumentTypeError`."""
    if not (text.isascii() and text.isdigit() and int(text) <= _PORT_MAX):
        raise argparse.ArgumentTypeError(f"a port is a number up to {_PORT_MAX}, not {text!r}")
    return int(text)


def listen_address(text: str) -> str:
    """host:port, as it was given. Raises `argparse.ArgumentTypeError`."""
    _, separator, port = text.rpartition(":")
    if not (separator and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise argparse.ArgumentTypeError(f"an address to listen at is host:port, not {text!r}")
    return text


def listen_address_or_none(text: str) -> str:
    """As `listen_address`; "": nowhere."""
    return listen_address(text) if text else ""


def listen_address_or_path(text: str) -> str:
    """host:port or unix:path, as it was given. Raises `argparse.ArgumentTypeError`."""
    if text.startswith("unix:"):
        if text == "unix:":
            raise argparse.ArgumentTypeError("an address to listen at is unix:path, and the path is missing")
        return text
    return listen_address(text)
