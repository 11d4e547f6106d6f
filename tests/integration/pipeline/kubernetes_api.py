"""The little of a Kubernetes API that a driver of Spark needs: it takes pods, and says of any pod that it runs.

Law: nothing is started by it; whoever wants the pods to run starts them.
"""

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Pod = dict[str, Any]


class KubernetesApi:
    """Lives inside `serving`."""

    def __init__(self) -> None:
        self.pods: queue.Queue[Pod] = queue.Queue()
        """Those that were asked for, in order."""
        self.asked: set[tuple[str, str]] = set()
        """Kind of objects and verb of every request, as roles name them."""
        self.is_over = threading.Event()
        self.url = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and object."""
        parts = urlsplit(path).path.strip("/").split("/")
        # api/v1/namespaces/NAMESPACE/KIND[/NAME]
        kind, name = parts[4], parts[5] if len(parts) > 5 else ""
        self.asked.add((kind, verb_of(method, has_name=bool(name), is_watch="watch=true" in path)))
        if method == "POST":
            body["metadata"]["uid"] = "1"
            if kind == "pods":
                self.pods.put(body)
            return 201, body
        if method == "GET" and not name:
            return 200, {
                "kind": "List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": [],
            }
        if method == "GET":
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            metadata = {"name": name, "namespace": parts[3], "uid": "0"}
            return 200, {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": metadata,
                "spec": {"containers": []},
                "status": ready,
            }
        return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def verb_of(method: str, *, has_name: bool, is_watch: bool) -> str:
    match method:
        case "GET" if is_watch:
            return "watch"
        case "GET":
            return "get" if has_name else "list"
        case "DELETE":
            return "delete" if has_name else "deletecollection"
        case _:
            return {"POST": "create", "PATCH": "patch"}[method]


@contextlib.contextmanager
def serving() -> Iterator[KubernetesApi]:
    """On a port of the loopback."""
    api = KubernetesApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_json = data[:1] == b"{"
            status, found = api.answer(self.command, self.path, json.loads(data) if is_json else {})
            if "Upgrade" in self.headers:
                # No web sockets: the client watches by an ordinary stream. (An error would be tried again and again.)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if "watch=true" in self.path:
                # Nothing ever changes.
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.flush()
                api.is_over.wait(120)
                return
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_PATCH = _handle  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        api.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
