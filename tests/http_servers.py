"""HTTP servers on loopback for tests, and certificates for them."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.http import Server
from gpu_topo.agent.loop import Loop
from gpu_topo.model.reading import EMPTY


class Running:
    """A server whose loop runs in a thread of its own, and what it was bound to."""

    def __init__(self, loop: Loop, server: Server, *addresses: Listen) -> None:
        self.loop = loop
        self.server = server
        self.bound = server.listen(addresses or (Listen("127.0.0.1", 0),))
        self.port = self.bound[0].port
        self.thread = threading.Thread(target=loop.run)
        self.thread.start()

    def request(
        self,
        path: str = "/",
        method: str = "GET",
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = EMPTY,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        if tls is not None:
            client: HTTPConnection = HTTPSConnection("localhost", self.port, timeout=20, context=tls)
        else:
            client = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            client.request(method, path, headers=dict(headers))
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def stop(self) -> None:
        """Close the server and wait for its thread."""
        self.loop.soon(self.server.close)
        self.loop.soon(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def make_certificate(folder: Path, name: str = "localhost") -> tuple[str, str]:
    """A self-signed certificate for loopback, and its key, as PEM files."""
    cert, key = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-days", "2", "-subj", f"/CN={name}", "-addext", names, "-keyout", key, "-out", cert]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
