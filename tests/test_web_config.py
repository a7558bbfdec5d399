"""The exporter-toolkit's web configuration does what it does for every other exporter, or is refused with a reason."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest

from gpu_topo.agent import web_config
from gpu_topo.agent.auth import Guard, credentials
from gpu_topo.agent.config import ConfigError
from gpu_topo.agent.http import Server
from gpu_topo.agent.http_message import Done, Request, Response
from gpu_topo.agent.loop import Loop
from tests.http_servers import Running, make_certificate

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    make_certificate(made, "server")
    make_certificate(made, "client")
    make_certificate(made, "stranger")
    return made


@pytest.fixture
def write(tmp_path: Path, folder: Path) -> Callable[[str], str]:
    """Writes a web configuration beside the certificates."""
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)

    def to(text: str) -> str:
        (tmp_path / "web.yml").write_text(text)
        return str(tmp_path / "web.yml")

    return to


class Guarded(Running):
    """A server behind a web configuration."""

    def __init__(self, path: str) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.watched = web_config.Watched(path, lambda: self.now, self.told.append)
        loop = Loop()
        guard = Guard(loop, self.watched.now, self.page)
        super().__init__(loop, Server(loop, guard.respond, lambda: self.watched.now().gate))

    @staticmethod
    def page(request: Request, done: Done) -> None:
        done(Response(200, b"page", headers=(("X-Frame-Options", "sameorigin"),)))

    def get(self, tls: ssl.SSLContext | None = None, login: str | None = None) -> tuple[int, dict[str, str]]:
        headers = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        status, told, _ = self.request(tls=tls, headers=headers)
        return status, told


@pytest.fixture
def serve() -> Iterator[Callable[[str], Guarded]]:
    started: list[Guarded] = []

    def start(path: str) -> Guarded:
        started.append(Guarded(path))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def trust(folder: Path, name: str = "server", client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / f"{name}.crt"))
    if client:
        context.load_cert_chain(str(folder / f"{client}.crt"), str(folder / f"{client}.key"))
    return context


TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
REQUIRED = TLS + "  client_auth_type: RequireAndVerifyClientCert\n"
MUTUAL = REQUIRED + "  client_ca_file: client.crt\n"
# A list of lists that is small as it is read and has 2^60 entries as it is written out.
BOMB = "[&a0 [x, x], " + ", ".join(f"&a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)) + "]"


def test_tls_with_relative_paths(write: Callable[[str], str], serve: Callable[[str], Guarded], folder: Path) -> None:
    """Certificate and key are found beside the configuration; TLS 1.1 is refused."""
    running = serve(write(TLS))
    assert running.get(trust(folder))[0] == 200
    old = trust(folder)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        running.get(old)


def test_inline_certificate(write: Callable[[str], str], serve: Callable[[str], Guarded], folder: Path) -> None:
    """Certificate, key and client authority may be written into the file itself."""

    def indented(name: str) -> str:
        return "".join(f"    {line}\n" for line in (folder / name).read_text().splitlines())

    text = f"tls_server_config:\n  cert: |\n{indented('server.crt')}  key: |\n{indented('server.key')}"
    text += f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca: |\n{indented('client.crt')}"
    assert serve(write(text)).get(trust(folder, client="client"))[0] == 200


def test_client_certificates(write: Callable[[str], str], serve: Callable[[str], Guarded], folder: Path) -> None:
    """Only a client with a certificate of the named authority is served; one whose names are not allowed is not."""
    running = serve(write(MUTUAL))
    assert running.get(trust(folder, client="client"))[0] == 200
    for client in ("", "stranger"):
        with pytest.raises(OSError):  # noqa: PT011 - reset, alert or broken pipe, as the kernel has it
            running.get(trust(folder, client=client))
    allowed = serve(write(MUTUAL + "  client_allowed_sans: [127.0.0.1]\n"))
    assert allowed.get(trust(folder, client="client"))[0] == 200
    refused = serve(write(MUTUAL + "  client_allowed_sans: [prometheus.example]\n"))
    with pytest.raises((OSError, ConnectionError)):
        refused.get(trust(folder, client="client"))


def test_basic_auth(write: Callable[[str], str], serve: Callable[[str], Guarded]) -> None:
    """The right password of a known user is let in, nothing else is; a second time is answered from memory."""
    running = serve(write(f"basic_auth_users:\n  alice: {HASH}\n"))
    for _ in range(2):
        assert running.get(login="alice:secret")[0] == 200
        assert running.get(login="alice:wrong")[0] == 401
        assert running.get(login="bob:secret")[0] == 401
    status, headers = running.get()
    assert status == 401
    assert headers["WWW-Authenticate"].startswith("Basic")
    deadline = time.monotonic() + 5
    while any(thread.name == "bcrypt" for thread in threading.enumerate()) and time.monotonic() < deadline:
        pass
    assert not any(thread.name == "bcrypt" for thread in threading.enumerate())


def test_a_slow_password_check_does_not_stop_others(
    write: Callable[[str], str], serve: Callable[[str], Guarded]
) -> None:
    """While passwords of unknown users are checked, a known one is served from memory at once."""
    running = serve(write(f"basic_auth_users:\n  alice: {HASH}\n"))
    assert running.get(login="alice:secret")[0] == 200
    sockets = []
    for n in range(20):  # each costs tens of milliseconds, since it is compared with a hash of cost 10
        sock = socket.create_connection(("127.0.0.1", running.port))
        guess = base64.b64encode(f"mallory{n}:x".encode()).decode()
        sock.sendall(f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {guess}\r\n\r\n".encode())
        sockets.append(sock)
    begin = time.monotonic()
    assert running.get(login="alice:secret")[0] == 200
    assert time.monotonic() - begin < 0.2
    for sock in sockets:
        sock.close()


def test_headers(write: Callable[[str], str], serve: Callable[[str], Guarded]) -> None:
    """Headers of the configuration are added, and count more than a page's own."""
    running = serve(write("http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n"))
    headers = running.get()[1]
    assert headers["X-Frame-Options"] == "deny"


def test_rate_limit(write: Callable[[str], str], serve: Callable[[str], Guarded]) -> None:
    """A burst is let through, then one request an interval."""
    running = serve(write("rate_limit:\n  interval: 1h\n  burst: 3\n"))
    assert [running.get()[0] for _ in range(4)] == [200, 200, 200, 429]


def test_files_are_read_again_when_they_change(
    write: Callable[[str], str], serve: Callable[[str], Guarded], folder: Path, tmp_path: Path
) -> None:
    """A new certificate is used for new connections; a broken one is told once, and the old one stays."""
    running = serve(write(TLS))
    assert running.get(trust(folder))[0] == 200
    for name in ("crt", "key"):
        shutil.copy(folder / f"stranger.{name}", tmp_path / f"server.{name}")
    running.now += 2
    assert running.get(trust(folder, "stranger"))[0] == 200
    (tmp_path / "server.crt").write_text("half a certifi")
    for _ in range(3):
        running.now += 2
        assert running.get(trust(folder, "stranger"))[0] == 200
    assert len(running.told) == 1
    assert "the old one stays" in running.told[0]
    assert not running.watched.good
    shutil.copy(folder / "server.crt", tmp_path / "server.crt")
    shutil.copy(folder / "server.key", tmp_path / "server.key")
    running.now += 2
    assert running.get(trust(folder))[0] == 200
    assert running.watched.good


def test_a_certificate_that_is_not_there_yet(
    write: Callable[[str], str], serve: Callable[[str], Guarded], folder: Path, tmp_path: Path
) -> None:
    """A configuration may name files before they exist: it is taken when they are there, and told once until then."""
    running = serve(write(TLS))
    write(TLS.replace("server.", "later."))
    for _ in range(3):
        running.now += 2
        assert running.get(trust(folder))[0] == 200
    assert len(running.told) == 1
    assert "later.crt or" in running.told[0]
    assert not running.watched.good
    for name in ("crt", "key"):
        shutil.copy(folder / f"stranger.{name}", tmp_path / f"later.{name}")
    running.now += 2
    assert running.get(trust(folder, "stranger"))[0] == 200
    assert running.watched.good


def test_every_bad_edit_is_told(write: Callable[[str], str], serve: Callable[[str], Guarded]) -> None:
    """While the configuration is wrong, another mistake is told as well, and so is each one that is asked for."""
    running = serve(write(""))
    for text in ("a: [", "a: 1", "basic_auth_users:\n  a: 2024-13-45"):
        write(text)
        running.now += 2
        assert running.get()[0] == 200
    assert len(running.told) == 3
    assert not running.watched.reload()
    assert len(running.told) == 4


def test_a_bug_keeps_what_was_in_force(
    write: Callable[[str], str], serve: Callable[[str], Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of which this program did not think ends no daemon that runs: it is told as a bug."""
    running = serve(write(""))

    def load(path: str) -> web_config.Web:
        raise ZeroDivisionError(path)

    monkeypatch.setattr(web_config, "load", load)
    write("rate_limit:")
    running.now += 2
    assert running.get()[0] == 200
    assert "please report it: ZeroDivisionError" in running.told[0]
    assert not running.watched.good


def test_a_header_may_be_a_number(write: Callable[[str], str]) -> None:
    """`X-XSS-Protection: 0`, the value to have, needs no quotes in the exporter-toolkit; an empty value is none."""
    text = "http_server_config:\n  headers:\n    X-XSS-Protection: 0\n    X-Frame-Options: ''\n"
    assert web_config.load(write(text)).gate.headers == (("X-XSS-Protection", "0"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_config: {}", "unknown key 'tls_config'; did you mean 'tls_server_config'?"),
        ("tls_server_config:\n  cert_files: x", "tls_server_config knows no 'cert_files'; did you mean 'cert_file'?"),
        ("tls_server_config: x", "tls_server_config takes keys of its own"),
        ("- a", "takes tls_server_config"),
        ("a: [", "not YAML"),
        ("tls_server_config:\n  cert_file: server.crt", "needs key or key_file"),
        ("tls_server_config:\n  cert_file: none.crt\n  key_file: none.key", "cannot be read: No such file"),
        ("tls_server_config:\n  cert_file: server.crt\n  key_file: client.key", "no certificate with its key"),
        (TLS + "  min_version: SSL3", "min_version takes TLS10"),
        (TLS + "  client_auth_type: RequireAnyClientCert", "use RequireAndVerifyClientCert"),
        (TLS + "  client_auth_type: Require", "client_auth_type knows no 'Require'"),
        (TLS + "  client_ca_file: client.crt", "needs a client_auth_type"),
        (TLS + "  client_allowed_sans: [a]", "needs client_auth_type RequireAndVerifyClientCert"),
        (TLS + "  cipher_suites: [TLS_FOO_WITH_BAR]", "cipher_suites holds none"),
        (TLS + "  curve_preferences: [P256]", "curve_preferences knows no 'P256'; did you mean 'CurveP256'?"),
        ("http_server_config:\n  headers:\n    Server: x", "headers knows no 'Server'"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: \"a\\nb\"", "holds a character"),
        ("basic_auth_users:\n  alice: secret", "alice needs a bcrypt hash"),
        ("rate_limit:\n  interval: 1s", "without a burst"),
        ("rate_limit:\n  interval: soon\n  burst: 1", "rate_limit: interval takes a duration"),
        ("rate_limit:\n  interval: -1\n  burst: 1", "rate_limit: interval is at least 0, not -1"),
        ("rate_limit:\n  interval: .inf\n  burst: 1", "rate_limit: interval takes a duration"),
        ("rate_limit:\n  interval: .nan\n  burst: 1", "rate_limit: interval takes a duration"),
        (f"rate_limit:\n  interval: {'9' * 400}\n  burst: 1", "rate_limit: interval takes a duration"),
        (f"rate_limit:\n  interval: {'9' * 400}s\n  burst: 1", "rate_limit: interval takes a duration"),
        ("rate_limit:\n  interval: false\n  burst: 1", "rate_limit: interval takes a duration"),
        ("rate_limit:\n  interval: []\n  burst: 1", "rate_limit: interval takes a duration"),
        ("rate_limit:\n  interval: 1s\n  burst: true", "rate_limit: burst takes a whole number"),
        ("rate_limit:\n  interval: 1s\n  burst: -1", "rate_limit: burst takes a whole number"),
        (f"rate_limit:\n  interval: 1s\n  burst: {'9' * 400}", "rate_limit: burst takes a whole number"),
        ("basic_auth_users:\n  a: 2024-13-45", "not YAML: month must be in 1..12"),
        (f"a: {'9' * 5000}", "not YAML: "),
        ("a: !!bool x", "not YAML: malformed"),
        ("a: !!int ''", "not YAML: malformed"),
        ("a: !!timestamp x", "not YAML: malformed"),
        ("a: " + "[" * 5000, "not YAML: nested too deeply"),
        ("a: " + "{a: " * 5000, "not YAML: nested too deeply"),
        (TLS + f"  min_version: {BOMB}", "min_version takes a text"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12", "max_version TLS12 is below min_version TLS13"),
        (TLS + "  client_auth_type: [a]", "client_auth_type takes a text"),
        (TLS + "  prefer_server_cipher_suites: x", "prefer_server_cipher_suites takes true or false"),
        (TLS + "  cipher_suites: 5", "cipher_suites takes a list of texts"),
        (TLS + "  cipher_suites: TLS_AES_128_GCM_SHA256", "cipher_suites takes a list of texts"),
        (TLS + "  cipher_suites: {a: 1}", "cipher_suites takes a list of texts"),
        (TLS + "  curve_preferences: 7", "curve_preferences takes a list of texts"),
        (TLS + "  curve_preferences: [[a]]", "curve_preferences takes a list of texts"),
        (MUTUAL + "  client_allowed_sans: 5", "client_allowed_sans takes a list of texts"),
        (MUTUAL + "  client_allowed_sans: localhost", "client_allowed_sans takes a list of texts"),
        (MUTUAL + "  client_allowed_sans: {a: 1}", "client_allowed_sans takes a list of texts"),
        (REQUIRED + "  client_ca: ä", "client_ca holds no certificate"),
        (REQUIRED + "  client_ca: [ä]", "client_ca takes a text"),
        ("tls_server_config:\n  cert_file: [a]\n  key_file: b", "cert_file takes a text"),
        ("tls_server_config:\n  cert_file: \"a\\0b\"\n  key_file: b", "cert_file holds a null character"),
        ("tls_server_config:\n  cert: \"\\ud800\"\n  key: b", "no certificate with its key"),
        ("http_server_config:\n  http2: 7", "http2 takes true or false"),
        ("http_server_config:\n  headers: [a]", "headers takes names and texts"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: [a]", "X-Frame-Options takes a text"),
        (f"basic_auth_users:\n  alice: $2b$10${'!' * 53}", "alice needs a bcrypt hash"),
        (f"basic_auth_users:\n  alice: $2b$99${'a' * 53}", "alice needs a bcrypt hash"),
        (f"basic_auth_users:\n  alice: $2b$10${'é' * 53}", "alice needs a bcrypt hash"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write: Callable[[str], str], text: str, message: str) -> None:
    """Each mistake is an error that names the file and what is right."""
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        web_config.load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(path.rpartition("/")[0])


def test_every_option_of_the_format_is_taken(write: Callable[[str], str]) -> None:
    """A configuration with every key of the format is read; Go's names of ciphers are OpenSSL's."""
    text = (
        MUTUAL
        + """  client_allowed_sans: [localhost]
  min_version: TLS12
  max_version: TLS13
  prefer_server_cipher_suites: true
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
                  TLS_RSA_WITH_AES_256_CBC_SHA, TLS_AES_128_GCM_SHA256]
  curve_preferences: [X25519, CurveP256]
http_server_config: {http2: true, headers: {Strict-Transport-Security: max-age=1}}
basic_auth_users:
rate_limit: {interval: 1s, burst: 20}
"""
    )
    web = web_config.load(write(text))
    assert web.gate.tls is not None
    older = [suite["name"] for suite in web.gate.tls.get_ciphers() if suite["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "AES256-SHA"]
    assert (web.interval, web.burst) == (1.0, 20)


def test_without_a_file_there_is_nothing_in_the_way() -> None:
    """No web configuration: plain HTTP for everybody."""
    watched = web_config.Watched("", lambda: 0.0, lambda text: None)
    assert watched.now() == web_config.Web()


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic " + base64.b64encode(b"a:b:c").decode(), ("a", b"b:c")),
        ("basic " + base64.b64encode(b"a:").decode(), ("a", b"")),
        ("Basic " + base64.b64encode(b"a").decode(), None),
        ("Basic !!!", None),
        ("Bearer x", None),
        ("", None),
        ("Basic " + base64.b64encode(b"\xff:x").decode(), None),
    ],
)
def test_credentials(header: str, found: tuple[str, bytes] | None) -> None:
    """User and password come out of a Basic header, and nothing out of any other."""
    assert credentials(header) == found
