"""Opens the sockets that the daemon listens on: TCP for both families, unix sockets, names that stand for several."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_topo.agent.config_values import Listen


class ListenError(Exception):
    """Why the server cannot listen where it was told to, in one line."""


def listeners(address: Listen) -> Iterator[socket.socket]:
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
    except UnicodeError:  # from getaddrinfo, of a part that is empty or has more than 63 characters
        raise ListenError(f"cannot listen on {address}: {address.host} is no name of a host") from None


@contextmanager
def _listening(family: int) -> Iterator[socket.socket]:
    """A socket to bind, which listens afterwards; one that cannot be bound is closed."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        yield listener
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise


def _open_tcp(family: int, where: object, dual: bool = False) -> socket.socket:
    with _listening(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        listener.bind(where)  # type: ignore[arg-type]
    return listener


def _open_unix(path: str) -> socket.socket:
    with _listening(socket.AF_UNIX) as listener:
        if _is_stale(path):
            os.unlink(path)  # left behind by a process that was killed
        listener.bind(path)
        os.chmod(path, 0o660)
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
