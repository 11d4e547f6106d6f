"""A proxy process: its listening sockets and workers, from start to stop.

Law: with several workers this process only starts and watches them; they share the port (SO_REUSEPORT), so the kernel deals
connections to them. A worker that dies is started again; its clients connect anew, to any of them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import grpc.aio

from lockstep.core.errors import Rejected
from lockstep.runtime.channels import make_server
from lockstep.runtime.forking import collect_nothing_in_forks
from lockstep.runtime.health import Health
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.metrics import serve_metrics
from lockstep.runtime.process import CannotStart, bind, started
from lockstep.runtime.reflection import add_services
from services.proxy.samples import ProxySamples
from services.proxy.security.settings import SecuritySettings
from services.proxy.security.tls_files import TlsFiles
from services.proxy.security.users import Users
from services.proxy.security.users_file import UsersFile
from services.proxy.settings import ProxySettings
from services.proxy.tls_arrival import TlsListener, listening_sockets
from services.proxy.worker import Worker

_log = logging.getLogger("lockstep.proxy")

BACKLOG = 1024
WORKER = "LOCKSTEP_PROXY_WORKER"
"""Environment variable: set in the processes that are workers of another, to their number."""
RESTART_SECONDS = 0.5
"""Before a worker that died is started again."""


async def serve(settings: ProxySettings) -> int:
    """Runs a proxy until SIGTERM or SIGINT; returns its exit status."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    users, tls = _read_files(settings.security)
    if settings.workers > 1 and WORKER not in os.environ:
        return await _supervise(settings, stopping)
    return await _work(settings, stopping, users, tls)


def _read_files(security: SecuritySettings) -> tuple[Users | None, TlsFiles | None]:
    """Raises `CannotStart` for those that are not good; before any worker is started, which would only be started again."""
    try:
        users = UsersFile(security.users) if security.users else None
    except (OSError, ValueError) as error:
        raise CannotStart(f"the users file {security.users} cannot be used: {error}") from error
    try:
        return users, TlsFiles(security.tls) if security.tls is not None else None
    except ValueError as error:
        raise CannotStart(f"the files for TLS cannot be used: {error}") from error


async def _work(
    settings: ProxySettings, stopping: asyncio.Event, users: Users | None, tls: TlsFiles | None
) -> int:
    worker = Worker(settings, users)
    try:
        is_started = await started(worker.start(), stopping)
    except Rejected as error:
        await worker.stop()
        raise CannotStart(f"no broker answers: {error.message}") from error
    if not is_started:
        await worker.stop()
        return 0
    with contextlib.ExitStack() as cleanup:
        watch = cleanup.enter_context(watching("proxy"))
        if settings.metrics_port:
            port = settings.metrics_port + int(os.environ.get(WORKER, "0"))
            cleanup.callback(serve_metrics(port, [ProxySamples(worker).read, watch.samples]))
        servers = [await _listen(worker, settings.listen, None)]
        if tls is not None:
            servers.append(await _listen(worker, settings.listen_tls, tls))
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        _write_port(settings, ports[0])
        health = await _serve_health(settings.health_listen)
        _log.info("event=ready ports=%s", ",".join(map(str, ports)))
        await stopping.wait()
        _log.info("event=stopping connections=%d", len(worker.connections))
        for server in servers:
            server.close()
        await worker.stop()
        await health.stop(None)
    _log.info("event=stopped")
    return 0


async def _listen(worker: Worker, address: str, tls: TlsFiles | None) -> asyncio.Server | TlsListener:
    host, _, port = address.rpartition(":")
    try:
        if tls is not None:
            return worker.tls_listener(await listening_sockets(host.strip("[]"), int(port), BACKLOG), tls)
        return await asyncio.get_running_loop().create_server(
            partial(worker.socket, None), host, int(port), backlog=BACKLOG, reuse_port=True
        )
    except OSError as error:
        raise CannotStart(f"failed to bind {address}: {error}") from error


async def _serve_health(address: str) -> grpc.aio.Server:
    """Says that this worker serves, from now on; to nobody if there is no address."""
    server = make_server()
    add_services(server, (), Health())
    if address:
        host, _, port = address.rpartition(":")
        bind(server, f"{host}:{int(port) + int(os.environ.get(WORKER, '0'))}")
    await server.start()
    return server


def _write_port(settings: ProxySettings, port: int) -> None:
    if settings.port_file and WORKER not in os.environ:
        path = Path(settings.port_file)
        scratch = path.with_name(path.name + ".new")
        scratch.write_text(str(port))
        scratch.replace(path)


async def _supervise(settings: ProxySettings, stopping: asyncio.Event) -> int:
    """Takes the port, starts the workers on it, and starts those again that die."""
    with contextlib.ExitStack() as cleanup:
        # Held and never listened on: it keeps a port that was free for the workers, whatever becomes of them.
        holders = {address: _hold(address) for address in (settings.listen, settings.listen_tls) if address}
        for holder in holders.values():
            cleanup.callback(holder.close)
        ports = {address: str(holder.getsockname()[1]) for address, holder in holders.items()}
        arguments = [_with_port(argument, ports) for argument in sys.orig_argv[1:]]
        _write_port(settings, int(ports[settings.listen]))
        await asyncio.gather(
            *(_keep_worker(number, arguments, settings, stopping) for number in range(settings.workers))
        )
    return 0


def _hold(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holder.bind((host, int(port)))
    except OSError as error:
        holder.close()
        raise CannotStart(f"failed to bind {address}: {error}") from error
    return holder


def _with_port(argument: str, ports: dict[str, str]) -> str:
    if argument not in ports:
        return argument
    return f"{argument.rpartition(':')[0]}:{ports[argument]}"


async def _keep_worker(
    number: int, arguments: list[str], settings: ProxySettings, stopping: asyncio.Event
) -> None:
    collect_nothing_in_forks()
    while not stopping.is_set():
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env={**os.environ, WORKER: str(number)}
        )
        waiting = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([waiting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            if process.returncode is None:
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 2 * settings.limits.stop_seconds)
            if process.returncode is None:
                process.kill()
                await waiting
            return
        stopped.cancel()
        _log.warning("event=worker_exited number=%d status=%s", number, process.returncode)
        await asyncio.sleep(RESTART_SECONDS)
