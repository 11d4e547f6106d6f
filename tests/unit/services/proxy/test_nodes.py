"""Where addresses lead to, while nodes come and go."""

import asyncio
from typing import cast

import pytest

from lockstep.client.client import Client
from lockstep.client.session import Session
from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.addresses import TEMPORARY_QUEUE
from services.proxy.nodes import Nodes

NAME = f"{TEMPORARY_QUEUE}name"


class Directory:
    """A session that answers late where a queue is; what is deleted is written down."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.deleted: list[str] = []

    async def of_target(self, _exchange: str, _key: str) -> tuple[object, object]:
        await self.answers.wait()
        return object(), object()

    async def delete_queue(self, name: str) -> None:
        self.deleted.append(name)


async def test_a_temporary_node_that_is_deleted_while_it_is_looked_for_is_not_found_nor_remembered() -> None:
    directory = Directory()
    nodes = Nodes(
        cast(Client, None), cast(Session, directory), may_create_queues=False, may_create_topics=False
    )
    looking = asyncio.ensure_future(nodes.target(NAME))
    await asyncio.sleep(0)
    await nodes.delete_temporary(NAME)
    directory.answers.set()
    with pytest.raises(Rejected) as raised:
        await looking
    assert raised.value.code is ErrorCode.NOT_FOUND
    assert nodes.known_target(NAME) is None
    assert directory.deleted == [NAME]
