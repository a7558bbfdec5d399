"""PCI functions and their links from sysfs (/sys/bus/pci), read as little as possible.

`uevent` gives class, ids and driver in one read; virtual functions are known from their physical function's
`virtfn` links and never opened; of configuration space only the double words that matter are read, and only
where this process may. Attributes as in the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache

from gpu_topo.collectors.config_space import ConfigSpace, needed, needed_of
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.pci import Aer, Function, LinkEnd
from gpu_topo.model.reading import ASLEEP, LOST, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Answer, Dir, LiveDir, Refusal, Source, Target

NAME = "pcie"
DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"

_NETWORK, _DISPLAY, _STORAGE, _BRIDGE, _PROCESSING, _ACCELERATOR = 0x02, 0x03, 0x01, 0x06, 0x0B, 0x12
_ENDPOINTS = frozenset({_NETWORK, _DISPLAY, _STORAGE, _PROCESSING, _ACCELERATOR})
# Classes whose configuration space holds something a rule looks at (ACS of bridges, payload of endpoints).
_WORTH_CONFIG = frozenset({_NETWORK, _DISPLAY, _BRIDGE, _PROCESSING, _ACCELERATOR})
BUS_NUMBERS = 0x18  # configuration space: primary, secondary and subordinate bus number of a bridge
_NO_LANES = 63  # what a function that no longer answers shows: all bits set
_MOST_LANES = 32
_CONFIG_BYTES = 4096


def collect(source: Source, context: Context) -> Facts:
    """All PCI functions of a machine. Never raises on what a file holds; each unreadable value is counted."""
    begun = time.monotonic()
    names = source.list(DEVICES)
    if isinstance(names, Refusal):
        status = {NOT_THERE: ABSENT, "denied": DENIED}.get(names.why, FAILED)
        detail = f"{DEVICES}: {names.error or names.why}"
        return Facts(SourceStatus(NAME, status, detail, time.monotonic() - begun))
    scan = _Scan(source, context)
    for name in names:
        scan.visit(name)
    functions = scan.finish()
    problems = sum(scan.unread.values())
    detail = f"{len(functions)} functions"
    if problems:
        detail += f", {problems} values not readable"
    answer = SourceStatus(NAME, PARTIAL if problems else OK, detail, time.monotonic() - begun)
    return Facts(answer, functions=tuple(functions.values()), unread=scan.unread)


class _Scan:
    """One pass over the devices folder."""

    def __init__(self, source: Source, context: Context) -> None:
        self._source = source
        self._exclude = context.exclude
        self._functions: dict[str, Function] = {}
        self._virtual: dict[str, str] = {}  # virtual function -> its physical function
        self._numa_of: dict[str, Reading[int]] = {}  # bus -> NUMA node
        self._places: dict[str, tuple[Reading[str], str | None]] = {}  # folder -> the bridge above, the host bridge
        self._config = True  # until it is denied: then none of it is readable
        self.unread: dict[str, int] = {}

    def count(self, why: str, what: str) -> None:
        self.unread[f"{why}: {what}"] = self.unread.get(f"{why}: {what}", 0) + 1

    def visit(self, name: str) -> None:
        """Read one function, unless it is excluded or virtual."""
        if name in self._exclude:
            return
        path = f"{DEVICES}/{name}"
        physical = self._virtual.get(name)
        if physical is not None:
            # It hangs where its physical function does (drivers/pci/iov.c, pci_iov_add_virtfn).
            above = self._functions.get(physical)
            parent, host_bridge = (above.parent, above.host_bridge) if above else self._ancestry(path, name)
            self._functions[name] = Function(
                name,
                vendor_id=above.vendor_id if above else None,
                class_code=above.class_code if above else None,
                driver=Unknown(NOT_RECORDED, "virtual functions are not opened"),
                numa_node=above.numa_node if above else None,
                parent=parent,
                host_bridge=host_bridge,
                virtual_function=True,
                physical_function=physical,
            )
            return
        parent, host_bridge = self._ancestry(path, name)
        folder = self._source.dir(path)
        if isinstance(folder, Refusal):
            # It went away between the listing and now, or may not be entered.
            if folder.why != NOT_THERE:
                self.count(folder.why, "device folder")
                self._functions[name] = Function(name, parent=parent, host_bridge=host_bridge)
            return
        with folder:
            self._functions[name] = self._read(folder, name, parent, host_bridge)

    def _ancestry(self, path: str, name: str) -> tuple[Reading[str], str | None]:
        """The bridge above and the host bridge, from where the device's link points to."""
        target = self._source.link(path)
        if isinstance(target, Refusal):
            # Copies that lost their symbolic links are flat folders: nothing is known of what is above.
            return Unknown(NOT_RECORDED, path), None
        folder = target.rstrip("/").rpartition("/")[0]
        if folder not in self._places:
            self._places[folder] = self._place(folder)
        return self._places[folder]

    def _place(self, folder: str) -> tuple[Reading[str], str | None]:
        steps = folder.split("/")
        above = steps[-1]
        # The last one counts: Intel's VMD puts a root bus of its own below a function of another.
        host_bridge = next((step for step in reversed(steps) if step.startswith("pci") and ":" in step), None)
        if above.startswith("pci") or not _is_address(above):
            return (None if host_bridge == above else Unknown(NOT_RECORDED, folder)), host_bridge
        for i in range(len(steps) - 1, 0, -1):
            # A bridge that the tree names but does not hold still has its place above the others.
            if not _is_address(steps[i]) or steps[i] in self._functions:
                break
            higher: Reading[str] = steps[i - 1] if _is_address(steps[i - 1]) else None
            self._functions[steps[i]] = Function(
                steps[i], parent=higher, host_bridge=host_bridge, bridge=True, link=_UNRECORDED
            )
        return above, host_bridge

    def _read(self, folder: Dir, name: str, parent: Reading[str], host_bridge: str | None) -> Function:
        event = _pairs(folder.read("uevent"))
        class_code = _hex(event.get("PCI_CLASS")) if "PCI_CLASS" in event else self._id(folder, "class")
        vendor, device = _two_hex(event.get("PCI_ID"))
        if vendor is None:
            vendor, device = self._id(folder, "vendor"), self._id(folder, "device")
        sub_vendor, sub_device = _two_hex(event.get("PCI_SUBSYS_ID"))
        if sub_vendor is None and "PCI_ID" not in event:
            sub_vendor, sub_device = self._id(folder, "subsystem_vendor"), self._id(folder, "subsystem_device")
        driver: Reading[str] = event.get("DRIVER")
        if driver is None and "PCI_ID" not in event:
            driver = self._driver(folder)
        base = (class_code or 0) >> 16
        bridge = base == _BRIDGE and ((class_code or 0) >> 8) & 0xFF in (0x04, 0x09)
        power, link = self._power_and_link(folder, base)
        asleep = power in ("suspended", "suspending")
        aer = None if asleep or link is None else self._aer(folder)
        registers: Reading[ConfigSpace] = None
        if link is not None and base in _WORTH_CONFIG:
            registers = _asleep if asleep else self._registers(folder)
        config = known(registers)
        if not bridge and link is not None and base in _ENDPOINTS:
            self._virtual_functions(folder, name)
        buses = self._bus_numbers(folder) if bridge and isinstance(parent, Unknown) else (None, None)
        answers: Reading[bool] = None
        if link is not None and not asleep:
            answers = not _gone(link)
        if asleep:
            answers = Unknown(ASLEEP, "power/runtime_status")
        elif config is not None:
            answers = config.answers
        if answers is False:
            link = _LOST_LINK
        return Function(
            address=name,
            vendor_id=vendor,
            device_id=device,
            class_code=class_code,
            subsystem_vendor_id=sub_vendor,
            subsystem_device_id=sub_device,
            driver=driver,
            numa_node=self._numa(folder) if base in _ENDPOINTS else self._numa_of_bus(folder, name),
            parent=parent,
            host_bridge=host_bridge,
            bridge=bridge,
            secondary_bus=buses[0],
            subordinate_bus=buses[1],
            port_type=config.port_type if config is not None else None,
            link=_with_target(link, config),
            aer=aer,
            acs=registers if isinstance(registers, Unknown) and bridge else config.acs if config else None,
            payload_bytes=config.payload_bytes if config is not None else None,
            max_payload_bytes=config.max_payload_bytes if config is not None else None,
            power="suspended" if asleep else None,
            answers=answers,
            local_cpus=_text(folder.read("local_cpulist")) if base in (_DISPLAY, _ACCELERATOR, _PROCESSING) else None,
        )

    def _id(self, folder: Dir, name: str) -> int | None:
        data = folder.read(name)
        if isinstance(data, Refusal):
            if data.why != NOT_THERE:
                self.count(data.why, name)
            return None
        value = _hex(data.decode("ascii", "replace").strip())
        if value is None:
            self.count(MALFORMED, name)
        return value

    def _bus_numbers(self, folder: Dir) -> tuple[int | None, int | None]:
        """Which buses a bridge leads to: where the links that tell ancestry are lost, these still do."""
        numbers = [_text(folder.read(f"{name}_bus_number")) for name in ("secondary", "subordinate")]
        if all(number is not None and number.isdigit() for number in numbers):
            return int(numbers[0] or 0), int(numbers[1] or 0)
        data = folder.read_at("config", BUS_NUMBERS, 4)
        return (data[1], data[2]) if isinstance(data, bytes) and len(data) == 4 else (None, None)

    def _driver(self, folder: Dir) -> Reading[str]:
        target = folder.link("driver")
        if isinstance(target, Refusal):
            return None if target.why == NOT_THERE else Unknown(target.why, "driver")
        return target.rsplit("/", 1)[-1]

    def _numa_of_bus(self, folder: Dir, name: str) -> Reading[int]:
        """The NUMA node of a bridge or a part of the processor: the kernel gives all functions of a bus the same one
        (drivers/pci/probe.c, pci_device_add), so it is read of the first."""
        bus = name.rpartition(":")[0]
        if bus not in self._numa_of:
            self._numa_of[bus] = self._numa(folder)
        return self._numa_of[bus]

    def _numa(self, folder: Dir) -> Reading[int]:
        data = folder.read("numa_node")
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return None
            self.count(data.why, "numa_node")
            return Unknown(data.why, "numa_node")
        try:
            number = int(data)
        except ValueError:
            self.count(MALFORMED, "numa_node")
            return Unknown(MALFORMED, "numa_node")
        return number if number >= 0 else Unknown(NO_DATA, "numa_node is -1")

    def _power_and_link(self, folder: Dir, base: int) -> tuple[str | None, LinkEnd | None]:
        """The runtime power state and the link; None where the kernel offers none (conventional PCI, root complex).

        The power state comes first, since reading the link of a device that sleeps would wake it. The many small parts
        of a processor have no link, which is seen without opening a file: as a symbolic link, which it is not, it is
        asked for, and only what is absent says so.
        """
        if base not in _WORTH_CONFIG and _absent(folder.link("current_link_speed")):
            return None, None
        power = _text(folder.read("power/runtime_status"))
        if power in ("suspended", "suspending"):
            return power, _ASLEEP_LINK
        speed, most = folder.read("current_link_speed"), folder.read("max_link_speed")
        if _absent(speed) and _absent(most):
            return power, None
        return power, LinkEnd(
            self._speed(speed, "current_link_speed"),
            self._width(folder.read("current_link_width"), "current_link_width"),
            self._speed(most, "max_link_speed"),
            self._width(folder.read("max_link_width"), "max_link_width"),
        )

    def _speed(self, data: Answer, name: str) -> Reading[float]:
        """'16.0 GT/s PCIe', '8 GT/s', '2.5 GT/s' in GT/s; 'Unknown' has no data."""
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, name)
            self.count(data.why, name)
            return Unknown(data.why, name)
        known = _SPEEDS.get(data)
        if known is not None:
            return known
        text = data.decode("ascii", "replace").strip()
        if text.lower().startswith("unknown"):
            return Unknown(NO_DATA, name)
        try:
            value = float(text.split(" ", 1)[0])
        except ValueError:
            value = 0.0
        if "GT/s" not in text or not 2.5 <= value <= 256:
            self.count(MALFORMED, name)
            return Unknown(MALFORMED, name)
        return value

    def _width(self, data: Answer, name: str) -> Reading[int]:
        """Lanes; 0 means that no link is up, 63 and 255 that nothing answers."""
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, name)
            self.count(data.why, name)
            return Unknown(data.why, name)
        try:
            value = int(data)
        except ValueError:
            self.count(MALFORMED, name)
            return Unknown(MALFORMED, name)
        if 1 <= value <= _MOST_LANES:
            return value
        if value == 0:
            return Unknown(NO_DATA, f"{name} is 0")
        if value in (_NO_LANES, 255):
            return Unknown(LOST, f"{name} is {value}")
        self.count(MALFORMED, name)
        return Unknown(MALFORMED, f"{name} is {value}")

    def _aer(self, folder: Dir) -> Aer | None:
        correctable = self._errors(folder, "aer_dev_correctable")
        if correctable is None:
            return None
        return Aer(
            correctable, self._errors(folder, "aer_dev_nonfatal"), self._errors(folder, "aer_dev_fatal"), sticky=False
        )

    def _errors(self, folder: Dir, name: str) -> Reading[Mapping[str, int]]:
        data = folder.read(name)
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return None
            self.count(data.why, name)
            return Unknown(data.why, name)
        # The last line is the total: where it is 0, the twenty lines above it need no parsing.
        if data.endswith(b" 0\n") and b"\nTOTAL_ERR_" in data:
            return {}
        counts = {}
        for line in data.decode("ascii", "replace").splitlines():
            kind, _, number = line.strip().rpartition(" ")
            if kind and not kind.startswith("TOTAL_ERR") and number.isdigit() and number != "0":
                counts[kind] = int(number)
        return counts

    def _registers(self, folder: Dir) -> ConfigSpace | Unknown:
        # The daemon's directories remember what was made of configuration space while the device is there.
        memory: dict[str, ConfigSpace] = getattr(folder, "memory", {})
        if NAME in memory:
            return memory[NAME]
        if not self._config:
            return Unknown(DENIED, "config")
        if isinstance(folder, LiveDir) and folder.copied:
            # Of a copy the whole costs no more than a double word.
            copy = folder.read_at("config", 0, _CONFIG_BYTES)
            if isinstance(copy, bytes) and copy:
                return needed_of(copy) or Unknown(MALFORMED, "config")
        refused: list[Refusal] = []

        def read(offset: int, size: int) -> bytes | None:
            data = folder.read_at("config", offset, size)
            if isinstance(data, Refusal):
                refused.append(data)
                return None
            return data

        config = needed(read)
        if config is not None:
            memory[NAME] = config
            return config
        if not refused:
            return Unknown(MALFORMED, "config")
        self._config = refused[-1].why != DENIED
        return Unknown(NOT_RECORDED if refused[-1].why == NOT_THERE else refused[-1].why, "config")

    def _virtual_functions(self, folder: Dir, name: str) -> None:
        number = 0
        while True:
            target = folder.link(f"virtfn{number}")
            if isinstance(target, Refusal):
                return
            self._virtual[target.rsplit("/", 1)[-1]] = name
            number += 1

    def finish(self) -> dict[str, Function]:
        """The functions with their slots, in address order."""
        slots = self._slots()
        if slots:
            for address, function in self._functions.items():
                label = slots.get(address.rsplit(".", 1)[0])
                if label is not None:
                    self._functions[address] = function._replace(slot=label)
        return self._functions

    def _slots(self) -> dict[str, str]:
        """Physical slot labels by address without function."""
        names = self._source.list(SLOTS)
        if isinstance(names, Refusal):
            return {}
        labels = {}
        for name in names:
            address = _text(self._source.read(f"{SLOTS}/{name}/address"))
            if address:
                labels[address.lower()] = name
        return labels


_SPEEDS = {
    text.encode() + b"\n": value
    for value in (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
    for text in (f"{value} GT/s PCIe", f"{value:g} GT/s", f"{value} GT/s")
}
_unrecorded = Unknown(NOT_RECORDED, "the port is not in the recording")
_UNRECORDED = LinkEnd(_unrecorded, _unrecorded, _unrecorded, _unrecorded)
_asleep = Unknown(ASLEEP, "power/runtime_status")
_ASLEEP_LINK = LinkEnd(_asleep, _asleep, _asleep, _asleep)
_lost = Unknown(LOST, "config")
_LOST_LINK = LinkEnd(_lost, _lost, _lost, _lost)


def _gone(link: LinkEnd) -> bool:
    """Whether the attributes show a function that answers all ones: width 63 (or 255) is no width."""
    width = link.width
    return isinstance(width, Unknown) and width.why == LOST


def _with_target(link: LinkEnd | None, config: ConfigSpace | None) -> LinkEnd | None:
    if link is None or config is None or config.link is None or not config.answers:
        return link
    return link._replace(target_speed_gts=config.link.target_speed_gts)


def _absent(answer: Answer | Target) -> bool:
    return isinstance(answer, Refusal) and answer.why == NOT_THERE


def _is_address(text: str) -> bool:
    return text.count(":") == 2 and "." in text


def _pairs(data: Answer) -> dict[str, str]:
    if isinstance(data, Refusal):
        return {}
    found = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        key, mark, value = line.partition("=")
        if mark:
            found[key] = value
    return found


def _text(data: Answer) -> str | None:
    return None if isinstance(data, Refusal) else data.decode("utf-8", "replace").strip()


def _hex(text: str | None) -> int | None:
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _two_hex(text: str | None) -> tuple[int | None, int | None]:
    """'10DE:2330' as two numbers."""
    if not text or ":" not in text:
        return None, None
    first, second = text.split(":", 1)
    return _hex(first), _hex(second)
