"""Requests to the explorer, as they come over a connection."""

import json
import logging
from functools import cache
from io import BytesIO
from random import Random
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

from dgconv.analysis.trained_run import TrainedRun
from dgconv.data import load_data
from dgconv.explore.server import ExploreServer
from dgconv.explore.session import Session
from dgconv.models.storage import save_model
from dgconv.train.recipe import Recipe
from tests.fuzz.damage import damage
from tests.fuzz.outcome import Wrong
from tests.fuzz.targets.image import make as make_image
from tests.fuzz.values import FLOATS, NUMBERS, TEXTS

TINY = {"model": "condensenet20_dgc", "stages": (1,), "growth": (4,), "heads": 2}
PATHS = ("/", "/api/look", "/api/average", "/api/image", "/api/upload", "/../etc/passwd", "//", "ftp://[", "*")
METHODS = ("GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "get", "")
OTHERS = ("Origin: null", "Origin: http://127.0.0.1:PORT", "Expect: 100-continue", f"X: {'y' * 70_000}")
WORDS = (
    *(b"\r\n", b"\n", b"\r\n\r\n", b"\0", b"Host: ", b"Content-Length: ", b"Transfer-Encoding: chunked", b"HTTP/1.1"),
    *(b"HTTP/9.9", b"Expect: 100-continue\r\n", b"%00", b"%ff", b"&", b"image=", b"rate=nan", b" "),
)
REFUSED = 400  # a status from this one on


@cache
def _server() -> ExploreServer:
    """Behind which there is a network, however badly it was trained."""
    folder, recipe, data = mkdtemp(), Recipe.of(**TINY), load_data("digits")
    extra = {"recipe": recipe.to_dict(), "input_size": data.input_size, "classes": data.classes, "epochs_done": 1}
    save_model(recipe.build_model(len(data.classes)), folder, **extra)
    session = Session(TrainedRun(folder), [])
    logging.getLogger("dgconv.explore.server").addHandler(_log)
    return ExploreServer(session, session.images.spread(2))


class _Log(logging.Handler):
    """What the server says of its own mistakes."""

    said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said = self.format(record)


_log = _Log()


class _Connection:
    """One over which a request has come, as far as it will."""

    def __init__(self, request: bytes) -> None:
        self.request, self.sent = BytesIO(request), bytearray()

    def makefile(self, *_: Any, **__: Any) -> BytesIO:
        return BytesIO()

    def settimeout(self, seconds: float | None) -> None:
        pass

    def recv_into(self, buffer: Any) -> int:
        return self.request.readinto(buffer)

    def sendall(self, content: bytes) -> None:
        self.sent += content


def make(rng: Random) -> bytes:
    values = (
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(FLOATS),
        lambda: quote(rng.choice(TEXTS), errors="surrogatepass"),
        lambda: rng.choice(("0", "17", "0.75", "nan", "upload-1", "upload-99", "1e400", "9" * 300)),
    )
    names = ("image", "rate", "number", "other")
    query = "&".join(f"{rng.choice(names)}={rng.choice(values)()}" for _ in range(rng.choice((0, 1, 2, 2, 3))))
    method, path = rng.choice(METHODS), rng.choice(PATHS)
    body = make_image(rng) if method == "POST" or rng.random() < 0.1 else b""
    length = len(body) if rng.random() < 0.9 else rng.choice((*NUMBERS, "", "x", "9" * 5000))
    lines = [
        f"{method} {path}{'?' if query else ''}{query} {rng.choice(('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', ''))}",
        f"Host: {'127.0.0.1:PORT' if rng.random() < 0.95 else rng.choice(('', 'evil.example', 'localhost:PORT'))}",
        *([f"Content-Length: {length}"] if body or rng.random() < 0.2 else []),
        *(
            [rng.choice(("Origin: null", "Origin: http://127.0.0.1:PORT", "X: " + "y" * 70_000))]
            if rng.random() < 0.1
            else []
        ),
    ]
    request = "\r\n".join(lines).encode(errors="surrogatepass") + b"\r\n\r\n" + body
    return damage(request, rng, WORDS) if rng.random() < 0.5 else request


def run(request: bytes) -> str:
    server = _server()
    connection = _Connection(request.replace(b"PORT", str(server.server_port).encode()))
    try:
        server.RequestHandlerClass(connection, ("127.0.0.1", 1), server)  # type: ignore[arg-type]
    except OSError:
        return "refused"
    if not connection.sent.startswith(b"HTTP/"):  # to a request of before there were headers
        return "accepted"
    head, _, body = bytes(connection.sent).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status == 500:
        raise RuntimeError(_log.said)
    for header in (b"Content-Security-Policy: ", b"X-Content-Type-Options: nosniff", b"frame-ancestors 'none'"):
        if header not in head:
            raise Wrong(f"status {status} without {header!r}")
    if b"Content-Type: application/json" in head and "error" in json.loads(body) and status == 200:
        raise Wrong(f"an error with status {status}")
    return "refused" if status >= REFUSED else "accepted"


def store(request: bytes) -> bytes:
    return request


restore = store
