"""What a process shows at /metrics, for tests."""

import asyncio
from urllib.request import urlopen


async def metric(port: int, name: str, labels: str = "") -> float:
    """The one sample of that name; `labels`: a part of what stands between its braces."""
    text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    (value,) = [
        line.rpartition(" ")[2]
        for line in text.splitlines()
        if line.split("{")[0].split(" ")[0] == name and labels in line
    ]
    return float(value)
