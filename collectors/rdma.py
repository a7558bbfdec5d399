"""RDMA devices and their ports from /sys/class/infiniband: InfiniBand, RoCE, iWARP, EFA, Omni-Path, Soft-RoCE."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.ib_rate import (
    SOFTWARE,
    is_software,
    parse_rate,
    parse_state,
    port_state,
    transport,
)
from gpu_topo.collectors.sysfs import (
    Tally,
    is_virtual,
    last_part,
    missing,
    open_class,
    pci_address,
    shares_a_port,
    too_late,
)
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import Port
from gpu_topo.model.reading import MALFORMED, NO_DATA, Reading, Unknown, known
from gpu_topo.source import ABSENT, Answer, Dir, Refusal, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

NAME = "rdma"
ROOT = "/sys/class/infiniband"
_FUNCTIONS = "/sys/bus/pci/devices"
_INTERFACES = "/sys/class/net"
_LINKS_FOR_A_LISTING = 8

# Counters that tell of a bad link, cable or remote end. Each read is a firmware command on real cards, so the fifty
# traffic and congestion counters of a port stay unread. Names: Documentation/ABI/stable/sysfs-class-infiniband.
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
)
# The same for Ethernet, where drivers/infiniband/hw/mlx5/counters.c counts instead.
HW_COUNTERS = ("rx_icrc_encapsulated", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
# Those that a rule looks at; of the others only growth and metrics tell.
_JUDGED_FRAMES = HW_COUNTERS[:1]
_JUDGED = frozenset((*COUNTERS[:6], *_JUDGED_FRAMES))
# What nearly every port says, without a parser.
_STATES = {b"4: ACTIVE\n": "ACTIVE", b"1: DOWN\n": "DOWN"}
_PHYS_STATES = {b"5: LinkUp\n": "LinkUp", b"3: Disabled\n": "Disabled", b"2: Polling\n": "Polling"}
_LAYERS = {b"InfiniBand\n": "InfiniBand", b"Ethernet\n": "Ethernet"}
# ConnectX-7, the bridge through which HGX B200 and B300 boards manage their NVSwitches, and where its product data
# says so (SMDL=SW_MNG). Product data is slow to read, so it is asked once for each kind of board.
_MANAGER_TYPES = ("MT4129",)
_MANAGER_MARK = b"SW_MNG"
_PRODUCT_DATA_BYTES = 512
_PREFIX = len("fe80:0000:0000:0000")


def collect(source: Source, context: Context) -> Facts:
    """Every port of every RDMA device. Virtual functions beside their physical function are not opened at all."""
    started = time.monotonic()
    opened = open_class(source, ROOT)
    if isinstance(opened, Refusal):
        return Facts(missing(NAME, ROOT, opened, started))
    entries, names = opened
    tally = Tally()
    scan = _Scan(source, context, tally, len(names))
    ports: list[Port] = []
    late = False
    with entries:
        for name in sorted(names, key=_natural):
            if too_late(context):
                late = True
                break
            if name not in context.exclude:
                ports.extend(scan.device(entries, name))
    scan.close()
    return Facts(tally.status(NAME, started, late), ports=tuple(ports), unread=tally.counts)


def _natural(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


class _Scan:
    """One walk over the class: what every device needs is opened once."""

    def __init__(self, source: Source, context: Context, tally: Tally, devices: int) -> None:
        self._source = source
        self._devices = devices
        self._by_function: dict[str, list[str]] | None = None
        self._exclude = context.exclude
        self._tally = tally
        self._functions = source.dir(_FUNCTIONS)
        self._managers: dict[str, bool] = {}
        self._may_have_managers: bool | None = None
        self._rates: dict[bytes, tuple[Reading[float], Reading[int], Reading[str]]] = {}
        self._counters = [
            (name, f"{folder}/{name}")
            for folder, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS))
            for name in names
            if context.counters or name in _JUDGED
        ]
        # What the hardware counts of Ethernet frames stays zero on InfiniBand: only metrics show it.
        self._of_infiniband = self._counters if context.counters else self._counters[: -len(_JUDGED_FRAMES)]

    def close(self) -> None:
        if not isinstance(self._functions, Refusal):
            self._functions.close()

    def device(self, entries: Dir, name: str) -> list[Port]:
        """The ports of one device; none where it is excluded or shares the port of a physical function."""
        target = entries.link(name)
        address = pci_address(target) or pci_address(entries.link(f"{name}/device"))
        if address in self._exclude or shares_a_port(target, address, self._functions):
            return []
        folder = self._source.dir(f"{ROOT}/{name}")
        if isinstance(folder, Refusal):
            self._tally.text(folder, name)
            return []
        with folder:
            text = self._tally.text
            ports = self._port_numbers(folder, name)
            device = Port(  # what its ports share
                device=name,
                port=0,
                address=address,
                firmware=text(folder.read("fw_ver"), "fw_ver"),
                board_id=text(folder.read("board_id"), "board_id"),
                hca_type=text(folder.read("hca_type"), "hca_type"),
                software=is_virtual(target) or is_software(name),
            )
            return [
                self._port(folder, device, number, layer, len(ports) == 1)
                for number, layer in ports.items()
                if f"{name}/{number}" not in self._exclude
            ]

    def _port_numbers(self, folder: Dir, name: str) -> dict[int, Answer | None]:
        """The ports, with their link layers where those were read.

        The kernel numbers ports from 1, so that the first link layer that is not there ends them, for a tenth of the
        system calls of a listing.
        """
        found: dict[int, Answer | None] = {}
        if not self._exclude:  # else one of them may not be opened
            answer = folder.read("ports/1/link_layer")
            while not isinstance(answer, Refusal):
                found[len(found) + 1] = answer
                answer = folder.read(f"ports/{len(found) + 1}/link_layer")
            if found and answer.why == ABSENT:
                return found
        numbers = folder.list("ports")
        if isinstance(numbers, Refusal):
            self._tally.text(numbers, "ports")
            return {}
        return {number: found.get(number) for number in sorted(int(n) for n in numbers if n.isdecimal() and len(n) < 6)}

    def _port(self, folder: Dir, device: Port, number: int, layer: Answer | None, alone: bool) -> Port:
        """The port with its state, rate, identity in the subnet and error counters. alone: the device has no other."""
        text = self._tally.text
        base = f"ports/{number}"
        answer = layer or folder.read(f"{base}/link_layer")
        link_layer = _usual(_LAYERS, answer) or text(answer, "link_layer")
        infiniband = link_layer == "InfiniBand"
        software, spoken = self._transport(folder, device, known(link_layer))
        gbps, lanes, speed = self._rate(folder.read(f"{base}/rate"))
        answer = folder.read(f"{base}/state")
        state = _usual(_STATES, answer) or _named(text(answer, "state"), "state", port_state)
        answer = folder.read(f"{base}/phys_state")
        phys_state = _usual(_PHYS_STATES, answer) or _named(text(answer, "phys_state"), "phys_state", parse_state)
        netdev, bond = self._netdev(folder, device, number, software, alone)
        return Port(
            device=device.device,
            port=number,
            address=device.address,
            netdev=netdev,
            link_layer=Unknown(NO_DATA, "link_layer") if link_layer in ("Unknown", "Unspecified") else link_layer,
            transport=spoken,
            state=state,
            phys_state=phys_state,
            rate_gbps=gbps,
            lanes=lanes,
            speed=speed,
            # Asked of a port that waits for its subnet manager; of all others nothing wants to know it.
            sm_lid=self._tally.number(folder.read(f"{base}/sm_lid"), "sm_lid") if state in ("INIT", "ARMED") else None,
            subnet_prefix=_subnet(text(folder.read(f"{base}/gids/0"), "gids/0")) if infiniband else None,
            firmware=device.firmware,
            board_id=device.board_id,
            hca_type=device.hca_type,
            software=software,
            management=infiniband and self._manages_switches(device),
            bond=bond,
            counters=self._errors(folder, base, self._of_infiniband if infiniband else self._counters),
        )

    def _transport(self, folder: Dir, device: Port, layer: str | None) -> tuple[bool, str | None]:
        """Whether the device is emulated, and what its port speaks. Driver and node type tell RoCE, iWARP and EFA
        apart, and need not be asked of an InfiniBand port."""
        if device.software:
            return True, SOFTWARE
        name, driver, node = device.device, None, None
        if layer != "InfiniBand":
            if device.address and not isinstance(self._functions, Refusal):
                driver = last_part(self._functions.link(f"{device.address}/driver"))
            node = known(self._tally.text(folder.read("node_type"), "node_type"))
        return is_software(name, driver), transport(name, layer, node, driver, known(device.hca_type))

    def _rate(self, answer: Answer) -> tuple[Reading[float], Reading[int], Reading[str]]:
        """Gb/s, lanes and name of the lane speed. Equal ports say the same, which is parsed once."""
        if isinstance(answer, bytes) and answer in self._rates:
            return self._rates[answer]
        text = self._tally.text(answer, "rate")
        if not isinstance(text, str):
            return text, None, None
        gbps, lanes, speed = parse_rate(text)
        rate = Unknown(NO_DATA if text[0] == "0" else MALFORMED, "rate") if gbps is None else gbps, lanes, speed
        if isinstance(answer, bytes):
            self._rates[answer] = rate
        return rate

    def _netdev(
        self, folder: Dir, device: Port, port: int, software: bool, alone: bool
    ) -> tuple[str | None, str | None]:
        """The network interface of a port, and the bond that it or the device is part of. Several interfaces (ports,
        or representors of virtual functions) are told apart by the GID table, then by dev_port."""
        bond = device.device if "_bond_" in device.device else None
        address = known(device.address)
        names = self._interfaces(address) if address else ()
        if len(names) == 1 and alone:
            netdev: str | None = names[0]
        else:
            netdev = _plain(folder.read(f"ports/{port}/gid_attrs/ndevs/0"))
            if netdev is None and names:
                netdev = self._by_dev_port(f"{_FUNCTIONS}/{address}", names, str(port - 1))
            if netdev is None and software:
                netdev = _plain(folder.read("parent"))
        if netdev in names and not isinstance(self._functions, Refusal):
            bond = last_part(self._functions.link(f"{address}/net/{netdev}/master")) or bond
        return netdev, bond

    def _interfaces(self, address: str) -> Sequence[str]:
        """The network interfaces of a function itself, by name."""
        if self._by_function is None:
            self._by_function = self._walk_interfaces()
        if self._by_function:
            return self._by_function.get(address, ())
        listing = self._source.list(f"{_FUNCTIONS}/{address}/net")
        return () if isinstance(listing, Refusal) else listing

    def _walk_interfaces(self) -> dict[str, list[str]]:
        """The interfaces of every function by its address, from the links of their class: a link is one system call
        and a listing ten. Empty where that is no gain, as beside the hundreds of interfaces of containers."""
        opened = open_class(self._source, _INTERFACES)
        if isinstance(opened, Refusal):
            return {}
        entries, names = opened
        found: dict[str, list[str]] = {}
        with entries:
            for name in names if len(names) <= _LINKS_FOR_A_LISTING * self._devices else ():
                target = entries.link(name)
                parts = () if isinstance(target, Refusal) else target.split("/")
                if len(parts) > 2 and parts[-2] == "net":  # below a subfunction it is not the function's own
                    found.setdefault(parts[-3], []).append(name)
        return found

    def _by_dev_port(self, path: str, names: Iterable[str], wanted: str) -> str | None:
        function = self._source.dir(path)
        if isinstance(function, Refusal):
            return None
        with function:
            return next((n for n in names if _plain(function.read(f"net/{n}/dev_port")) == wanted), None)

    def _errors(self, folder: Dir, base: str, wanted: Iterable[tuple[str, str]]) -> dict[str, Reading[int]]:
        """The error counters by file name, without those that this driver does not have."""
        found: dict[str, Reading[int]] = {}
        for name, path in wanted:
            value = self._tally.number(folder.read(f"{base}/{path}"), name)
            if value is not None:
                found[name] = value
        return found

    def _manages_switches(self, device: Port) -> bool:
        """Whether the product data marks this board as an NVSwitch manager. Only root may read it."""
        board = known(device.board_id)
        if device.address is None or board is None or known(device.hca_type) not in _MANAGER_TYPES:
            return False
        if not self._could_have_managers():
            return False
        if board not in self._managers:
            self._managers[board] = _MANAGER_MARK in self._product_data(f"{_FUNCTIONS}/{device.address}")
        return self._managers[board]

    def _product_data(self, path: str) -> bytes:
        function = self._source.dir(path)
        if isinstance(function, Refusal):
            return b""
        with function:
            data = function.read_at("vpd", 0, _PRODUCT_DATA_BYTES)
        if isinstance(data, Refusal):
            self._tally.text(data, "vpd")
            return b""
        return data

    def _could_have_managers(self) -> bool:
        """Only boards with NVIDIA GPUs whose NVSwitches are not on PCI have such managers."""
        if self._may_have_managers is None:
            self._may_have_managers = not self._drives("nvidia-nvswitch") and self._drives("nvidia")
        return self._may_have_managers

    def _drives(self, driver: str) -> bool:
        """Whether a function is bound to the driver."""
        entries = self._source.list(f"/sys/bus/pci/drivers/{driver}")
        return not isinstance(entries, Refusal) and any(":" in entry for entry in entries)


def _usual(words: Mapping[bytes, str], answer: Answer) -> str | None:
    """The word of an answer that needs no parser."""
    return None if isinstance(answer, Refusal) else words.get(answer)


def _named(read: Reading[str], where: str, parse: Callable[[str], str | None]) -> Reading[str]:
    """The name of a state: "4: ACTIVE"."""
    if not isinstance(read, str):
        return read
    word = parse(read)
    return Unknown(NO_DATA, where) if word is None else word


def _plain(answer: Answer) -> str | None:
    """The text of an attribute that many devices rightly do not have: no reason is kept."""
    return None if isinstance(answer, Refusal) else answer.decode("utf-8", "replace").strip() or None


def _subnet(gid: Reading[str]) -> Reading[str]:
    """The first half of a GID: fe80:0000:0000:0000 where the subnet manager gave none of its own."""
    if not isinstance(gid, str):
        return gid
    return gid[:_PREFIX] if gid.count(":") == 7 and gid[_PREFIX : _PREFIX + 1] == ":" else Unknown(MALFORMED, "gids/0")
