"""One cluster for all tests of a file, one after the other, for starting one takes longer than many of them.

Law: a test finds a cluster that is whole. One that does not come round behind a test is ended, and the next test has another.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Generic, TypeVar

import pytest
import pytest_asyncio

from lockstep.core.errors import LockstepError

ROUND_SECONDS = 30.0
"""In which a cluster comes round, if all is well."""
_Running = TypeVar("_Running")
_Deploy = Callable[[Path], AbstractAsyncContextManager[_Running]]
_Mend = Callable[[_Running], Awaitable[None]]


class SharedClusters(Generic[_Running]):
    """Lives as long as the tests of its file, in a loop of theirs; `stack` ends what it has started."""

    def __init__(
        self, directory: Path, stack: AsyncExitStack, deploy: _Deploy[_Running], mend: _Mend[_Running]
    ) -> None:
        """`deploy`: a cluster in a directory of its own. `mend` undoes what a test has left and waits until the cluster is whole,
        or raises when that takes more than `ROUND_SECONDS`.
        """
        self._directory = directory
        self._stack = stack
        self._deploy = deploy
        self._mend = mend
        self._count = 0
        self._present: _Running | None = None

    async def present(self) -> _Running:
        """What the next test is to have."""
        if self._present is None:
            self._count += 1
            running = self._deploy(self._directory / f"{self._count}")
            self._present = await self._stack.enter_async_context(running)
        return self._present

    async def come_round(self) -> None:
        """A test has ended."""
        running, self._present = self._present, None
        if running is None:
            return
        try:
            await self._mend(running)
        except (AssertionError, LockstepError, OSError) as error:
            print(f"the next test has another cluster: {error}")
            await self.end()
        else:
            self._present = running

    async def end(self) -> None:
        """The next test has another cluster."""
        self._present = None
        await self._stack.aclose()


def shared(
    deploy: _Deploy[_Running], mend: _Mend[_Running]
) -> tuple[
    Callable[[pytest.TempPathFactory], AsyncGenerator[SharedClusters[_Running]]],
    Callable[[SharedClusters[_Running]], AsyncGenerator[_Running]],
]:
    """Two fixtures of a file: the first is to be its `clusters`, the second is the one that a test has."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def clusters(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[SharedClusters[_Running]]:
        async with AsyncExitStack() as stack:
            yield SharedClusters(tmp_path_factory.mktemp("clusters"), stack, deploy, mend)

    @pytest_asyncio.fixture(loop_scope="module")
    async def running(clusters: SharedClusters[_Running]) -> AsyncGenerator[_Running]:
        yield await clusters.present()
        await clusters.come_round()

    return clusters, running
