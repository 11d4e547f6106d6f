"""Certificates that are renewed while the port is open."""

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from services.proxy.security.settings import TlsSettings
from services.proxy.security.tls_files import TlsFiles
from tests.unit.services.proxy.security.certificates import Certificates

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    for authority in ("first", "second"):
        made.authority(authority)
        made.signed(f"{authority}-server", f"/CN=server of {authority}", authority)
        made.signed(f"{authority}-client", "/CN=grace", authority)
    return made


class Port:
    """An open port whose files are in a folder of the test's."""

    def __init__(self, made: Certificates, folder: Path, *, asks_clients: bool = False) -> None:
        self._made = made
        self._folder = folder
        self.use("first")
        authority = str(folder / "ca.pem") if asks_clients else ""
        wanted = "required" if asks_clients else "none"
        settings = TlsSettings(str(folder / "server.pem"), str(folder / "server.key"), authority, wanted)
        self.files = TlsFiles(settings, look_seconds=0.0)

    def use(self, name: str) -> None:
        """The files are these from now on."""
        self.copy(self._made.certificate(name), "ca.pem")
        self.copy(self._made.certificate(f"{name}-server"), "server.pem")
        self.copy(self._made.key(f"{name}-server"), "server.key")

    def copy(self, source: str, name: str) -> None:
        shutil.copyfile(source, self._folder / "new")
        (self._folder / "new").replace(self._folder / name)

    async def greet(self, *clients: str) -> list[str]:
        """Who the server says it is to each of these, or that it is refused."""
        server = await asyncio.start_server(_say_hello, "127.0.0.1", 0, ssl=self.files.context)
        async with server:
            host, port = server.sockets[0].getsockname()
            return [await self._greet_one(client, host, port) for client in clients]

    async def _greet_one(self, client: str, host: str, port: int) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        for authority in ("first", "second"):
            context.load_verify_locations(self._made.certificate(authority))
        if client:
            context.load_cert_chain(self._made.certificate(client), self._made.key(client))
        async with asyncio.timeout(10):
            try:
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
            except OSError:
                return "refused"
            subject = writer.get_extra_info("peercert")["subject"]
            try:
                if await reader.read() != b"hello":
                    return "refused"
            except OSError:
                return "refused"
            finally:
                writer.close()
        return str(subject[0][0][1]).removeprefix("server of ")


async def _say_hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


def run(new_loop: NewLoop, port: Port, *clients: str) -> list[str]:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(port.greet(*clients))


@LOOPS
def test_a_renewed_certificate_is_shown_to_who_connects_next(
    made: Certificates, tmp_path: Path, new_loop: NewLoop
) -> None:
    port = Port(made, tmp_path)
    assert run(new_loop, port, "", "") == ["first", "first"]
    port.use("second")
    assert run(new_loop, port, "") == ["second"]


@LOOPS
def test_files_that_do_not_belong_together_yet_are_not_taken(
    made: Certificates, tmp_path: Path, new_loop: NewLoop
) -> None:
    port = Port(made, tmp_path)
    port.copy(made.certificate("second-server"), "server.pem")
    assert run(new_loop, port, "", "") == ["first", "first"]
    (tmp_path / "server.key").unlink()
    assert run(new_loop, port, "") == ["first"]
    port.copy(made.key("second-server"), "server.key")
    assert run(new_loop, port, "") == ["second"]


@LOOPS
def test_clients_are_verified_by_who_is_trusted_now(
    made: Certificates, tmp_path: Path, new_loop: NewLoop
) -> None:
    port = Port(made, tmp_path, asks_clients=True)
    clients = "first-client", "second-client", ""
    assert run(new_loop, port, *clients) == ["first", "refused", "refused"]
    port.use("second")
    assert run(new_loop, port, *clients) == ["refused", "second", "refused"]


def test_files_are_not_looked_at_for_each_client(made: Certificates, tmp_path: Path) -> None:
    port = Port(made, tmp_path)
    port.files = TlsFiles(TlsSettings(str(tmp_path / "server.pem"), str(tmp_path / "server.key")), 60.0)
    port.use("second")
    assert run(asyncio.new_event_loop, port, "", "") == ["first", "first"]
