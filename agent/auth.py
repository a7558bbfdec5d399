"""Basic auth with bcrypt, and the rate limit: what stands between a request and its page.

A bcrypt check takes tens of milliseconds on purpose, so it is done off the serving thread, one at a time, and what was
found is remembered (as a keyed digest, never the password).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from gpu_topo.agent.http_message import Done, Request, Respond, Response
from gpu_topo.agent.loop import Loop
from gpu_topo.agent.web_config import Web

_REMEMBERED = 256
_WAITING = 32  # checks at most; more are told to come again
# Compared with where the user is unknown, so that the time does not tell which users there are.
_NOBODY = b"$2b$10$O5OkMcDXR0Gly1tFCo5Z1.4WG2REoTlYHQaA2x0fSZpvt52rGTAs6"

UNAUTHORIZED = Response(
    401, b"Unauthorized\n", headers=(("WWW-Authenticate", 'Basic realm="gpu-topo", charset="UTF-8"'),)
)
BUSY = Response(503, b"too many logins at once\n", headers=(("Retry-After", "1"),))
TOO_MANY = Response(429, b"too many requests\n", headers=(("Retry-After", "1"),))


class Guard:
    """Lets a request through to the pages, or answers it itself. `respond` belongs to the loop's thread."""

    def __init__(self, loop: Loop, web: Callable[[], Web], pages: Respond) -> None:
        self._loop = loop
        self._web = web
        self._pages = pages
        self._key = os.urandom(16)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._waiting: deque[tuple[bytes, bytes, bytes, Callable[[bool], None]]] = deque()
        self._lock = threading.Lock()
        self._working = False
        self._tokens: float | None = None
        self._refilled = 0.0

    def respond(self, request: Request, done: Done) -> None:
        """Answer at once, or when the password was checked."""
        web = self._web()
        if web.interval and not self._take_token(web):
            done(TOO_MANY)
            return
        if not web.users:
            self._pages(request, done)
            return
        given = credentials(request.headers.get("authorization", ""))
        if given is None:
            done(UNAUTHORIZED)
            return
        user, password = given
        hashed = web.users.get(user, _NOBODY)
        digest = hmac.new(self._key, b"\0".join((user.encode(), hashed, password)), hashlib.sha256).digest()

        def decided(good: bool) -> None:
            if good and user in web.users:
                self._pages(request, done)
            else:
                done(UNAUTHORIZED)

        if digest in self._known:
            self._known.move_to_end(digest)
            decided(self._known[digest])
        elif not self._check(digest, password, hashed, decided):
            done(BUSY)

    def _take_token(self, web: Web) -> bool:
        now = self._loop.clock()
        tokens = float(web.burst) if self._tokens is None else self._tokens
        tokens = min(web.burst, tokens + (now - self._refilled) / web.interval)
        self._refilled = now
        self._tokens = tokens - 1 if tokens >= 1 else tokens
        return tokens >= 1

    def _check(self, digest: bytes, password: bytes, hashed: bytes, decided: Callable[[bool], None]) -> bool:
        with self._lock:
            if len(self._waiting) >= _WAITING:
                return False
            self._waiting.append((digest, password, hashed, decided))
            if not self._working:
                self._working = True
                # No daemon thread: one that the interpreter cuts off inside bcrypt takes the process down with it.
                threading.Thread(target=self._work, name="bcrypt").start()
        return True

    def _work(self) -> None:
        """Check what is waiting, one after the other, and end: no thread waits for logins that seldom come."""
        import bcrypt

        while True:
            with self._lock:
                if not self._waiting:
                    self._working = False
                    return
                digest, password, hashed, decided = self._waiting.popleft()
            # bcrypt looks at 72 bytes and no further; newer versions of the library refuse longer passwords.
            try:
                good = b"\0" not in password and bcrypt.checkpw(password[:72], hashed)
            except ValueError:
                good = False
            self._loop.soon(lambda d=digest, g=good, then=decided: self._remember(d, g, then))  # type: ignore[misc]

    def _remember(self, digest: bytes, good: bool, decided: Callable[[bool], None]) -> None:
        self._known[digest] = good
        while len(self._known) > _REMEMBERED:
            # Wrong guesses go first: a flood of them must not make everybody else's password be checked again.
            wrong = next((old for old, was_good in self._known.items() if not was_good), None)
            del self._known[wrong if wrong is not None else next(iter(self._known))]
        decided(good)


def credentials(header: str) -> tuple[str, bytes] | None:
    """User and password of an Authorization header; None where it holds none."""
    import binascii

    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = binascii.a2b_base64(text.strip().encode()).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeError):
        return None
