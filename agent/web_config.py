"""The exporter-toolkit's web configuration: TLS, client certificates, basic auth, headers, a rate limit.

The format that Prometheus users already have for their exporters (YAML, exporter-toolkit's docs/web-configuration.md).
Unknown keys are errors. The file and everything it names are read again when they change; a bad change keeps what was
in force. Where Python's TLS cannot do what Go's can, the file is refused with what to write instead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from gpu_topo.agent.config import ConfigError
from gpu_topo.agent.config_values import duration, nearest
from gpu_topo.agent.http_connection import Gate
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

_KEYS: Mapping[str, tuple[str, ...]] = {
    "tls_server_config": (
        "cert",
        "key",
        "client_ca",
        "cert_file",
        "key_file",
        "client_auth_type",
        "client_ca_file",
        "client_allowed_sans",
        "min_version",
        "max_version",
        "cipher_suites",
        "prefer_server_cipher_suites",
        "curve_preferences",
    ),
    "http_server_config": ("http2", "headers"),
    "basic_auth_users": (),
    "rate_limit": ("interval", "burst"),
}
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for a certificate and looks at none
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequireAnyClientCert", "RequireClientCert")
# The curves that Go knows are all among those that OpenSSL offers anyway, in its own order of preference.
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}


class Web(NamedTuple):
    """A web configuration in force."""

    gate: Gate = Gate()
    users: Mapping[str, bytes] = EMPTY  # name -> bcrypt hash
    interval: float = 0.0  # of the rate limit, seconds between two requests; 0: no limit
    burst: int = 0
    files: tuple[str, ...] = ()  # everything that was read


def load(path: str) -> Web:
    """Read the file and the certificates that it names; ConfigError says what is wrong with it, one line a problem."""
    text = _content(path, "the web configuration")
    table = _parse(text, path)
    problems = list(_unknown(table, path))
    if problems:
        raise ConfigError(*problems)
    tls = table.get("tls_server_config") or {}
    http = table.get("http_server_config") or {}
    try:
        context, files = _tls(tls, os.path.dirname(path))
        interval, burst = _limit(table.get("rate_limit") or {})
        gate = Gate(context, _admits(tls), _headers(http.get("headers") or {}))
        users = _users(table.get("basic_auth_users") or {})
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Web(gate, users, interval, burst, (path, *files))


class Watched:
    """A web configuration that is read again when one of its files has changed, looked at once a second at most."""

    def __init__(self, path: str, clock: Callable[[], float], log: Callable[[str], None]) -> None:
        """Raises ConfigError where it is bad from the start; later log is told and what was in force stays."""
        self._path = path
        self._clock = clock
        self._log = log
        self._web = load(path) if path else Web()
        self._seen = _stamps(self._web.files)
        self._next = clock() + 1.0
        self.good = True

    def now(self) -> Web:
        """What is in force."""
        if self._path and self._clock() >= self._next:
            self._next = self._clock() + 1.0
            seen = _stamps(self._web.files)
            if seen != self._seen:
                self._seen = seen
                self.reload()
        return self._web

    def reload(self) -> bool:
        """Read it now; False where it is bad and what was in force stays."""
        if not self._path:
            return True
        try:
            self._web = load(self._path)
            self._seen = _stamps(self._web.files)
            self.good = True
        except ConfigError as error:
            self.good = False
            self._log(f"web configuration not reloaded, the old one stays in force: {error}")
        return self.good


def _stamps(paths: tuple[str, ...]) -> tuple[object, ...]:
    found: list[object] = []
    for path in paths:
        try:
            state = os.stat(path)
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _content(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {what} cannot be read: {error.strerror}") from None


def _parse(text: bytes, path: str) -> dict[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'malformed'}") from None
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: takes {', '.join(_KEYS)}, and is a {type(table).__name__}")
    return table


def _unknown(table: Mapping[str, Any], path: str) -> list[str]:
    problems = []
    for name, section in table.items():
        if name not in _KEYS:
            problems.append(f"{path}: unknown key {str(name)!r}{nearest(str(name), _KEYS)}")
        elif section is not None and not isinstance(section, dict):
            problems.append(f"{path}: {name} takes keys of its own")
        elif name != "basic_auth_users":
            problems += [
                f"{path}: {name} knows no {str(key)!r}{nearest(str(key), _KEYS[name])}"
                for key in section or {}
                if key not in _KEYS[name]
            ]
    return problems


# --- TLS ----------------------------------------------------------------------------------------------------------


def _tls(tls: Mapping[str, Any], folder: str) -> tuple[ssl.SSLContext | None, tuple[str, ...]]:
    """The TLS context and the files it was made of; relative paths are relative to the configuration's folder."""
    if not any(tls.get(name) for name in ("cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file",
                                          "client_auth_type")):  # fmt: skip
        return None, ()
    files = {name: os.path.join(folder, str(tls[name])) for name in ("cert_file", "key_file", "client_ca_file")
             if tls.get(name)}  # fmt: skip
    for inline, file in (("cert", "cert_file"), ("key", "key_file")):
        if not tls.get(inline) and not tls.get(file):
            raise ValueError(f"tls_server_config needs {inline} or {file}")
        if tls.get(inline) and tls.get(file):
            raise ValueError(f"tls_server_config takes {inline} or {file}, not both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version(tls, "min_version", "TLS12")
    context.maximum_version = _version(tls, "max_version", "TLS13")
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.get("prefer_server_cipher_suites", True):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, tls, files)
    _load_clients(context, tls, files)
    _choose_ciphers(context, tls)
    return context, tuple(files.values())


def _version(tls: Mapping[str, Any], key: str, default: str) -> ssl.TLSVersion:
    name = str(tls.get(key) or default)
    if name not in _VERSIONS:
        raise ValueError(f"{key} takes {', '.join(_VERSIONS)}, not {name!r}")
    return _VERSIONS[name]


def _load_pair(context: ssl.SSLContext, tls: Mapping[str, Any], files: Mapping[str, str]) -> None:
    # load_cert_chain only takes files: what is written inline passes through memory that has a file name.
    held: list[int] = []
    try:
        cert = files.get("cert_file") or _memory_file(str(tls["cert"]), held)
        key = files.get("key_file") or _memory_file(str(tls["key"]), held)
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        name = files.get("cert_file") or files.get("key_file") or "cert and key"
        raise ValueError(f"{name}: no certificate with its key: {error.reason or error}") from None
    except OSError as error:
        names = " or ".join(files[name] for name in ("cert_file", "key_file") if name in files)
        raise ValueError(f"{names} cannot be read: {error.strerror}") from None
    finally:
        for fd in held:
            os.close(fd)


def _no_password() -> str:
    raise ValueError("the key is encrypted; the daemon has nobody to ask for its password")


def _memory_file(text: str, held: list[int]) -> str:
    fd = os.memfd_create("web-config")
    held.append(fd)
    os.write(fd, text.encode())
    return f"/proc/self/fd/{fd}"


def _load_clients(context: ssl.SSLContext, tls: Mapping[str, Any], files: Mapping[str, str]) -> None:
    policy = str(tls.get("client_auth_type") or "")
    if policy in _UNVERIFIED:
        raise ValueError(f"client_auth_type {policy} takes any certificate at all; use RequireAndVerifyClientCert")
    if policy not in _CLIENT_AUTH:
        raise ValueError(f"client_auth_type knows no {policy!r}{nearest(policy, [n for n in _CLIENT_AUTH if n])}")
    mode = _CLIENT_AUTH[policy]
    has_ca = bool(tls.get("client_ca") or tls.get("client_ca_file"))
    if has_ca and policy in ("", "NoClientCert"):
        raise ValueError("client_ca needs a client_auth_type, such as RequireAndVerifyClientCert")
    if tls.get("client_allowed_sans") is not None and mode is not ssl.CERT_REQUIRED:
        raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    if mode is not ssl.CERT_NONE:
        try:
            if "client_ca_file" in files:
                context.load_verify_locations(cafile=files["client_ca_file"])
            elif tls.get("client_ca"):
                context.load_verify_locations(cadata=str(tls["client_ca"]))
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except ssl.SSLError as error:
            raise ValueError(f"client_ca holds no certificate: {error.reason or error}") from None
        except OSError as error:
            raise ValueError(f"{files['client_ca_file']} cannot be read: {error.strerror}") from None
    context.verify_mode = mode


def _choose_ciphers(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    suites = [str(name) for name in tls.get("cipher_suites") or ()]
    # TLS 1.3's suites cannot be chosen, in Go either.
    older = [_openssl_name(name) for name in suites if not _is_tls13(name)]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ValueError(
                f"cipher_suites holds none that this machine's OpenSSL knows: {', '.join(suites)}"
            ) from None
    curves = [str(name) for name in tls.get("curve_preferences") or ()]
    for curve in curves:
        if curve not in _CURVES:
            raise ValueError(f"curve_preferences knows no {curve!r}{nearest(curve, _CURVES)}")
    if len(curves) == 1:
        context.set_ecdh_curve(_CURVES[curves[0]])


def _is_tls13(name: str) -> bool:
    return name.startswith(("TLS_AES_", "TLS_CHACHA20_"))


def _openssl_name(name: str) -> str:
    """Go's (IANA's) name of a cipher suite as OpenSSL spells it."""
    if not name.startswith("TLS_"):
        raise ValueError(f"cipher_suites takes names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, not {name!r}")
    exchange, _, cipher = name[len("TLS_") :].partition("_WITH_")
    cipher = (
        cipher.replace("AES_", "AES").replace("_CBC_", "_").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    )
    prefix = "" if exchange == "RSA" else f"{exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")


def _admits(tls: Mapping[str, Any]) -> Callable[[ssl.SSLSocket], bool] | None:
    allowed = tls.get("client_allowed_sans")
    if allowed is None:
        return None
    names = frozenset(str(name) for name in allowed)

    def admits(sock: ssl.SSLSocket) -> bool:
        entries = (sock.getpeercert() or {}).get("subjectAltName", ())
        return any(isinstance(entry, tuple) and entry[1] in names for entry in entries)

    return admits


# --- the rest -----------------------------------------------------------------------------------------------------


def _headers(headers: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(headers, dict):
        raise ValueError("headers takes names and texts")
    for name, value in headers.items():
        if name not in _HEADERS:
            raise ValueError(f"headers knows no {str(name)!r}{nearest(str(name), _HEADERS)}")
        if any(not 32 <= ord(c) < 127 for c in str(value)):
            raise ValueError(f"headers: {name} holds a character that no header may have")
    return tuple((name, str(value)) for name, value in headers.items() if value)


def _users(users: Mapping[str, Any]) -> dict[str, bytes]:
    for name, hashed in users.items():
        if not isinstance(hashed, str) or not hashed.startswith(("$2a$", "$2b$", "$2y$")) or len(hashed) != 60:
            raise ValueError(f"basic_auth_users: {name} needs a bcrypt hash (htpasswd -nBC 10 {name} makes one)")
    return {str(name): hashed.encode() for name, hashed in users.items()}


def _limit(limit: Mapping[str, Any]) -> tuple[float, int]:
    interval = duration(limit.get("interval") or 0)
    burst = limit.get("burst") or 0
    if not isinstance(burst, int) or burst < 0:
        raise ValueError("rate_limit: burst takes a whole number")
    if interval and not burst:
        raise ValueError("rate_limit: an interval without a burst lets nothing through")
    return interval, burst
