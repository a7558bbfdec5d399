"""One client of the HTTP server: its socket, TLS, requests one after the other, and deadlines for each step.

- It has so long for a request to arrive, and so long to take an answer.
- TLS begins with its first byte: one that has sent nothing costs a descriptor and a small object.
- Answers are shared bytes, never copied for a client that does not read.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Protocol

import h11

from gpu_topo.agent.http_message import Request, Respond, Response
from gpu_topo.agent.loop import READ, WRITE, Loop
from gpu_topo.model.record import NamedTuple

MAX_HEADERS = 16 * 1024  # bytes of one request's head
REQUEST_SECONDS = 5.0  # from the first byte (or from connecting) to a whole request
ANSWER_SECONDS = 10.0  # from the request to the last byte that the client took
IDLE_SECONDS = 120.0  # between requests; Prometheus keeps its connection open
_CHUNK = 16 * 1024


class Gate(NamedTuple):
    """What stands before the pages: TLS (None: plain HTTP), a check of the peer's certificate, headers to add."""

    tls: ssl.SSLContext | None = None
    admits: Callable[[ssl.SSLSocket], bool] | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Host(Protocol):
    """What a connection needs of its server."""

    loop: Loop
    respond: Respond
    failed: Callable[[str, Exception], None]
    connections: dict[int, Connection]


class Connection:
    """Its socket, the protocol's state, and what the client has still to take."""

    __slots__ = ("_events", "_gate", "_h11", "_head", "_out", "_secure", "_server", "_sock", "deadline")

    def __init__(self, server: Host, sock: socket.socket, gate: Gate) -> None:
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
        path, _, _ = request.target.decode("latin-1").partition("?")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        method = request.method.decode("latin-1")
        self._head = method == "HEAD"
        self.deadline = self._server.loop.clock() + ANSWER_SECONDS
        self._wait(0)
        try:
            self._server.respond(Request(method, path, headers), self._send)
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
