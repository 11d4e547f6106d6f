"""Colours of messages: application properties that selectors of the simulated clients look at."""

from tests.kept_properties import kept_properties

COLOURS = ("red", "blue")
PROPERTIES = {colour: kept_properties(colour=colour) for colour in COLOURS}


def selector_of(colour: str) -> str:
    """The selector that matches one colour."""
    return f"colour = '{colour}'"


SELECTED = {selector_of(colour): properties for colour, properties in PROPERTIES.items()}
"""Selector -> the properties of all messages that it matches: what a checker knows of selectors."""
