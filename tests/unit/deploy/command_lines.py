"""Lines of `lockstep` as its command line takes them, without doing anything."""

from typing import Any

import typer

from lockstep.cli.main import app


def find(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, and what is left of them. Raises LookupError if there is none."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            raise LookupError(f"lockstep has no command {' '.join(words)}")
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parsed(words: list[str]) -> dict[str, Any]:
    """Parameters of a command line without its first word, `lockstep`; whatever it would refuse raises an exception."""
    command, rest = find(words)
    parameters: dict[str, Any] = command.make_context("lockstep", list(rest)).params
    return parameters


def environment_names(words: list[str]) -> set[str]:
    """Variables that a command reads."""
    command, _ = find(words)
    found: set[str] = set()
    for parameter in command.params:
        names = parameter.envvar or []
        found |= {names} if isinstance(names, str) else set(names)
    return found
