"""The TLS part of a web configuration as Python's TLS has it: certificate, versions, cipher suites, clients.

Where Python's TLS cannot do what Go's can, the configuration is refused with what to write instead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from gpu_topo.agent.config_values import SWITCH, TEXT, TEXTS, nearest, value_of

KEYS = (
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
# All of them empty: no TLS. What else there is makes no sense without a certificate, and is let pass as Go does.
_TEXTS = ("cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file", "client_auth_type")
# The curves that Go knows are all among those that OpenSSL offers anyway, in its own order of preference.
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}


def context_of(tls: Mapping[str, Any], folder: str) -> tuple[ssl.SSLContext | None, tuple[str, ...]]:
    """The TLS context, None where none is configured, and the files it was made of.

    Relative paths are relative to folder, the configuration's. Raises ValueError with what is wrong.
    """
    texts = {name: _text(tls, name) for name in _TEXTS}
    if not any(texts.values()):
        return None, ()
    files = {name: os.path.join(folder, text) for name, text in texts.items() if name.endswith("_file") and text}
    for inline, file in (("cert", "cert_file"), ("key", "key_file")):
        if not texts[inline] and not texts[file]:
            raise ValueError(f"tls_server_config needs {inline} or {file}")
        if texts[inline] and texts[file]:
            raise ValueError(f"tls_server_config takes {inline} or {file}, not both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = least = _version(tls, "min_version", "TLS12")
    context.maximum_version = most = _version(tls, "max_version", "TLS13")
    if most < least:  # taken by OpenSSL, which then fails at every handshake
        names = {version: name for name, version in _VERSIONS.items()}
        raise ValueError(f"max_version {names[most]} is below min_version {names[least]}")
    context.options |= ssl.OP_NO_RENEGOTIATION
    if value_of(tls, "prefer_server_cipher_suites", SWITCH, True):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, texts, files)
    _load_clients(context, tls, texts, files)
    _choose_ciphers(context, tls)
    return context, tuple(files.values())


def _text(tls: Mapping[str, Any], key: str) -> str:
    return str(value_of(tls, key, TEXT, ""))


def _texts(tls: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(value_of(tls, key, TEXTS, ()))


def _version(tls: Mapping[str, Any], key: str, default: str) -> ssl.TLSVersion:
    name = _text(tls, key) or default
    if name not in _VERSIONS:
        raise ValueError(f"{key} takes {', '.join(_VERSIONS)}, not {name!r}")
    return _VERSIONS[name]


def _load_pair(context: ssl.SSLContext, texts: Mapping[str, str], files: Mapping[str, str]) -> None:
    held: list[int] = []
    try:
        cert = files.get("cert_file") or _memory_file(texts["cert"], held)
        key = files.get("key_file") or _memory_file(texts["key"], held)
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
    """A file name for what is written inline, since OpenSSL only takes files where comments may be in any language."""
    fd = os.memfd_create("web-config")
    held.append(fd)
    os.write(fd, text.encode(errors="replace"))
    return f"/proc/self/fd/{fd}"


def _load_clients(
    context: ssl.SSLContext, tls: Mapping[str, Any], texts: Mapping[str, str], files: Mapping[str, str]
) -> None:
    policy = texts["client_auth_type"]
    if policy in _UNVERIFIED:
        raise ValueError(f"client_auth_type {policy} takes any certificate at all; use RequireAndVerifyClientCert")
    if policy not in _CLIENT_AUTH:
        raise ValueError(f"client_auth_type knows no {policy!r}{nearest(policy, [n for n in _CLIENT_AUTH if n])}")
    mode = _CLIENT_AUTH[policy]
    has_ca = bool(texts["client_ca"] or texts["client_ca_file"])
    if has_ca and policy in ("", "NoClientCert"):
        raise ValueError("client_ca needs a client_auth_type, such as RequireAndVerifyClientCert")
    if tls.get("client_allowed_sans") is not None and mode is not ssl.CERT_REQUIRED:
        raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    if mode is not ssl.CERT_NONE:
        held: list[int] = []
        try:
            if has_ca:
                file = files.get("client_ca_file") or _memory_file(texts["client_ca"], held)
                context.load_verify_locations(cafile=file)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except ssl.SSLError as error:
            raise ValueError(f"client_ca holds no certificate: {error.reason or error}") from None
        except OSError as error:
            raise ValueError(f"{files.get('client_ca_file', 'client_ca')} cannot be read: {error.strerror}") from None
        finally:
            for fd in held:
                os.close(fd)
    context.verify_mode = mode


def _choose_ciphers(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    suites = _texts(tls, "cipher_suites")
    # TLS 1.3's suites cannot be chosen, in Go either.
    older = [_openssl_name(name) for name in suites if not _is_tls13(name)]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ValueError(
                f"cipher_suites holds none that this machine's OpenSSL knows: {', '.join(suites)}"
            ) from None
    curves = _texts(tls, "curve_preferences")
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


def admits_of(tls: Mapping[str, Any]) -> Callable[[ssl.SSLSocket], bool] | None:
    """Whether a client's certificate carries one of client_allowed_sans; None where none are named. ValueError."""
    if tls.get("client_allowed_sans") is None:
        return None
    names = frozenset(_texts(tls, "client_allowed_sans"))

    def admits(sock: ssl.SSLSocket) -> bool:
        entries = (sock.getpeercert() or {}).get("subjectAltName", ())
        return any(isinstance(entry, tuple) and entry[1] in names for entry in entries)

    return admits
