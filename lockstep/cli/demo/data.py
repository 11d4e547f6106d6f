"""The data of the demo: public measurements that the package vega_datasets carries.

Every row becomes a message {"id": n, "data set": name, ...}: the id is what the account at the end counts by.
"""

import csv
import importlib.util
import json
from pathlib import Path

from lockstep.core.errors import ErrorCode, Rejected

FILES = ("seattle-temps.csv", "sf-temps.csv", "airports.csv", "stocks.csv")
"""Hourly temperatures of two cities in 2010, the airports of the United States, monthly stock prices: about 21,000 rows."""


def load_rows(count: int = 0) -> list[bytes]:
    """Bodies of the first `count` messages, over and over if there are fewer rows; 0: each row once.

    Raises `Rejected` (NOT_FOUND) without the package.
    """
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or spec.origin is None:
        raise Rejected(
            ErrorCode.NOT_FOUND,
            "the demo's data is not installed: pip install 'lockstep[dev]', or vega_datasets",
        )
    directory = Path(spec.origin).parent / "_data"
    rows: list[dict[str, str]] = []
    for name in FILES:
        with (directory / name).open(newline="", encoding="utf-8") as file:
            rows += [{"data set": name.removesuffix(".csv"), **row} for row in csv.DictReader(file)]
    wanted = count or len(rows)
    return [json.dumps({"id": number, **rows[number % len(rows)]}).encode() for number in range(wanted)]


def id_of(body: bytes) -> int:
    """The id inside a body."""
    number = json.loads(body)["id"]
    assert isinstance(number, int), "a body of the demo has a number as its id"
    return number
