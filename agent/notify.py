"""Talking to systemd: readiness, status and the watchdog (sd_notify), and whether standard error is the journal."""

from __future__ import annotations

import os
import socket


class Notify:
    """Sends to $NOTIFY_SOCKET; does nothing where there is none."""

    def __init__(self) -> None:
        path = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def __call__(self, *lines: str) -> None:
        """Send lines such as READY=1; a manager that does not listen is no reason to stop."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            pass


def watchdog_seconds() -> float | None:
    """How long systemd waits for a sign of life before it restarts this process; None where it does not watch."""
    try:
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        return int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None


def to_journal() -> bool:
    """Whether standard error goes to the journal, which takes priorities as <N> at the line's start."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        state = os.fstat(2)
        return (int(device), int(inode)) == (state.st_dev, state.st_ino)
    except (ValueError, OSError):
        return False
