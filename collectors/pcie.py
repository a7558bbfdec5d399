"""PCI functions and their links from sysfs (/sys/bus/pci), read as little as possible.

`uevent` gives class, ids and driver in one read; virtual functions are known from their physical function's
`virtfn` links and never opened; of configuration space only the double words that matter are read, and only
where this process may. Attributes as in the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import time

from gpu_topo.collectors.amd_load import Loads
from gpu_topo.collectors.context import Context
from gpu_topo.collectors.pcie_identity import Identity, identify
from gpu_topo.collectors.pcie_values import (
    ASLEEP_LINK,
    ASLEEP_READING,
    LOST_LINK,
    UNRECORDED,
    Values,
    absent,
    gone,
    is_slowed,
    text,
)
from gpu_topo.collectors.registers import Layouts, Registers, registers, registers_in
from gpu_topo.collectors.sysfs import too_late
from gpu_topo.model.address import normalise
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.pci import Aer, Function, LinkEnd
from gpu_topo.model.reading import MALFORMED, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.vendors import AMD, AMD_PROCESSORS
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Dir, LiveDir, Refusal, Source

NAME = "pcie"
DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"

BUS_NUMBERS = 0x18  # configuration space: primary, secondary and subordinate bus number of a bridge
_CONFIG_BYTES = 4096
_LOOKS = 16  # functions from one look at the clock to the next
_ADDRESS_CHARACTERS = "0123456789abcdefABCDEF:."
_ACTIVE = b"active\n"
SUSPENDED, D3COLD = "suspended", "D3cold"
_AMD_BRIDGES = (AMD, AMD_PROCESSORS)


def collect(source: Source, context: Context) -> Facts:
    """All PCI functions of a machine. Never raises on what a file holds; each unreadable value is counted."""
    begun = time.monotonic()
    folder = source.dir(DEVICES)
    if isinstance(folder, Refusal):
        return _refused(folder, begun)
    with folder:
        names = folder.list()
        if isinstance(names, Refusal):
            return _refused(names, begun)
        scan = _Scan(folder, slot_labels(source), context)
        late = False
        for number, name in enumerate(names):
            if not number % _LOOKS and too_late(context):
                late = True
                break
            scan.visit(name)
        if not late:
            scan.loads.ask_twins(folder)
    problems = sum(scan.values.unread.values())
    detail = f"{len(scan.functions)} functions"
    if late:
        detail = f"the deadline came before everything was read: {len(scan.functions)} of {len(names)} functions"
    if problems:
        detail += f", {problems} values not readable"
    answer = SourceStatus(NAME, TIMEOUT if late else PARTIAL if problems else OK, detail, time.monotonic() - begun)
    return Facts(
        answer, functions=tuple(scan.functions.values()), gpus=tuple(scan.loads.gpus), unread=scan.values.unread
    )


def _refused(refusal: Refusal, begun: float) -> Facts:
    """Without its folder there is nothing to read."""
    status = {NOT_THERE: ABSENT, "denied": DENIED}.get(refusal.why, FAILED)
    detail = f"{DEVICES}: {refusal.error or refusal.why}"
    return Facts(SourceStatus(NAME, status, detail, time.monotonic() - begun))


def slot_labels(source: Source) -> dict[str, str]:
    """Physical slot labels by address without function."""
    folder = source.dir(SLOTS)
    if isinstance(folder, Refusal):
        return {}
    labels = {}
    with folder:
        names = folder.list()
        for name in () if isinstance(names, Refusal) else names:
            address = text(folder.read(f"{name}/address"))
            if address:
                labels[address.lower()] = name
    return labels


class Place(NamedTuple):
    """Where functions hang: the bridge above, and the host bridge ("pci0000:17") where it is known."""

    parent: Reading[str]
    host_bridge: str | None


class _Scan:
    """One pass over the devices folder."""

    def __init__(self, devices: Dir, slots: dict[str, str], context: Context) -> None:
        self._devices = devices
        self._slots = slots
        self._exclude = context.exclude
        self._virtual: dict[str, str] = {}  # virtual function -> its physical function
        self._numa_of: dict[str, Reading[int]] = {}  # bus -> NUMA node
        self._bus = ""  # of the function before
        self._place_of_bus = Place(None, None)
        self._identities: dict[tuple[bytes, bytes], Identity] = {}  # of functions alike
        self._layouts = Layouts()
        self.functions: dict[str, Function] = {}
        self.loads = Loads()
        self.values = Values()

    def visit(self, name: str) -> None:
        """Read one function, unless it is excluded or virtual."""
        if name in self._exclude:
            return
        if name in self._virtual:
            self.functions[name] = self._of_physical(name, self._virtual[name])
            return
        place, near = self._place(name)
        if place is None:
            self.values.count(MALFORMED, "device name")
            return
        folder = self._devices.dir(name, near)
        if not isinstance(folder, Refusal):
            with folder:
                function = self._read(folder, name, place)
            if function is not None:
                self.functions[name] = function
        elif normalise(name) is None:
            self.values.count(MALFORMED, "device name")
        elif folder.why != NOT_THERE:
            self.values.count(folder.why, "device folder")
            self.functions[name] = self._bare(name, place)
        elif isinstance(self._devices.link(name), str):  # else it went away between the listing and now
            self.values.count(NOT_RECORDED, "device folder")
            self.functions[name] = self._bare(name, place)

    def _of_physical(self, name: str, physical: str) -> Function:
        """A virtual function, from what is known of its physical one: it hangs where that does (drivers/pci/iov.c,
        pci_iov_add_virtfn), and is not opened."""
        above = self.functions.get(physical)
        place = Place(above.parent, above.host_bridge) if above else self._place(name)[0] or Place(None, None)
        return Function(
            name,
            vendor_id=above.vendor_id if above else None,
            class_code=above.class_code if above else None,
            driver=Unknown(NOT_RECORDED, "virtual functions are not opened"),
            numa_node=above.numa_node if above else None,
            parent=place.parent,
            host_bridge=place.host_bridge,
            slot=self._slots.get(name[:-2]),
            virtual_function=True,
            physical_function=physical,
        )

    def _place(self, name: str) -> tuple[Place | None, bool]:
        """Where a function hangs, from where its link points to, and whether it lies beside the one before: all
        functions on a bus do, so that only the first one's link is read. None for a name that is no address."""
        bus = name[:-5]
        if bus == self._bus:
            return self._place_of_bus, True
        if not _is_address(name):
            return None, False
        target = self._devices.link(name)
        if isinstance(target, Refusal):
            # Copies that lost their symbolic links are flat folders: nothing is known of what is above.
            return Place(Unknown(NOT_RECORDED, f"{DEVICES}/{name}"), None), False
        self._bus, self._place_of_bus = bus, self._place_in(target.rstrip("/").rpartition("/")[0])
        return self._place_of_bus, False

    def _place_in(self, folder: str) -> Place:
        above = folder.rpartition("/")[2]
        bridge = self.functions.get(above)
        if bridge is not None:
            return Place(above, bridge.host_bridge)
        steps = folder.split("/")
        # The last one counts: Intel's VMD puts a root bus of its own below a function of another.
        host_bridge = next((step for step in reversed(steps) if step.startswith("pci") and ":" in step), None)
        if above.startswith("pci") or not _is_address(above):
            return Place(None if host_bridge == above else Unknown(NOT_RECORDED, folder), host_bridge)
        for i in range(len(steps) - 1, 0, -1):
            # A bridge that the tree names but does not hold still has its place above the others.
            if not _is_address(steps[i]) or steps[i] in self.functions:
                break
            higher: Reading[str] = steps[i - 1] if _is_address(steps[i - 1]) else None
            self.functions[steps[i]] = self._bare(steps[i], Place(higher, host_bridge), bridge=True, link=UNRECORDED)
        return Place(above, host_bridge)

    def _bare(self, name: str, place: Place, bridge: bool = False, link: LinkEnd | None = None) -> Function:
        """A function of which nothing but its place is known."""
        return Function(
            name,
            parent=place.parent,
            host_bridge=place.host_bridge,
            bridge=bridge,
            slot=self._slots.get(name[:-2]),
            link=link,
        )

    def _read(self, folder: Dir, name: str, place: Place) -> Function | None:
        """The function in a folder, None where it has neither a class nor an address for a name."""
        identity = identify(folder, self._identities, self.values)
        if not identity.has_class:
            if normalise(name) is None:
                self.values.count(MALFORMED, "device name")
                return None
            if absent(folder.read("class")):
                self.values.count(NOT_RECORDED, "class")
            return self._with_link(folder, name, place, identity)
        if identity.has_registers or (not _has_no_link(identity, place) and folder.has("current_link_speed")):
            return self._with_link(folder, name, place, identity)
        numa_node = self._numa(folder, name, identity)
        return Function(
            name, *identity.ids, identity.driver, numa_node, place.parent, place.host_bridge, self._slots.get(name[:-2])
        )

    def _with_link(self, folder: Dir, name: str, place: Place, identity: Identity) -> Function:
        bridge = identity.is_bridge
        asleep, link, config, aer = self._link(folder, identity)
        if identity.is_endpoint and link is not None:
            self._virtual_functions(folder, name)
        buses = self._bus_numbers(folder) if bridge and isinstance(place.parent, Unknown) else (None, None)
        answers: Reading[bool] = None
        if link is not None and not asleep:
            # What configuration space said may be of an earlier scan; all lanes at once say that nobody is there now.
            answers = not gone(link) and (not isinstance(config, Registers) or config.answers)
        if answers is False and _is_cold(folder):  # switched off by other hands than the kernel's own
            asleep, link, config = D3COLD, ASLEEP_LINK, ASLEEP_READING
        if asleep:
            answers = ASLEEP_READING
        elif answers is False:
            link = LOST_LINK
        if link is not None and identity.is_computing and identity.ids[0] == AMD and answers:
            self.loads.look(folder, name, identity.ids[1], self._is_slow(link, place))
        hidden = config if isinstance(config, Unknown) else None  # why the registers are not known
        said = config if isinstance(config, Registers) else Registers(True)
        return Function(
            name,
            *identity.ids,
            identity.driver,
            self._numa(folder, name, identity),
            place.parent,
            place.host_bridge,
            self._slots.get(name[:-2]),
            bridge=bridge,
            secondary_bus=buses[0],
            subordinate_bus=buses[1],
            port_type=said.port_type,
            link=link,
            aer=aer,
            acs=(hidden or said.acs) if bridge else said.acs,
            payload_bytes=hidden or said.payload_bytes,
            power=asleep,
            answers=answers,
            local_cpus=text(folder.read("local_cpulist")) if identity.is_computing else None,
        )

    def _link(
        self, folder: Dir, identity: Identity
    ) -> tuple[str | None, LinkEnd | None, Registers | Unknown | None, Aer | None]:
        """How the function sleeps, its link, registers and error counters. The link is None where the kernel offers
        none; what follows is then not asked for.

        The power state comes first, since reading the link of a device that sleeps would wake it.
        """
        power = folder.read("power/runtime_status")
        asleep = None
        if isinstance(power, bytes) and power.startswith(b"suspend"):  # suspended, suspending
            asleep = SUSPENDED
        elif power != _ACTIVE and _is_cold(folder):
            asleep = D3COLD
        if asleep:
            return asleep, ASLEEP_LINK, ASLEEP_READING if identity.has_registers else None, None
        speed, most = folder.read("current_link_speed"), folder.read("max_link_speed")
        width = folder.read("current_link_width")
        if absent(speed) and absent(most) and absent(width):
            return None, None, None, None
        config = self._registers(folder, identity.ids) if identity.has_registers else None
        target = config.target_speed_gts if isinstance(config, Registers) and config.answers else None
        lanes = folder.read("max_link_width")
        return None, self.values.link(speed, width, most, lanes, target), config, self.values.aer(folder)

    def _is_slow(self, link: LinkEnd, place: Place) -> bool:
        """Whether the link of an AMD GPU's card is slower than both of its ends can do."""
        port = self._bridge(place.parent)
        if is_slowed(link, port):
            return True
        upper = self._bridge(port.parent) if port is not None else None
        if upper is None or upper.vendor_id not in _AMD_BRIDGES or upper.link is None:
            return False
        return is_slowed(upper.link, self._bridge(upper.parent))  # the card's own bridges are between

    def _bridge(self, parent: Reading[str]) -> Function | None:
        return self.functions.get(parent) if isinstance(parent, str) else None

    def _bus_numbers(self, folder: Dir) -> tuple[int | None, int | None]:
        """Which buses a bridge leads to: where the links that tell ancestry are lost, these still do."""
        numbers = [text(folder.read(f"{name}_bus_number")) for name in ("secondary", "subordinate")]
        if all(one is not None and one.isdigit() for one in numbers):
            return int(numbers[0] or 0), int(numbers[1] or 0)
        data = folder.read_at("config", BUS_NUMBERS, 4)
        return (data[1], data[2]) if isinstance(data, bytes) and len(data) == 4 else (None, None)

    def _numa(self, folder: Dir, name: str, identity: Identity) -> Reading[int]:
        """The NUMA node. The kernel gives all functions of a bus the same one (drivers/pci/probe.c, pci_device_add), so
        that of bridges and parts of the processor the first tells; an administrator may have set an endpoint's own."""
        if identity.is_endpoint:
            return self.values.numa(folder)
        bus = name[:-5]
        if bus not in self._numa_of:
            self._numa_of[bus] = self.values.numa(folder)
        return self._numa_of[bus]

    def _registers(self, folder: Dir, kind: object) -> Registers | Unknown:
        # The daemon's directories remember what was made of configuration space while the device is there.
        memory: dict[str, Registers] = getattr(folder, "memory", {})
        if NAME in memory:
            return memory[NAME]
        if isinstance(folder, LiveDir) and folder.copied:
            # Of a copy the whole costs no more than a double word.
            copy = folder.read_at("config", 0, _CONFIG_BYTES)
            if isinstance(copy, bytes) and copy:
                return registers_in(copy, kind, self._layouts) or Unknown(MALFORMED, "config")
        refused: list[Refusal] = []

        def read(offset: int, size: int) -> bytes | None:
            data = folder.read_at("config", offset, size)
            if isinstance(data, Refusal):
                refused.append(data)
                return None
            return data

        config = registers(read, kind, self._layouts)
        if config is not None:
            memory[NAME] = config
            return config
        if not refused:
            return Unknown(MALFORMED, "config")
        return Unknown(NOT_RECORDED if refused[-1].why == NOT_THERE else refused[-1].why, "config")

    def _virtual_functions(self, folder: Dir, name: str) -> None:
        number = 0
        while folder.has(f"virtfn{number}"):
            target = folder.link(f"virtfn{number}")
            if isinstance(target, str):
                self._virtual[target.rpartition("/")[2]] = name
            number += 1


def _is_cold(folder: Dir) -> bool:
    """Whether the device has no power. The attribute is newer than runtime power management (Linux 5.9)."""
    return text(folder.read("power_state")) == D3COLD


def _has_no_link(identity: Identity, place: Place) -> bool:
    """Whether a function is one of the hundreds of small parts of a processor: on a root bus, so that no link is above
    it. The kernel has files for one all the same, which say "Unknown"."""
    return identity.is_system_part and place.parent is None


def _is_address(text: str) -> bool:
    """Whether a name is an address, at a fifth of what normalise() costs: each bus asks."""
    return (
        not text.strip(_ADDRESS_CHARACTERS)
        and text.count(":") == 2
        and text[-5:-4] == ":"
        and text[-4] in "01"  # of 32 devices
        and text[-2] == "."
        and text[-1] in "01234567"
    )
