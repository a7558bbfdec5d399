"""The daemon's HTTP server: one thread, h11 for the protocol, bounded in everything that a client can use up.

Chosen over ready servers after trying them: one with a thread a connection keeps 200 threads for 200 silent clients,
cheroot stops for everybody while a TLS client says nothing (more than 20 s), waitress has no TLS, asyncio copies an
answer for each client that does not read it. Parsing, the part where servers break, is a library's all the same.

- No connection outlives its deadline: so long for a request to arrive, so long for an answer to be taken.
- At the limit of connections the one closest to its deadline makes room, so a flood cannot lock a scraper out.
- A client that has sent nothing costs a descriptor and a small object; TLS begins with its first byte.
- Answers are shared bytes, never copied for a client that does not read.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

import h11

from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.loop import READ, WRITE, Loop
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

MAX_CONNECTIONS = 64
MAX_HEADERS = 16 * 1024  # bytes of one request's head
REQUEST_SECONDS = 5.0  # from the first byte (or from connecting) to a whole request
ANSWER_SECONDS = 10.0  # from the request to the last byte that the client took
IDLE_SECONDS = 120.0  # between requests; Prometheus keeps its connection open
_CHUNK = 16 * 1024
_RETRY_SECONDS = 0.5  # when there are no descriptors left to accept with


class Request(NamedTuple):
    """A request without a body. Header names are lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = EMPTY


class Response(NamedTuple):
    """An answer; body may be shared by many."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Done = Callable[[Response], None]
# Answers by calling back, at once or later from any thread through the loop.
Respond = Callable[[Request, Done], None]


class ListenError(Exception):
    """Why the server cannot listen where it was told to, in one line."""


class Gate(NamedTuple):
    """What stands before the pages: TLS (None: plain HTTP), a check of the peer's certificate, headers to add."""

    tls: ssl.SSLContext | None = None
    admits: Callable[[ssl.SSLSocket], bool] | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Server:
    """Listens, reads requests, and hands out answers on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        respond: Respond,
        gate: Callable[[], Gate] = Gate,
        most: int = MAX_CONNECTIONS,
        failed: Callable[[str, Exception], None] = lambda path, error: None,
    ) -> None:
        """gate is asked for each new connection, so that new certificates are used without a restart; failed is
        told of a page that raised."""
        self.loop = loop
        self.respond = respond
        self.gate = gate
        self.most = most
        self.failed = failed
        self.connections: dict[int, _Connection] = {}  # by descriptor
        self._listeners: list[socket.socket] = []
        self._paths: list[str] = []
        self._sweeping = False

    def listen(self, addresses: Sequence[Listen]) -> tuple[Listen, ...]:
        """Listen everywhere or nowhere; the addresses as bound (port 0 becomes a port). Raises ListenError."""
        bound: list[Listen] = []
        try:
            for address in addresses:
                for listener in _open(address):
                    self._listeners.append(listener)
                    if address.path:
                        self._paths.append(address.path)
                        bound.append(address)
                    else:
                        bound.append(address._replace(port=listener.getsockname()[1]))
        except ListenError:
            self.close()
            raise
        for listener in self._listeners:
            self._attend(listener)
        return tuple(bound)

    def close(self) -> None:
        """Stop listening, drop every connection, remove the unix sockets."""
        for listener in self._listeners:
            self.loop.unwatch(listener)
            listener.close()
        for connection in list(self.connections.values()):
            connection.close()
        for path in self._paths:
            try:
                os.unlink(path)
            except OSError:
                pass
        self._listeners, self._paths = [], []

    def _attend(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.watch(listener, READ, lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self.most):  # then the others have a turn
            try:
                peer, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._make_room(len(self.connections) - 1)
                    self.loop.unwatch(listener)  # it would call again at once
                    self.loop.at(self.loop.clock() + _RETRY_SECONDS, lambda: self._attend(listener))
                    return
                continue  # the client is gone already
            self._make_room(self.most - 1)
            peer.setblocking(False)
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, peer, self.gate())
            self.connections[peer.fileno()] = connection
            self._sweep_later(connection.deadline)

    def _make_room(self, most: int) -> None:
        while len(self.connections) > max(most, 0):
            min(self.connections.values(), key=lambda connection: connection.deadline).close()

    def _sweep_later(self, when: float) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.loop.at(max(when, self.loop.clock() + 0.25), self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now = self.loop.clock()
        for connection in [late for late in self.connections.values() if late.deadline <= now]:
            connection.close()
        if self.connections:
            # A connection's deadline may come closer (a request begins), so look again in time for that.
            soonest = min(connection.deadline for connection in self.connections.values())
            self._sweep_later(min(soonest, now + REQUEST_SECONDS))


class _Connection:
    """One client: its socket, the protocol's state, and what it has still to take."""

    __slots__ = ("_events", "_gate", "_h11", "_head", "_out", "_secure", "_server", "_sock", "deadline")

    def __init__(self, server: Server, sock: socket.socket, gate: Gate) -> None:
        self._server = server
        self._sock = sock
        self._gate = gate
        self._secure = gate.tls is None  # or the handshake is done
        self._h11: h11.Connection | None = None
        self._head = False
        self._out: list[memoryview] = []
        self._events = 0
        self.deadline = server.loop.clock() + REQUEST_SECONDS
        self._wait(READ)

    def close(self) -> None:
        """Let go of everything."""
        if self._sock.fileno() < 0:
            return
        self._wait(0)
        self._server.connections.pop(self._sock.fileno(), None)
        if isinstance(self._sock, ssl.SSLSocket) and self._secure:
            try:
                self._sock.unwrap()  # says goodbye; whether the peer does is its own affair
            except (OSError, ValueError):
                pass
        self._sock.close()
        self._out = []

    def _wait(self, events: int) -> None:
        """Only one direction at a time: while an answer is on its way, nothing more is read."""
        if events == self._events:
            return
        self._events = events
        if events:
            self._server.loop.watch(self._sock, events, self._ready)
        else:
            self._server.loop.unwatch(self._sock)

    def _ready(self, _: int) -> None:
        try:
            if not self._secure and not self._handshake():
                return
            if self._out:
                self._flush()
            elif self._read():
                self._advance()
        except OSError:
            self.close()

    def _handshake(self) -> bool:
        """TLS begins with the client's first byte, since a silent client should cost nothing."""
        if not isinstance(self._sock, ssl.SSLSocket):
            assert self._gate.tls is not None
            events = self._events
            self._wait(0)
            del self._server.connections[self._sock.fileno()]
            self._sock = self._gate.tls.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
            self._server.connections[self._sock.fileno()] = self
            self._wait(events)
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._wait(READ)
            return False
        except ssl.SSLWantWriteError:
            self._wait(WRITE)
            return False
        self._secure = True
        if self._gate.admits is not None and not self._gate.admits(self._sock):
            self.close()
            return False
        self._wait(READ)
        return True

    def _read(self) -> bool:
        """Hand the protocol one chunk of what the client sent; False where there was none."""
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._wait(READ)
            return False
        except ssl.SSLWantWriteError:
            self._wait(WRITE)
            return False
        if self._h11 is None:
            self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADERS)
        # A request has begun: it has to be whole soon, however slowly its bytes drip in.
        self.deadline = min(self.deadline, self._server.loop.clock() + REQUEST_SECONDS)
        self._h11.receive_data(data)
        return True

    def _advance(self) -> None:
        """Go on with what was received, until more is needed or a request is whole."""
        protocol = self._h11
        assert protocol is not None
        request: h11.Request | None = None
        while True:
            try:
                event = protocol.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint)
                return
            if event is h11.NEED_DATA:
                # What TLS has decrypted already is not told by the socket.
                if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() and self._read():
                    continue
                self._wait(READ)
                return
            if isinstance(event, h11.Request):
                request = event
                if _has_body(event):
                    self._refuse(413)  # no page takes one
                    return
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                self._ask(request)
                return
            else:  # the client has closed
                self.close()
                return

    def _ask(self, request: h11.Request) -> None:
        path, _, query = request.target.decode("latin-1").partition("?")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        method = request.method.decode("latin-1")
        self._head = method == "HEAD"
        self.deadline = self._server.loop.clock() + ANSWER_SECONDS
        self._wait(0)
        try:
            self._server.respond(Request(method, path, query, headers), self._send)
        except Exception as error:  # a bug in a page must not end the daemon
            self._server.failed(path, error)
            self._send(Response(500, b"internal error, see the log\n"))

    def _refuse(self, status: int) -> None:
        if self._h11 is None or self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.close()
            return
        self._head = False
        self.deadline = self._server.loop.clock() + ANSWER_SECONDS
        self._send(Response(status, f"{status}\n".encode(), headers=(("Connection", "close"),)))

    def _send(self, response: Response) -> None:
        """Put an answer on its way."""
        protocol = self._h11
        if protocol is None or self._sock.fileno() < 0 or protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return  # the client is gone meanwhile
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *(header for header in response.headers if header[0] not in dict(self._gate.headers)),
            *self._gate.headers,  # the operator's word counts
        ]
        parts = [protocol.send(h11.Response(status_code=response.status, headers=headers))]
        if response.body and not self._head:
            parts += protocol.send_with_data_passthrough(h11.Data(data=response.body)) or ()
        parts.append(protocol.send(h11.EndOfMessage()))
        self._out = [memoryview(part) for part in parts if part]
        try:
            self._flush()
        except OSError:
            self.close()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out[0])
                if sent == len(self._out[0]):
                    del self._out[0]
                else:
                    self._out[0] = self._out[0][sent:]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._wait(WRITE)
            return
        except ssl.SSLWantReadError:
            self._wait(READ)
            return
        self._next()

    def _next(self) -> None:
        """The answer is out: wait for the next request, or close."""
        assert self._h11 is not None
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            self.close()
            return
        self._h11.start_next_cycle()
        self.deadline = self._server.loop.clock() + IDLE_SECONDS
        if self._h11.trailing_data[0]:
            self._wait(0)
            self._server.loop.soon(self._go_on)  # the next request is here already; others have a turn first
        elif isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            self._wait(0)
            self._server.loop.soon(lambda: self._ready(READ))
        else:
            self._wait(READ)

    def _go_on(self) -> None:
        if self._sock.fileno() >= 0:
            self._advance()


def _has_body(request: h11.Request) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in request.headers
    )


def _open(address: Listen) -> Iterator[socket.socket]:
    """The listening sockets of one address, one after the other: a name may stand for several. Raises ListenError."""
    try:
        if address.path:
            yield _open_unix(address.path)
        elif address.host:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, where in found:
                yield _open_tcp(family, where)
        elif socket.has_dualstack_ipv6():
            yield _open_tcp(socket.AF_INET6, ("::", address.port), dual=True)
        else:
            yield _open_tcp(socket.AF_INET, ("0.0.0.0", address.port))
    except OSError as error:
        hint = "; another process listens there" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}{hint}") from None


def _open_tcp(family: int, where: object, dual: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        listener.bind(where)  # type: ignore[arg-type]
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _open_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale(path):
            os.unlink(path)  # left behind by a process that was killed
        listener.bind(path)
        os.chmod(path, 0o660)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_stale(path: str) -> bool:
    """A socket on which nobody listens any more."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
