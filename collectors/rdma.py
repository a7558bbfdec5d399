"""RDMA devices and their ports from /sys/class/infiniband: InfiniBand, RoCE, iWARP, EFA, Omni-Path, Soft-RoCE."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.ib_rate import is_software, parse_rate, parse_state, port_state, transport
from gpu_topo.collectors.sysfs import Tally, is_virtual, last_part, missing, pci_address, shares_a_port, too_late
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import Port
from gpu_topo.model.reading import MALFORMED, NO_DATA, Reading, Unknown, known
from gpu_topo.source import NOT_THERE, Answer, Dir, Refusal, Source

NAME = "rdma"
ROOT = "/sys/class/infiniband"
_FUNCTIONS = "/sys/bus/pci/devices"

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
# The GID table has up to a thousand rows and unused ones answer EINVAL: the types in use show in the first few.
_GID_ROWS = 4
# ConnectX-7, the bridge through which HGX B200 and B300 boards manage their NVSwitches, and where its product data
# says so (SMDL=SW_MNG). Product data is slow to read, so it is asked once for each kind of board.
_MANAGER_TYPES = ("MT4129",)
_MANAGER_MARK = b"SW_MNG"
_PRODUCT_DATA_BYTES = 512


def collect(source: Source, context: Context) -> Facts:
    """Every port of every RDMA device. Virtual functions beside their physical function are not opened at all."""
    started = time.monotonic()
    names = source.list(ROOT)
    if isinstance(names, Refusal):
        return Facts(missing(NAME, ROOT, names, started))
    entries = source.dir(ROOT)
    if isinstance(entries, Refusal):
        return Facts(missing(NAME, ROOT, entries, started))
    tally = Tally()
    scan = _Scan(source, context, tally)
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

    def __init__(self, source: Source, context: Context, tally: Tally) -> None:
        self._source = source
        self._exclude = context.exclude
        self._tally = tally
        self._functions = source.dir(_FUNCTIONS)
        self._managers: dict[str, bool] = {}
        self._may_have_managers: bool | None = None

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
        function = self._source.dir(f"{_FUNCTIONS}/{address}") if address else NOT_THERE
        with folder:
            ports = self._ports(folder, function, name, address, is_virtual(target))
        if not isinstance(function, Refusal):
            function.close()
        return ports

    def _ports(self, folder: Dir, function: Dir | Refusal, name: str, address: str | None, virtual: bool) -> list[Port]:
        text = self._tally.text
        numbers = folder.list("ports")
        if isinstance(numbers, Refusal):
            self._tally.text(numbers, "ports")
            return []
        driver = None if isinstance(function, Refusal) else last_part(function.link("driver"))
        node_type = text(folder.read("node_type"), "node_type")
        device = Port(
            device=name,
            port=0,
            address=address,
            firmware=text(folder.read("fw_ver"), "fw_ver"),
            board_id=text(folder.read("board_id"), "board_id"),
            hca_type=text(folder.read("hca_type"), "hca_type"),
            node_type=parse_state(node_type) if isinstance(node_type, str) else node_type,
            driver=driver,
            software=virtual or is_software(name, driver),
        )
        ports = []
        for number in sorted(int(n) for n in numbers if n.isdecimal() and len(n) < 6):
            if f"{name}/{number}" not in self._exclude:
                port = _state(folder, device._replace(port=number), self._tally)
                netdev, bond = _netdev(folder, function, port, len(numbers))
                if bond is None and "_bond_" in name:
                    bond = name
                management = self._manages_switches(function, port)
                ports.append(port._replace(netdev=netdev, bond=bond, management=management))
        return ports

    def _manages_switches(self, function: Dir | Refusal, port: Port) -> bool:
        """Whether the product data marks this board as an NVSwitch manager. Only root may read it."""
        board = known(port.board_id)
        if isinstance(function, Refusal) or board is None or port.link_layer != "InfiniBand":
            return False
        if known(port.hca_type) not in _MANAGER_TYPES or not self._could_have_managers():
            return False
        if board not in self._managers:
            data = function.read_at("vpd", 0, _PRODUCT_DATA_BYTES)
            if isinstance(data, Refusal):
                self._tally.text(data, "vpd")
            self._managers[board] = not isinstance(data, Refusal) and _MANAGER_MARK in data
        return self._managers[board]

    def _could_have_managers(self) -> bool:
        """Only boards with NVIDIA GPUs whose NVSwitches are not on PCI have such managers."""
        if self._may_have_managers is None:
            switches = self._source.list("/sys/bus/pci/drivers/nvidia-nvswitch")
            on_pci = not isinstance(switches, Refusal) and any(":" in entry for entry in switches)
            gpus = self._source.list("/sys/bus/pci/drivers/nvidia")
            self._may_have_managers = not on_pci and not isinstance(gpus, Refusal) and any(":" in e for e in gpus)
        return self._may_have_managers


def _netdev(folder: Dir, function: Dir | Refusal, port: Port, ports: int) -> tuple[str | None, str | None]:
    """The network interface of a port and its master. Several interfaces (ports, or representors of virtual
    functions) are told apart by the GID table, then by dev_port."""
    listing = NOT_THERE if isinstance(function, Refusal) else function.list("net")
    names = () if isinstance(listing, Refusal) else listing
    if len(names) == 1 and ports == 1:
        netdev: str | None = names[0]
    else:
        netdev = _plain(folder.read(f"ports/{port.port}/gid_attrs/ndevs/0"))
        if netdev is None and not isinstance(function, Refusal):
            wanted = str(port.port - 1)
            netdev = next((n for n in names if _plain(function.read(f"net/{n}/dev_port")) == wanted), None)
        if netdev is None and port.software:
            netdev = _plain(folder.read("parent"))
    if netdev not in names or isinstance(function, Refusal):
        return netdev, None
    return netdev, last_part(function.link(f"net/{netdev}/master"))


def _plain(answer: Answer) -> str | None:
    """The text of an attribute that many devices rightly do not have: no reason is kept."""
    return None if isinstance(answer, Refusal) else answer.decode("utf-8", "replace").strip() or None


def _state(device: Dir, port: Port, tally: Tally) -> Port:
    """The port with its state, rate, identity in the subnet, GID types and error counters."""
    base = f"ports/{port.port}"

    def text(name: str) -> Reading[str]:
        return tally.text(device.read(f"{base}/{name}"), name)

    def named(name: str, read: Reading[str]) -> Reading[str]:
        if not isinstance(read, str):
            return read
        word = port_state(read) if name == "state" else parse_state(read)
        return Unknown(NO_DATA, name) if word is None else word

    link_layer = text("link_layer")
    layer = known(link_layer)
    rate = text("rate")
    gbps: Reading[float] = None
    lanes: Reading[int] = None
    speed: Reading[str] = None
    if isinstance(rate, str):
        gbps, lanes, speed = parse_rate(rate)
        if gbps is None:
            gbps = Unknown(NO_DATA if rate[:1] == "0" else MALFORMED, "rate")
    elif rate is not None:
        gbps = rate
    infiniband = layer == "InfiniBand"
    return port._replace(
        link_layer=Unknown(NO_DATA, "link_layer") if layer in ("Unknown", "Unspecified") else link_layer,
        transport=transport(port.device, layer, known(port.node_type), known(port.driver), known(port.hca_type))
        if not port.software
        else "software",
        state=named("state", text("state")),
        phys_state=named("phys_state", text("phys_state")),
        rate_gbps=gbps,
        lanes=lanes,
        speed=speed,
        lid=tally.number(device.read(f"{base}/lid"), "lid"),
        sm_lid=tally.number(device.read(f"{base}/sm_lid"), "sm_lid"),
        cap_mask=_hexadecimal(text("cap_mask"), tally),
        subnet_prefix=_subnet(text("gids/0")) if infiniband else None,
        gid_types=_gid_types(device, base) if layer == "Ethernet" else None,
        counters=_counters(device, base, tally),
    )


def _hexadecimal(text: Reading[str], tally: Tally) -> Reading[int]:
    """cap_mask, which the kernel prints as 0x%08x."""
    if not isinstance(text, str):
        return text
    try:
        return int(text, 16)
    except ValueError:
        tally.note(MALFORMED, "cap_mask")
        return Unknown(MALFORMED, "cap_mask")


def _subnet(gid: Reading[str]) -> Reading[str]:
    """The first half of a GID: fe80:0000:0000:0000 where the subnet manager gave none of its own."""
    if not isinstance(gid, str):
        return gid
    groups = gid.split(":")
    return ":".join(groups[:4]) if len(groups) == 8 else Unknown(MALFORMED, "gids/0")


def _gid_types(device: Dir, base: str) -> frozenset[str] | None:
    """ "IB/RoCE v1", "RoCE v2": the types of the first rows. An unused row answers EINVAL, which says nothing."""
    rows = (device.read(f"{base}/gid_attrs/types/{row}") for row in range(_GID_ROWS))
    types = {row.decode("ascii", "replace").strip() for row in rows if not isinstance(row, Refusal)}
    return frozenset(types - {""}) or None


def _counters(device: Dir, base: str, tally: Tally) -> dict[str, Reading[int]]:
    """The error counters by file name, without those that this driver does not have."""
    found: dict[str, Reading[int]] = {}
    for folder, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        for name in names:
            value = tally.number(device.read(f"{base}/{folder}/{name}"), name)
            if value is not None:
                found[name] = value
    return found
