"""The server answers, and goes on answering whatever a client does. Real sockets on loopback, bounded in time."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from gpu_topo.agent import http, http_connection
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.http import Server
from gpu_topo.agent.http_connection import Gate
from gpu_topo.agent.http_message import Done, Request, Response
from gpu_topo.agent.listen import ListenError
from gpu_topo.agent.loop import Loop
from tests.http_servers import Running, make_certificate

HUGE = bytes(64 << 20)  # more than any socket buffers
BODY = b"gputopo_finding 1\n" * 20_000  # 360 KB, as a large node's page is


def respond(request: Request, done: Done) -> None:
    if request.path == "/broken":
        raise ValueError("a bug")
    if request.path == "/big":
        done(Response(200, BODY))
    elif request.path == "/huge":
        done(Response(200, HUGE))
    else:
        done(Response(200, f"{request.method} {request.path}".encode(), headers=(("X-A", "b"),)))


class Pages(Running):
    """A server with pages for every test here, and the paths of those that raised."""

    def __init__(self, *addresses: Listen, gate: Gate | None = None, most: int = http.MAX_CONNECTIONS) -> None:
        self.errors: list[str] = []
        loop = Loop()
        server = Server(loop, respond, lambda: gate or Gate(), most, lambda path, error: self.errors.append(path))
        super().__init__(loop, server, *addresses)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def get(self, path: str = "/big", method: str = "GET", tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
        status, _, body = self.request(path, method, tls)
        return status, body


@pytest.fixture
def running() -> Iterator[Pages]:
    server = Pages()
    yield server
    server.stop()


def told(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_get_and_head(running: Pages) -> None:
    """GET gives the page, HEAD its headers alone; path and query reach the page."""
    assert running.get("/a?b=c") == (200, b"GET /a")
    assert running.get("/big", "HEAD") == (200, b"")
    assert running.get("/big") == (200, BODY)


def test_one_connection_serves_many_requests(running: Pages) -> None:
    """A connection is kept open, for requests one after the other and for several sent at once."""
    client = HTTPConnection("127.0.0.1", running.port, timeout=20)
    for n in range(3):
        client.request("GET", f"/{n}")
        assert client.getresponse().read() == f"GET /{n}".encode()
    client.close()
    with running.connect() as sock:
        sock.sendall(
            b"GET /p HTTP/1.1\r\nHost: a\r\n\r\n" * 400 + b"GET /z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        answers = told(sock)
    assert answers.count(b"GET /p") == 400
    assert answers.endswith(b"GET /z")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", b"413"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"413"),
        (b"GET /broken HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"500"),
    ],
)
def test_bad_requests_are_refused(running: Pages, sent: bytes, status: bytes) -> None:
    """What is no proper request for a page gets its status and the connection is closed; a bug in a page is a 500."""
    with running.connect() as sock:
        sock.sendall(sent)
        assert told(sock).startswith(b"HTTP/1.1 " + status)
    assert running.get("/a")[0] == 200
    assert running.errors == (["/broken"] if status == b"500" else [])


def test_several_addresses_and_a_unix_socket(tmp_path: Path) -> None:
    """Several addresses are served at once; a stale unix socket is replaced and the new one removed at the end."""
    path = str(tmp_path / "agent.sock")
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(path)
    left_behind.close()
    running = Pages(Listen("127.0.0.1", 0), Listen("", 0), Listen(path=path))
    try:
        for bound in running.bound[:2]:
            client = HTTPConnection("127.0.0.1", bound.port, timeout=20)
            client.request("GET", "/x")
            assert client.getresponse().read() == b"GET /x"
            client.close()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(b"GET /u HTTP/1.0\r\n\r\n")
            assert told(sock).endswith(b"GET /u")
    finally:
        running.stop()
    assert not os.path.exists(path)


def test_an_address_in_use_is_one_line() -> None:
    """Where it cannot listen everywhere it listens nowhere, and says why in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(Loop(), respond)
        before = descriptors()
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; another"):
            server.listen([Listen("127.0.0.1", 0), Listen("127.0.0.1", port)])
        assert descriptors() == before
        server.loop.close()


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_host_can_have(host: str) -> None:
    """It is refused in one line, too."""
    server = Server(Loop(), respond)
    with pytest.raises(ListenError, match="is no name of a host"):
        server.listen([Listen(host, 0)])
    server.loop.close()


def test_deadlines_end_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that drips in, and an answer that is not taken, end at their deadline."""
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(http_connection, "ANSWER_SECONDS", 0.3)
    running = Pages()
    try:
        with running.connect() as silent, running.connect() as half, running.connect() as deaf:
            half.sendall(b"GET / HT")
            deaf.sendall(b"GET /huge HTTP/1.1\r\nHost: a\r\n\r\n")
            assert told(silent) == b""
            assert told(half) == b""
            assert len(told(deaf)) < len(HUGE)
        deadline = time.monotonic() + 5
        while running.server.connections and time.monotonic() < deadline:
            running.get("/a")
        assert len(running.server.connections) <= 1
    finally:
        running.stop()


def test_a_kept_connection_outlives_the_request_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus keeps its connection between scrapes: it is not closed as a slow request would be."""
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.2)
    now = [100.0]
    loop = Loop(lambda: now[0])
    server = Server(loop, respond)
    port = server.listen([Listen("127.0.0.1", 0)])[0].port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        for _ in range(2):
            sock.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            for _ in range(4):
                loop.turn(0.05)
            assert sock.recv(4096).endswith(b"GET /a")
            now[0] += 60  # a minute passes
            for _ in range(3):
                loop.turn(0.01)
        assert len(server.connections) == 1
        now[0] += http_connection.IDLE_SECONDS
        for _ in range(3):
            loop.turn(0.01)
        assert server.connections == {}
    server.close()
    loop.close()


# --- abuse: the server in a process of its own, so that its memory is its own -------------------------------------

CHILD = """
import sys, threading
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.http import Server
from gpu_topo.agent.http_connection import Gate
from gpu_topo.agent.http_message import Response
from gpu_topo.agent.loop import Loop
body = b"gputopo_finding 1\\n" * 20_000
tls = None
if len(sys.argv) > 1:
    import ssl
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*sys.argv[1:])
def respond(request, done):
    if request.path == "/connections":
        done(Response(200, str(len(server.connections)).encode()))
    else:
        done(Response(200, body))
loop = Loop()
server = Server(loop, respond, lambda: Gate(tls))
print(server.listen([Listen("127.0.0.1", 0)])[0].port, flush=True)
loop.run()
"""
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
SETTLED = 512  # KiB that memory may be above what it was: less than one copy of anything that a client sent


class Child:
    """A server in a process of its own."""

    def __init__(self, *certificate: str) -> None:
        self.tls = ssl.create_default_context(cafile=certificate[0]) if certificate else None
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, *certificate], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        for _ in range(5):
            self.get()
        self.kib = self.usage("VmRSS")
        self.threads = self.usage("Threads")
        self.fds = self.descriptors()

    def usage(self, name: str) -> int:
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def get(self, path: str = "/metrics") -> bytes:
        client = (
            HTTPSConnection("localhost", self.port, timeout=20, context=self.tls)
            if self.tls
            else HTTPConnection("127.0.0.1", self.port, timeout=20)
        )
        try:
            client.request("GET", path)
            return client.getresponse().read()
        finally:
            client.close()

    def serves(self) -> None:
        """A scrape takes less than 200 ms (the best of five: the machine has other things to do), memory is bounded."""
        best = 9.0
        for _ in range(5):
            begin = time.monotonic()
            assert self.get() == BODY
            best = min(best, time.monotonic() - begin)
        assert best < 0.2
        assert self.usage("VmRSS") - self.kib < 4096

    def is_as_before(self) -> None:
        """The clients are gone: so is everything that they used."""
        deadline = time.monotonic() + 20
        while int(self.get("/connections")) > 1 and time.monotonic() < deadline:
            pass
        assert int(self.get("/connections")) == 1
        assert self.usage("Threads") == self.threads
        assert self.descriptors() <= self.fds + 1  # the connection that just asked may still be closing
        assert self.usage("VmRSS") - self.kib < (2048 if self.tls else SETTLED)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=10)


@pytest.fixture(scope="module", params=["http", "https"])
def child(request: pytest.FixtureRequest, certificate: tuple[str, str]) -> Iterator[Child]:
    server = Child(*(certificate if request.param == "https" else ()))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_two_hundred_half_open_connections(child: Child) -> None:
    """200 clients that send half a request neither stop a scrape nor cost memory, threads or descriptors."""
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(child.connect()).sendall(REQUEST)
        child.serves()
        assert int(child.get("/connections")) <= http.MAX_CONNECTIONS
    child.is_as_before()


def test_two_hundred_silent_clients(child: Child) -> None:
    """200 clients that say nothing at all do not stop a scrape, nor does a TLS handshake that is never finished."""
    with ExitStack() as stack:
        for n in range(200):
            sock = stack.enter_context(child.connect())
            if n % 2 and child.tls:
                hello = ssl.MemoryBIO()
                session = child.tls.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
                with pytest.raises(ssl.SSLWantReadError):
                    session.do_handshake()
                sock.sendall(hello.read())
        child.serves()
    child.is_as_before()


def test_twenty_clients_with_five_megabytes_of_headers(child: Child) -> None:
    """5 MB of headers each are refused early: none is kept."""
    header = b"X-Long: " + b"x" * 1000 + b"\r\n"

    def pour(sock: socket.socket) -> None:
        # Refused, as it should be: an error of the socket.
        with suppress(OSError), child.tls.wrap_socket(sock, server_hostname="localhost") if child.tls else sock as out:
            out.sendall(REQUEST)
            for _ in range(50):
                out.sendall(header * 100)

    with ExitStack() as stack:
        clients = [stack.enter_context(child.connect()) for _ in range(20)]
        pourers = [threading.Thread(target=pour, args=(sock,)) for sock in clients]
        for pourer in pourers:
            pourer.start()
        child.serves()
        for pourer in pourers:
            pourer.join(20)
    child.is_as_before()


def test_clients_that_never_read(child: Child) -> None:
    """Clients that ask and never read hold no copy of the answer."""
    with ExitStack() as stack:
        for _ in range(40):
            sock = stack.enter_context(child.connect())
            if child.tls:
                sock = stack.enter_context(child.tls.wrap_socket(sock, server_hostname="localhost"))
            sock.sendall((REQUEST + b"\r\n") * 50)
        child.serves()
    child.is_as_before()


def test_ten_scrapers_at_once(child: Child) -> None:
    """Ten scrapers, twenty scrapes each: all are answered in full."""
    answers: list[bool] = []

    def scrape() -> None:
        answers.extend(child.get() == BODY for _ in range(20))

    scrapers = [threading.Thread(target=scrape) for _ in range(10)]
    for scraper in scrapers:
        scraper.start()
    child.serves()
    for scraper in scrapers:
        scraper.join(60)
    assert answers == [True] * 200
    child.is_as_before()
