"""The server: what it answers, whom it refuses, and that it goes on."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Lock, Thread
from urllib.request import urlopen

import pytest

from dgconv.explore import images
from dgconv.explore.images import MAX_BYTES
from dgconv.explore.server import ExploreServer, own_names


def ask(server, method, path, body=None, **headers):
    """Status, answer (JSON, if it is) and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    content = response.read()
    if response.headers["Content-Type"] == "application/json":
        content = json.loads(content)
    connection.close()
    return response.status, content, response.headers


@pytest.mark.slow
def test_answers(served):
    session = served.session
    status, page, headers = ask(served, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<h1" in page
    assert ask(served, "GET", "/api/look?image=17&rate=0.75")[1] == session.look("17", 0.75)
    assert ask(served, "GET", "/api/average?rate=0.75")[1] == session.average(0.75)
    assert ask(served, "GET", "/api/worth")[1] == session.worth()
    status, image, headers = ask(served, "GET", "/api/image?number=17")
    assert image == session.show(session.images["17"])
    assert image["label"] == session.data.classes[session.images["17"].label]
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_an_upload(head_served, encoded, a_photo):
    status, image, _ = ask(head_served, "POST", "/api/upload", encoded(a_photo))
    assert status == 200
    assert image["label"] is None
    assert image["picture"].startswith("data:image/png;base64,")
    look = ask(head_served, "GET", f"/api/look?image={image['id']}&rate=0.5")[1]
    assert look == head_served.session.look(image["id"], 0.5)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/api/look?image=9999&rate=0.75", 404, "from 0 to 359"),
        ("GET", "/api/look?image=upload-9999&rate=0.75", 404, "bring it again"),
        ("GET", "/api/look?rate=0.75", 400, "lacks 'image'"),
        ("GET", "/api/look?image=1&rate=much", 400, "rate must be a number, got 'much'"),
        ("GET", "/api/look?image=1&rate=nan", 400, "not offered here"),
        ("GET", "/api/average?rate=7", 400, "take one of 0.25, 0.5, 0.75"),
        ("GET", "/api/image?number=-3", 404, "there is no test image '-3'"),
        ("GET", "/../../etc/passwd", 404, "there is no GET"),
        ("GET", "ftp://[", 404, "there is no GET ftp://["),
        ("POST", "ftp://[", 404, "there is no POST ftp://["),
        ("GET", "/api/upload", 404, "there is no GET /api/upload"),
        ("POST", "/api/look", 404, "there is no POST /api/look"),
        ("POST", "/api/upload", 400, "cannot read the image"),
    ],
)
def test_wrong_questions(head_served, method, path, status, message):
    found, answer, _ = ask(head_served, method, path)
    assert (found, message in answer["error"]) == (status, True), answer
    assert ask(head_served, "GET", "/")[0] == 200


@pytest.mark.slow
def test_bodies(head_served):
    status, answer, _ = ask(head_served, "POST", "/api/upload", bytes(MAX_BYTES + 1))
    assert (status, "at most 20,000,000" in answer["error"]) == (413, True)
    status, answer, _ = ask(head_served, "POST", "/api/upload", iter([b"in", b"chunks"]))
    assert (status, "how long" in answer["error"]) == (400, True)
    status, answer, _ = ask(head_served, "POST", "/api/upload", b"x", Content_Length="-5")
    assert status == 400
    status, answer, _ = ask(head_served, "POST", "/api/upload", b"x", Content_Length="9" * 5000)
    assert (status, "how long" in answer["error"]) == (400, True)
    assert ask(head_served, "GET", "/")[0] == 200


@pytest.mark.parametrize("path", ["/", "/api/look?image=1&rate=0.75"])
def test_only_for_this_machine(head_served, path):
    assert head_served.server_address[0] == "127.0.0.1"
    port = head_served.server_port
    assert ask(head_served, "GET", path, Host=f"localhost:{port}")[0] == 200
    assert ask(head_served, "GET", path, Origin=f"http://127.0.0.1:{port}")[0] == 200
    for stranger in ({"Host": f"evil.example:{port}"}, {"Host": "127.0.0.1"}, {"Origin": "http://evil.example"}):
        status, answer, _ = ask(head_served, "GET", path, **stranger)
        assert (status, "only to be had at" in answer["error"]) == (403, True)
    assert ask(head_served, "POST", "/api/upload", b"", Origin="null")[0] == 403


def test_browsers_leave_out_the_port_of_the_web():
    assert own_names(80) == {"127.0.0.1", "localhost", "127.0.0.1:80", "localhost:80"}
    assert own_names(8080) == {"127.0.0.1:8080", "localhost:8080"}


def test_a_mistake_of_ours_is_not_the_end(head_served, monkeypatch, caplog):
    monkeypatch.setattr(head_served.session, "look", lambda *_: 1 / 0)
    status, answer, _ = ask(head_served, "GET", "/api/look?image=1&rate=0.75")
    assert (status, "terminal" in answer["error"]) == (500, True)
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert ask(head_served, "GET", "/api/look?image=1&rate=0.75")[0] == 200


def test_somebody_who_hangs_up(head_served, capfd):
    with socket.create_connection(("127.0.0.1", head_served.server_port)) as connection:
        head = f"POST /api/upload HTTP/1.1\r\nHost: 127.0.0.1:{head_served.server_port}\r\nContent-Length: 999\r\n\r\n"
        connection.sendall(head.encode() + b"abc")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # abruptly
    assert ask(head_served, "GET", "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("GET", "/nothing", 404), ("PUT", "/", 501), ("GET", "/api/look", 400), ("GET", "/ b", 400)],
)
def test_no_other_page_may_frame_it_or_guess_what_it_is(head_served, method, path, status):
    with socket.create_connection(("127.0.0.1", head_served.server_port)) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{head_served.server_port}\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        response.read()
    assert response.status == status
    policy = response.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nX-Header: ", "POST /api/upload HTTP/1.1\r\nHost: {}\r\nCont"])
def test_who_sends_a_byte_now_and_then_is_cut_off(head_served, monkeypatch, sent):
    monkeypatch.setattr("dgconv.explore.server.PATIENCE", 0.5)
    port = head_served.server_port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent.format(f"127.0.0.1:{port}").encode())
        start = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - start < 5:
                connection.sendall(b"a")
                connection.settimeout(0.1)
                with suppress(TimeoutError):
                    if connection.recv(1) == b"":
                        break
        assert time.monotonic() - start < 2


def test_a_slow_body_is_cut_off(head_served, monkeypatch):
    monkeypatch.setattr("dgconv.explore.server.PATIENCE", 0.5)
    head = f"POST /api/upload HTTP/1.1\r\nHost: 127.0.0.1:{head_served.server_port}\r\nContent-Length: 999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", head_served.server_port), timeout=10) as connection:
        connection.sendall(head.encode())
        start = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - start < 5:
                connection.sendall(b"a")
                time.sleep(0.1)
        assert time.monotonic() - start < 3


def test_many_connections_leave_room_for_few(head_session, monkeypatch):
    monkeypatch.setattr("dgconv.explore.server.CONNECTIONS", 3)
    with ExploreServer(head_session, ["0"]) as server, ExitStack() as stack:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        address = ("127.0.0.1", server.server_port)
        idle = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3)]
        with socket.create_connection(address, timeout=10) as fourth:
            assert fourth.recv(1) == b"", "closed at once"
        for connection in idle:
            connection.close()
        until = time.monotonic() + 10
        while server.connections._value < 3 and time.monotonic() < until:
            time.sleep(0.02)
        assert ask(server, "GET", "/")[0] == 200
        server.shutdown()
        thread.join()


def test_uploads_wait_for_each_other(head_served, monkeypatch, encoded, a_photo):
    """Of twelve, few are held at a time, and one is decoded: they would take gigabytes together."""
    working, most = 0, 0
    counting, decode = Lock(), images.read_upload

    def watched(content):
        nonlocal working, most
        with counting:
            working += 1
            most = max(most, working)
        time.sleep(0.02)
        image = decode(content)
        with counting:
            working -= 1
        return image

    monkeypatch.setattr(images, "read_upload", watched)
    photo = encoded(a_photo)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(head_served, "POST", "/api/upload", photo)[0], range(12)))
    assert answers == [200] * 12
    assert most == 1


def test_who_waits_too_long_is_told_so(head_served, monkeypatch):
    monkeypatch.setattr("dgconv.explore.server.PATIENCE", 0.2)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(head_served.uploads)
        status, answer, _ = ask(head_served, "POST", "/api/upload", b"x")
    assert (status, "try it again" in answer["error"]) == (503, True)


def test_a_port_in_use(head_served):
    with pytest.raises(Exception, match=f"port {head_served.server_port}: Address already in use. Give another"):
        ExploreServer(head_served.session, ["0"], head_served.server_port)


@pytest.mark.slow
def test_the_command(head_folder):
    """In a process of its own, until Ctrl-C."""
    command = [sys.executable, "-m", "dgconv", "explore", str(head_folder), "--rates", "0.5"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stdout.readline()
            assert "(Ctrl-C ends it)" in line, process.stderr.read()
            url = next(word for word in line.split() if word.startswith("http"))
            assert json.load(urlopen(f"{url}api/look?image=3&rate=0.5"))["macs"] > 0
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out.strip(), err) == (0, "dgconv: the page is closed", "")
