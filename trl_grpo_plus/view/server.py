"""A run's page while the run goes on: a server for this machine alone, whose page asks it for what is new.

It listens on 127.0.0.1, and answers who knows the token in its address: `/TOKEN/` is the page, `/TOKEN/data` what is
new since a look, `/TOKEN/metrics` every metric, `/TOKEN/lists` how each prompt went, `/TOKEN/texts` the attempts of
some groups. Nothing else is there; no path of a request becomes one of a file.
"""

import gzip
import hmac
import json
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .. import traces
from .file_index import Moved
from .live_feed import Feed
from .page import served


HOST = "127.0.0.1"
# A name that someone else lets point here (DNS rebinding) is not among them. Tunnels change the port.
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
        run (`str` or `Path`): a run's `output_dir`, or its `rollouts` folder. Runs of this package's trainer alone.
        port (`int`, *optional*, defaults to `0`): of this machine to listen at; 0 is any free one.
        ready (`Callable`, *optional*): is told the page's address once it can be opened.

    Raises:
        ValueError: the port is taken or no port, or the run is one of stock TRL.
    """
    with suppress(KeyboardInterrupt), open_server(run, port) as server:
        ready(server.address)
        server.serve_forever(poll_interval=0.2)


def open_server(run: str | Path, port: int = 0) -> "Server":
    """Return a server that has read what there is of a run, and answers from `serve_forever` on."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port={port} is no port. Give one from 1024 to 65535, or none for a free one.")
    feed = Feed(run)
    if not feed.news()["live"]["groups"] and traces.trl_completions.files(run):
        raise ValueError(f"{run} is a run of stock TRL, whose files are not followed. Leave out --serve for its page.")
    try:
        return Server(feed, port)
    except OSError as error:
        raise ValueError(
            f"--port={port} cannot be had ({error.strerror}). Give another, or none for a free one."
        ) from None


class Server(ThreadingHTTPServer):
    """Answers about one run.

    Attributes:
        address (`str`): of its page, with the token.
    """

    daemon_threads = True  # one that still sends does not hold up Ctrl-C

    def __init__(self, feed: Feed, port: int = 0):
        self.feed = feed
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what kept an answer back. A reader that hung up is nothing to tell."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # s that a connection may say or take nothing

    def parse_request(self) -> bool:
        """Refuse whatever is not asked from this machine, with the token, by GET."""
        if not super().parse_request():
            return False
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
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
        """Answer."""
        answers = {"": self._page, "data": self._data, "metrics": self._metrics, "lists": self._lists}
        answers["texts"] = self._texts
        answer = answers.get(self._what[0]) if self._what else None
        if answer is None:
            return self.send_error(404)
        try:
            asked = {name: int(values[-1]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        except ValueError:
            return self.send_error(400)
        answer(asked)

    def _page(self, asked: dict[str, int]) -> None:
        page, policy = served(self.server.feed.news())
        self._send(page, "text/html; charset=utf-8", {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})

    def _data(self, asked: dict[str, int]) -> None:
        known = {name: asked[name] for name in ("epoch", "groups", "version") if name in asked}
        self._send(_json(self.server.feed.news(**known)), "application/json")

    def _metrics(self, asked: dict[str, int]) -> None:
        self._send(_json(self.server.feed.metrics()), "application/json")

    def _lists(self, asked: dict[str, int]) -> None:
        self._send(_json(self.server.feed.lists()), "application/json")

    def _texts(self, asked: dict[str, int]) -> None:
        texts = self.server.feed.texts(*(asked.get(name, -1) for name in ("epoch", "from", "to")))
        try:
            first = _json(next(texts))
        except Moved:
            return self.send_error(409)
        self._begin("application/json")
        self.wfile.write(b"[" + first)
        try:
            for group in texts:
                self.wfile.write(b"," + _json(group))
        except Moved:  # without its end the answer is none
            return
        self.wfile.write(b"]")

    # -- how it is sent

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
        """As bare text, with the headers of all answers."""
        body = f"{code} {self.responses.get(code, ('',))[0]}\n".encode()
        allow = {"Allow": "GET"} if code == 405 else {}
        self._begin("text/plain; charset=utf-8", {**allow, "Content-Length": str(len(body))}, code)
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return an empty "Server" header."""
        return "trl-grpo-plus"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is told of requests, which hold the token."""


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
