"""The daemon's pages: each rendered once a scan at most, for whoever asks, and handed out as finished bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from gpu_topo.agent.http_message import Done, Request, Response
from gpu_topo.agent.loop import Loop
from gpu_topo.model.record import NamedTuple

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"
_PLAIN = "text/plain; charset=utf-8"

# Pages hold their styles and pictures, and load nothing.
_HTML_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
    ("X-Content-Type-Options", "nosniff"),
)
_VARY = ("Vary", "Accept, Accept-Encoding")


class Scanned(NamedTuple):
    """What one finished scan has to show: a renderer a page, called at most once, in any thread."""

    metrics: Callable[[], bytes]
    openmetrics: Callable[[], bytes]
    report: Callable[[], bytes]  # JSON
    picture: Callable[[], bytes]  # HTML
    summary: str = ""  # one line for the landing page
    unread: str = ""  # what an audit needs and could not be read, "" where it could


class Site:
    """Answers requests on the loop's thread; what has still to be rendered is rendered beside it."""

    def __init__(
        self,
        loop: Loop,
        version: str,
        healthy: Callable[[], str],
        failed: Callable[[str, Exception], None] = lambda page, error: None,
    ) -> None:
        """healthy: "" where scans finish in time, else what is wrong. failed is told, on the loop's thread, of a page
        that cannot be rendered: once, until it can be again or fails otherwise."""
        self._loop = loop
        self._version = version
        self._healthy = healthy
        self._failed = failed
        self._scanned: Scanned | None = None
        self._rendered: dict[str, bytes | None] = {}  # None: cannot be rendered
        self._waiting: dict[str, list[Callable[[bytes | None], None]]] = {}
        self._asked: set[str] = set()
        self._broken: dict[str, str] = {}  # page -> what was told of it

    def prepare(self, scanned: Scanned) -> dict[str, bytes | None]:
        """Render, in the scanning thread, what was asked for since the scan before: a scrape then finds it done.

        A page that raises is None, and costs neither the others nor the scan anything.
        """
        asked, self._asked = self._asked, set()
        found: dict[str, bytes | None] = {}
        for name in sorted(asked):
            page, _, packed = name.partition("+")
            if page not in found:
                found[page] = self._render(scanned, page)
            if packed:
                found[name] = _packed(found[page])
        return found

    def publish(self, scanned: Scanned, rendered: Mapping[str, bytes | None]) -> None:
        """From now on show this scan."""
        self._scanned = scanned
        self._rendered = dict(rendered)

    def respond(self, request: Request, done: Done) -> None:
        """The page that a request asks for."""
        if request.method not in ("GET", "HEAD"):
            done(Response(405, b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),)))
        elif request.path == "/healthz":
            problem = self._healthy()
            done(Response(503 if problem else 200, f"{problem or 'ok'}\n".encode()))
        elif request.path == "/readyz":
            missing = "the first scan is not finished" if self._scanned is None else self._scanned.unread
            done(Response(503 if missing else 200, f"{missing or 'ready'}\n".encode()))
        elif request.path == "/metrics":
            wanted = wants_openmetrics(request.headers.get("accept", ""))
            self._page("openmetrics" if wanted else "metrics", OPENMETRICS if wanted else TEXT, request, done)
        elif request.path == "/api/v1/report":
            self._page("report", JSON, request, done)
        elif request.path == "/picture":
            self._page("picture", HTML, request, done)
        elif request.path == "/":
            summary = self._scanned.summary if self._scanned else "the first scan is not finished"
            done(Response(200, landing(self._version, summary), HTML, _HTML_HEADERS))
        else:
            done(Response(404, b"not found; / has the links\n"))

    def _page(self, page: str, content_type: str, request: Request, done: Done) -> None:
        if self._scanned is None:
            done(Response(503, b"the first scan is not finished\n", headers=(("Retry-After", "1"),)))
            return
        packed = quality(request.headers.get("accept-encoding", ""), "gzip") > 0
        name = f"{page}+gzip" if packed else page
        headers: tuple[tuple[str, str], ...] = (_VARY, ("Content-Encoding", "gzip")) if packed else (_VARY,)
        if content_type == HTML:
            headers += _HTML_HEADERS

        def answer(body: bytes | None) -> None:
            if body is None:
                done(Response(500, b"this page could not be rendered, see the log\n"))
            else:
                done(Response(200, body, content_type, headers))

        self._asked.add(name)
        if name in self._rendered:
            answer(self._rendered[name])
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append(answer)
        if len(waiting) == 1:  # else it is being rendered already
            threading.Thread(target=self._render_for, args=(self._scanned, name), name=name, daemon=True).start()

    def _render_for(self, scanned: Scanned, name: str) -> None:
        page, _, packed = name.partition("+")
        rendered = self._rendered  # of this scan or a later one
        body = rendered[page] if page in rendered else self._render(scanned, page)
        if packed:
            body = _packed(body)
        self._loop.soon(lambda: self._done(scanned, name, body))

    def _done(self, scanned: Scanned, name: str, body: bytes | None) -> None:
        if scanned is self._scanned:
            self._rendered[name] = body
        for answer in self._waiting.pop(name, ()):
            answer(body)

    def _render(self, scanned: Scanned, page: str) -> bytes | None:
        """In any thread; None where the page cannot be rendered."""
        renderer: Callable[[], bytes] = getattr(scanned, page)
        try:
            body = renderer()
        except Exception as error:
            trouble = error  # the other name ends with this clause
            self._loop.soon(lambda: self._tell(page, trouble))
            return None
        if page in self._broken:
            self._loop.soon(lambda: self._tell(page, None))
        return body

    def _tell(self, page: str, error: Exception | None) -> None:
        if error is None:
            self._broken.pop(page, None)
        elif self._broken.get(page) != repr(error):
            self._broken[page] = repr(error)
            self._failed(page, error)


def _packed(body: bytes | None) -> bytes | None:
    return None if body is None else pack(body)


def pack(body: bytes) -> bytes:
    """gzip at the fastest level: a fifteenth of the default's time for a fifth more bytes."""
    import zlib

    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()


def quality(header: str, name: str) -> float:
    """The weight that an Accept-like header gives a name (RFC 9110 12.4.2): 0 where it is not wanted."""
    best, any_ = None, 0.0
    for part in header.lower().split(","):
        value, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(text)
                except ValueError:
                    weight = 0.0
        if value == name:
            best = weight if best is None else max(best, weight)
        elif value in ("*", "*/*", f"{name.partition('/')[0]}/*"):
            any_ = max(any_, weight)
    return any_ if best is None else best


def wants_openmetrics(accept: str) -> bool:
    """Whether the client names OpenMetrics and likes it at least as much as plain text."""
    if "application/openmetrics-text" not in accept.lower():
        return False
    weight = quality(accept, "application/openmetrics-text")
    return weight > 0 and weight >= quality(accept, "text/plain")


def landing(version: str, summary: str) -> bytes:
    """The page at /: what this is, how the node is, and where to go."""
    from html import escape

    links = (
        ("/picture", "the machine as a picture"),
        ("/metrics", "metrics for Prometheus"),
        ("/api/v1/report", "the report as JSON"),
        ("/healthz", "whether scans finish in time"),
        ("/readyz", "whether the last scan could read the machine"),
    )
    rows = "".join(f'<li><a href="{path}">{path}</a> {text}</li>' for path, text in links)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>gpu-topo</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto;padding:0 1em;"
        "color-scheme:light dark}</style></head><body>"
        f"<h1>gpu-topo {escape(version)}</h1><p>{escape(summary)}</p><ul>{rows}</ul></body></html>\n"
    ).encode()
