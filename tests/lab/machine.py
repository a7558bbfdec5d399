"""A running virtual machine (QEMU, emulated processors): control of its devices from outside, a hand inside."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.lab import topology
from tests.lab.fakepci import Card, FakeCard
from tests.lab.image import Image

QEMU = "qemu-system-x86_64"
T = TypeVar("T")
# Seconds, the end of any wait for the machine: it is emulated, and others use this computer's processors, too. What a
# test says of time it measures by the machine's own clock or in scans, never by how long it waited.
PATIENCE = 180.0

# Nested virtualisation, crypto and legacy parts that an emulated machine would only spend time on.
_KERNEL = (
    "console=ttyS0 mitigations=off panic=-1 quiet nokaslr net.ifnames=0 systemd.show_status=0 "
    "module_blacklist=kvm,kvm_amd,kvm_intel,i2c_i801,pcspkr,iTCO_wdt,psmouse,aesni_intel,ghash_clmulni_intel,cryptd"
)
# A machine that passes for hardware: no hypervisor flag, and a maker's name in its firmware.
_HARDWARE = (
    "-smbios", "type=0,vendor=American Megatrends International",
    "-smbios", "type=1,manufacturer=Supermicro,product=SYS-LAB",
    "-smbios", "type=2,manufacturer=Supermicro,product=X13LAB",
    "-smbios", "type=3,manufacturer=Supermicro",
)  # fmt: skip


class Done(NamedTuple):
    """A program that ran in the machine: exit status (124: it took too long), standard output and error."""

    status: int
    out: str
    err: str


class Answer(NamedTuple):
    """An HTTP answer that the machine got from itself."""

    status: int
    body: str
    seconds: float


class Machine:
    """Starts at once; use as a context manager. Every wait ends: what does not come is a TimeoutError with the
    console's last lines."""

    def __init__(self, image: Image, product: Path, folder: Path, hardware: bool, init: str = "") -> None:
        """folder: for sockets, drives and the log. hardware: pass for bare metal. init: instead of systemd."""
        folder.mkdir(parents=True, exist_ok=True)
        self.cards: dict[str, FakeCard] = {}
        self.console = folder / "console.log"
        self.begun = time.monotonic()
        monitor, control = folder / "qmp", folder / "ctl"
        append = f"{_KERNEL} labinit={init}" if init else _KERNEL
        command = [
            "setpriv", "--pdeathsig", "KILL", QEMU,
            "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512",
            "-cpu", "max,hypervisor=off" if hardware else "max", *(_HARDWARE if hardware else ()),
            "-m", "1024", "-smp", "2,sockets=2",
            "-object", "memory-backend-memfd,id=m0,size=512M,share=on",
            "-object", "memory-backend-memfd,id=m1,size=512M,share=on",
            "-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1",
            "-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", append,
            "-drive", f"file={image.disk},if=none,id=root,format=raw,snapshot=on",
            "-device", "virtio-blk-pci,drive=root,bus=pcie.0,addr=0x10",
            "-drive", f"file={product},if=none,id=product,format=raw,snapshot=on",
            "-device", "virtio-blk-pci,drive=product,bus=pcie.0,addr=0x11",
            "-serial", f"file:{self.console}", "-qmp", f"unix:{monitor},server=on,wait=off",
            "-chardev", f"socket,path={control},server=on,wait=off,id=ctl",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=ctl,name=lab.ctl",
            *topology.arguments(folder, self._fake),
        ]  # fmt: skip
        self._complaints = open(folder / "qemu.err", "wb+")  # noqa: SIM115
        ends = [card.theirs.fileno() for card in self.cards.values()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._complaints, stderr=self._complaints, pass_fds=ends
        )
        for card in self.cards.values():
            card.theirs.close()
        try:
            self._monitor = _Lines(self._connect(monitor))
            self._monitor.get(PATIENCE, self.trouble)  # its greeting
            self.qmp("qmp_capabilities")
            self._control = _Lines(self._connect(control))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Pull the plug."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)
        for card in self.cards.values():
            card.close()
        for name in ("_monitor", "_control"):
            if hasattr(self, name):
                getattr(self, name).close()
        self._complaints.close()

    def trouble(self) -> str:
        """What QEMU and the machine's console said last."""
        said = self.console.read_text("utf-8", "replace") if self.console.exists() else ""
        self._complaints.flush()
        self._complaints.seek(0)
        qemu = self._complaints.read().decode("utf-8", "replace")
        return f"{'ended' if self._process.poll() is not None else 'running'}\n{qemu[-1500:]}\n{said[-3000:]}"

    # --- from outside -------------------------------------------------------------------------------------------

    def qmp(self, command: str, **arguments: Any) -> Any:
        """A command of QEMU's monitor and its answer; an error is an AssertionError."""
        request: dict[str, Any] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        self._monitor.put(request)
        return self._returned()

    def _returned(self) -> Any:
        while True:
            answer = self._monitor.get(PATIENCE, self.trouble)
            assert "error" not in answer, answer["error"]
            if "return" in answer:
                return answer["return"]

    def plug(self, name: str, bus: str) -> None:
        """Hot-plug an NVMe drive into an empty port. Not a fake card: once one is pulled, QEMU 7.2 crashes sometime."""
        self.qmp("device_add", driver="nvme", id=name, serial=name, bus=bus)

    def set_link(self, name: str, up: bool) -> None:
        """Pull a NIC's cable or plug it in again."""
        self.qmp("set_link", name=name, up=up)

    # --- inside -------------------------------------------------------------------------------------------------

    def wait_ready(self, seconds: float) -> None:
        """Until the agent inside speaks."""
        assert self._control.get(seconds, self.trouble)["ok"] == "ready"

    def run(self, *command: str, timeout: float = PATIENCE, check: bool = True) -> Done:
        """Run a program inside. check: a status other than 0 is an AssertionError with its words."""
        done = Done(**self._ask(timeout + 30, run=command, timeout=timeout))
        assert not check or done.status == 0, f"{command}: {done.status}\n{done.out[-2000:]}\n{done.err[-2000:]}"
        return done

    def sh(self, script: str, timeout: float = PATIENCE) -> str:
        """What a shell script inside prints; any failing command fails it."""
        return self.run("sh", "-ec", script, timeout=timeout).out

    def read(self, path: str) -> str:
        """A file inside, without the white space around it."""
        text: str = self._ask(PATIENCE, read=path)
        return text.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file inside."""
        self._ask(PATIENCE, write=path, text=text)

    def now(self) -> float:
        """The machine's own clock."""
        seconds: float = self._ask(PATIENCE, now=True)
        return seconds

    def monotonic(self) -> float:
        """The machine's CLOCK_MONOTONIC, which nobody sets."""
        seconds: float = self._ask(PATIENCE, monotonic=True)
        return seconds

    def get(self, url: str, timeout: float = 60) -> Answer:
        """Ask a web server inside."""
        return Answer(**self._ask(timeout + 30, get=url, timeout=timeout))

    def _ask(self, limit: float, **request: Any) -> Any:
        self._control.put(request)
        answer = self._control.get(limit, self.trouble)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer["ok"]

    def _fake(self, name: str, card: Card) -> int:
        self.cards[name] = FakeCard(card)
        return self.cards[name].theirs.fileno()

    def _connect(self, path: Path) -> socket.socket:
        for _ in range(2400):
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(os.fspath(path))
                return sock
            except OSError:
                sock.close()
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise TimeoutError(f"QEMU does not answer: {self.trouble()}")


class _Lines:
    """JSON objects, a line each, over a socket; what comes in waits in a queue."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._came: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._receive, name="lab lines", daemon=True).start()

    def put(self, message: dict[str, Any]) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def get(self, seconds: float, trouble: Callable[[], str]) -> dict[str, Any]:
        try:
            message = self._came.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"nothing in {seconds:g} s: {trouble()}") from None
        if message is None:
            self._came.put(None)
            raise ConnectionError(f"QEMU has hung up: {trouble()}")
        return message

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _receive(self) -> None:
        rest = b""
        try:
            while data := self._sock.recv(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._came.put(json.loads(line))
        except OSError:
            pass
        self._came.put(None)


def until(look: Callable[[], T | None], seconds: float, what: str, every: float = 0.2) -> tuple[T, float]:
    """Look again and again until there is something; it, and how long it took. TimeoutError after that many seconds."""
    begun = time.monotonic()
    while True:
        found = look()
        if found is not None and found is not False:
            return found, time.monotonic() - begun
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every)


def missing(
    tools: Sequence[str] = (QEMU, "mmdebstrap", "busybox", "cpio", "mke2fs", "unshare", "setpriv", "make"),
) -> str:
    """What this computer lacks to run the lab, "" where nothing."""
    import shutil

    if os.geteuid() != 0:
        return "needs root (mmdebstrap, chroot)"
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""
