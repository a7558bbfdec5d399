"""The daemon's HTTP server: one thread, h11 for the protocol, bounded in everything that a client can use up.

Chosen over ready servers after trying them: one with a thread a connection keeps 200 threads for 200 silent clients,
cheroot stops for everybody while a TLS client says nothing (more than 20 s), waitress has no TLS, asyncio copies an
answer for each client that does not read it. Parsing, the part where servers break, is a library's all the same.

- No connection outlives its deadline: so long for a request to arrive, so long for an answer to be taken.
- At the limit of connections the one closest to its deadline makes room, so a flood cannot lock a scraper out.
- A client that has sent nothing costs a descriptor and a small object; what one client costs is http_connection.py.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence

from gpu_topo.agent import http_connection
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.http_connection import Connection, Gate
from gpu_topo.agent.http_message import Respond
from gpu_topo.agent.listen import ListenError, listeners
from gpu_topo.agent.loop import READ, Loop

MAX_CONNECTIONS = 64
_RETRY_SECONDS = 0.5  # when there are no descriptors left to accept with


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
        self.connections: dict[int, Connection] = {}  # by descriptor
        self._listeners: list[socket.socket] = []
        self._paths: list[str] = []
        self._sweeping = False

    def listen(self, addresses: Sequence[Listen]) -> tuple[Listen, ...]:
        """Listen everywhere or nowhere; the addresses as bound (port 0 becomes a port). Raises ListenError."""
        bound: list[Listen] = []
        try:
            for address in addresses:
                for listener in listeners(address):
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
            connection = Connection(self, peer, self.gate())
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
            self._sweep_later(min(soonest, now + http_connection.REQUEST_SECONDS))
