"""The page behind a web server of its own, for this machine only."""

import base64
import hashlib
import io
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from ..errors import UserError
from .images import MAX_BYTES, NoSuchImage, TooLarge
from .page import live_page
from .session import Session

log = logging.getLogger(__name__)
ADDRESS = "127.0.0.1"
WEB_PORT = 80  # browsers leave it out of the name
PATIENCE = 60.0  # seconds for a whole request, or answer, of somebody who sends or reads slowly
CONNECTIONS, UPLOADS = 64, 4  # at a time
CHUNK = 1 << 16
LONGEST_NUMBER = 18  # digits of a length that somebody may mean
A_MOMENT = 0.2  # seconds
Parameters = dict[str, str]


class Busy(UserError):
    """Others are served first."""


STATUS_OF = {
    NoSuchImage: HTTPStatus.NOT_FOUND,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
}


class ExploreServer(ThreadingHTTPServer):
    """``serve_forever`` answers until somebody stops it; port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, session: Session, ids: Sequence[str], port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise UserError(f"port {port} does not exist; give one from 1 to 65535, or 0 for any that is free")
        self.session = session
        self.page = live_page(session, ids).encode()
        self.headers = headers_for(self.page)
        self.uploads, self.connections = BoundedSemaphore(UPLOADS), BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UserError(
                f"cannot listen on port {port}: {error.strerror}. Give another `port`, or 0 for any that is free"
            ) from None
        self.hosts = own_names(self.server_port)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers no more requests at a time than there is room for: each takes a thread."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a browser that went away is no news
            log.exception("a request failed")


class _Incoming(io.RawIOBase):
    """What comes over a connection, until it has taken too long in all; a connection's own timeout is for each part."""

    def __init__(self, connection: socket) -> None:
        self.connection = connection
        self.longest_pause = PATIENCE
        self.wait_again()

    def wait_again(self) -> None:
        self.end = time.monotonic() + PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        self.connection.settimeout(min(left, self.longest_pause))
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: ExploreServer
    server_version, sys_version = "dgconv", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self.incoming)

    def do_GET(self) -> None:
        if self._url().path == "/" and self._is_ours():
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        else:
            asked = {"look": self._look, "average": self._average, "worth": self._worth, "image": self._image}
            self._answer({f"/api/{name}": answer for name, answer in asked.items()})

    def do_POST(self) -> None:
        self._answer({"/api/upload": self._upload})

    def _look(self, given: Parameters) -> Any:
        return self.server.session.look(_get(given, "image"), _number(given, "rate"))

    def _average(self, given: Parameters) -> Any:
        return self.server.session.average(_number(given, "rate"))

    def _worth(self, given: Parameters) -> Any:
        return self.server.session.worth()

    def _image(self, given: Parameters) -> Any:
        session = self.server.session
        return session.show(session.images.of_test_set(_get(given, "number")))

    def _upload(self, given: Parameters) -> Any:
        session = self.server.session
        with self._one_of_few():
            return session.show(session.images.upload(self._read_body()))

    @contextmanager
    def _one_of_few(self) -> Iterator[None]:
        """Waits until few others upload; what each holds of its file is in memory."""
        if not self.server.uploads.acquire(timeout=PATIENCE):
            raise Busy("others upload images just now; try it again")
        try:
            self.incoming.wait_again()
            yield
        finally:
            self.server.uploads.release()

    def _answer(self, answers: dict[str, Callable[[Parameters], Any]]) -> None:
        """JSON: what one of the functions gives, or ``{"error": message}`` with a status that says whose fault."""
        url = self._url()
        status, content = HTTPStatus.OK, None
        try:
            if not self._is_ours():
                status, content = HTTPStatus.FORBIDDEN, {"error": f"this page is only to be had at {self.server.url}"}
            elif url.path not in answers:
                status, content = HTTPStatus.NOT_FOUND, {"error": f"there is no {self.command} {url.path[:80]} here"}
            else:
                content = answers[url.path]({name: values[-1] for name, values in parse_qs(url.query).items()})
        except UserError as error:
            status, content = STATUS_OF.get(type(error), HTTPStatus.BAD_REQUEST), {"error": str(error)}
        except OSError:  # the browser's connection
            raise
        except Exception:
            log.exception("%s %s failed", self.command, url.path)
            message = "this should not have happened; the terminal where dgconv explore runs says more"
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": message}
        self._send(status, "application/json", json.dumps(content).encode())

    def _url(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError:  # no address at all: nothing is there
            return SplitResult("", "", self.path, "", "")

    def _is_ours(self) -> bool:
        """Asked for by our own name, and not by a page of somebody else's: no foreign site gets in by DNS rebinding."""
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in self.server.hosts and (
            origin is None or origin.removeprefix("http://") in self.server.hosts
        )

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= LONGEST_NUMBER):
            self._discard_what_comes()
            raise UserError("the request does not say how long it is; send the file as its body")
        if int(length) > MAX_BYTES:
            self._discard(min(int(length), 4 * MAX_BYTES))  # a browser listens only after it has sent
            raise TooLarge(f"your file has {int(length):,} bytes; at most {MAX_BYTES:,} are accepted. Make it smaller")
        return self.rfile.read(int(length))

    def _discard(self, length: int) -> None:
        while length > 0 and (chunk := self.rfile.read(min(CHUNK, length))):
            length -= len(chunk)

    def _discard_what_comes(self) -> None:
        """Reads what is left of a body that may end anywhere. Closed on unread bytes, a connection would take the
        answer with it."""
        self.incoming.longest_pause = A_MOMENT
        with suppress(OSError):
            for _ in range(MAX_BYTES // CHUNK):
                if not self.rfile.read1(CHUNK):
                    break

    def end_headers(self) -> None:
        """The headers of every answer, those of what the base class refuses, too."""
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.connection.settimeout(PATIENCE)
        super().end_headers()

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The terminal is for what matters."""


def headers_for(page: bytes) -> dict[str, str]:
    """What tells a browser to run the scripts of this page and no others, and to show it within no other page."""
    digests = [hashlib.sha256(script).digest() for script in re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)]
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def own_names(port: int) -> set[str]:
    """What a browser calls us in its requests."""
    names = {ADDRESS, "localhost"}
    return {f"{name}:{port}" for name in names} | (names if port == WEB_PORT else set())


def _get(given: Parameters, name: str) -> str:
    if name not in given:
        raise UserError(f"the request lacks {name!r}")
    return given[name]


def _number(given: Parameters, name: str) -> float:
    text = _get(given, name)
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name} must be a number, got {text[:40]!r}") from None
