"""A server for this machine only, whose page shows a run that is still going and asks the server for new data.

The server listens on 127.0.0.1. It answers only requests that hold the token of its address. `/TOKEN/` is the page,
`/TOKEN/data` the data that is new since a look, `/TOKEN/metrics` every metric, `/TOKEN/lists` the course of each
prompt, `/TOKEN/texts` the attempts of some groups, and `/TOKEN/searched` what a search reads of them. There are no
other paths. No request's path becomes the path of a file.
"""

import gzip
import hmac
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .. import traces
from ..utils.validation import ConfigError
from .file_index import Moved
from .live_feed import Feed
from .page import served
from .template import dumped


HOST = "127.0.0.1"
# Other names are refused, because a foreign name may point here (DNS rebinding). Any port goes: tunnels change it.
HOSTS = {"127.0.0.1", "localhost"}
SECURE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_WORTH_PACKING = 1000  # bytes


def serve_run(run: str | Path, port: int = 0, ready: Callable[[str], Any] = print) -> None:
    """Serve the page of a run, which need not have begun, until Ctrl-C.

    Args:
        run (`str` or `Path`): `output_dir` or `rollouts` folder of a run. Only runs of this package's trainer work.
        port (`int`, *optional*, defaults to `0`): port of this machine to listen at. 0 takes any free port.
        ready (`Callable`, *optional*): called with the page's address once the page can be opened.

    Raises:
        ConfigError: the port is taken or is not a port number, or the run is a run of stock TRL.
    """
    with suppress(KeyboardInterrupt), open_server(run, port) as server:
        ready(server.address)
        server.serve_forever(poll_interval=0.2)


def open_server(run: str | Path, port: int = 0) -> "Server":
    """Return a server that has read the run so far, and that answers once `serve_forever` is called."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port={port} is no port. Give one from 1024 to 65535, or none for a free one.")
    feed = Feed(run)
    if not feed.refresh()["groups"] and traces.trl_completions.files(run):
        raise ConfigError(
            f"{run} is a run of stock TRL, whose files are not followed. Leave out --serve for its page."
        )
    try:
        return Server(feed, port)
    except OSError as error:
        raise ConfigError(
            f"--port={port} cannot be had ({error.strerror}). Give another, or none for a free one."
        ) from None


class Server(ThreadingHTTPServer):
    """An HTTP server for the page and the data of one run.

    Attributes:
        address (`str`): address of the page, with the token.
    """

    daemon_threads = True  # a thread that is still sending must not hold up Ctrl-C

    def __init__(self, feed: Feed, port: int = 0):
        self.feed = feed
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Answer requests until the server is shut down. Count the prompts of a long run before anybody asks."""
        self.count_ahead()
        super().serve_forever(poll_interval)

    def count_ahead(self) -> None:
        """Count the lists of prompts in a thread, if that takes long."""
        threading.Thread(target=self.feed.count_ahead, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in an answer, but not one of a connection that the reader closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # s that a connection may be idle

    def parse_request(self) -> bool:
        """Refuse a request that does not name this machine as host, lacks the token, or is not a GET."""
        if not super().parse_request():
            return False
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        _, token, *self._what = self._path().split("/", 2)
        if name not in HOSTS or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(403)
        elif self.command != "GET":
            self.send_error(405)
        else:
            return True
        return False

    def _path(self) -> str:
        path = self.path.partition("?")[0]
        return path if path.startswith("/") else f"/{path}"

    def do_GET(self) -> None:
        """Answer a GET request."""
        feed = self.server.feed
        answers: dict[str, Callable[[dict[str, int]], None]] = {
            "": lambda query: self._page(),
            "data": self._data,
            "metrics": lambda query: self._send_json(feed.metrics()),
            "lists": lambda query: self._send_json(feed.lists()),
            "texts": lambda query: self._groups(feed.texts, query),
            "searched": lambda query: self._groups(feed.searched, query),
        }
        answer = answers.get(self._what[0]) if self._what else None
        if answer is None:
            return self.send_error(404)
        try:
            query = {name: int(values[-1]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        except ValueError:
            return self.send_error(400)
        answer(query)

    def _page(self) -> None:
        page, policy = served(self.server.feed.news())
        self._send(page, "text/html; charset=utf-8", {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})
        self.server.count_ahead()

    def _data(self, query: dict[str, int]) -> None:
        reader_state = {name: query[name] for name in ("epoch", "groups", "version") if name in query}
        news = self.server.feed.news(**reader_state)
        self._send_json(news)
        if "head" in news:
            self.server.count_ahead()

    def _groups(self, read: Callable[..., Iterator[Any]], query: dict[str, int]) -> None:
        """Send what is read of some groups: the page asks for those of one chunk."""
        try:
            texts = list(read(*(query.get(name, -1) for name in ("epoch", "from", "to"))))
        except Moved:
            return self.send_error(409)
        self._send_json(texts)

    # -- sending

    def _send_json(self, value: Any) -> None:
        self._send(dumped(value).encode(), "application/json")

    def _send(self, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        more = {**(more or {})}
        if len(body) > _WORTH_PACKING and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            more["Content-Encoding"] = "gzip"
        self._begin(kind, {**more, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _begin(self, kind: str, more: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**SECURE, "Content-Type": kind, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as plain text, with the headers of all answers."""
        body = f"{code} {self.responses.get(code, ('',))[0]}\n".encode()
        allow = {"Allow": "GET"} if code == 405 else {}
        self._begin("text/plain; charset=utf-8", {**allow, "Content-Length": str(len(body))}, code)
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the "Server" header, without versions."""
        return "trl-grpo-plus"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests hold the token."""
