"""PCI functions and their links from sysfs (/sys/bus/pci), read as little as possible.

`uevent` gives class, ids and driver in one read; virtual functions are known from their physical function's
`virtfn` links and never opened; of configuration space only the double words that matter are read, and only
where this process may. Attributes as in the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import time

from gpu_topo.collectors.config_space import ConfigSpace, needed, needed_of
from gpu_topo.collectors.context import Context
from gpu_topo.collectors.pcie_values import (
    ASLEEP_READING,
    LOST_LINK,
    UNRECORDED,
    Values,
    absent,
    gone,
    number,
    pairs,
    text,
    two_hex,
)
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.pci import Function, LinkEnd
from gpu_topo.model.reading import ASLEEP, MALFORMED, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Dir, LiveDir, Refusal, Source

NAME = "pcie"
DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"

_NETWORK, _DISPLAY, _STORAGE, _BRIDGE, _PROCESSING, _ACCELERATOR = 0x02, 0x03, 0x01, 0x06, 0x0B, 0x12
_ENDPOINTS = frozenset({_NETWORK, _DISPLAY, _STORAGE, _PROCESSING, _ACCELERATOR})
# Classes whose configuration space holds something a rule looks at (ACS of bridges, payload of endpoints).
_WORTH_CONFIG = frozenset({_NETWORK, _DISPLAY, _BRIDGE, _PROCESSING, _ACCELERATOR})
BUS_NUMBERS = 0x18  # configuration space: primary, secondary and subordinate bus number of a bridge
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
    problems = sum(scan.values.unread.values())
    detail = f"{len(functions)} functions"
    if problems:
        detail += f", {problems} values not readable"
    answer = SourceStatus(NAME, PARTIAL if problems else OK, detail, time.monotonic() - begun)
    return Facts(answer, functions=tuple(functions.values()), unread=scan.values.unread)


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
        self.values = Values()

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
                self.values.count(folder.why, "device folder")
                self._functions[name] = Function(name, parent=parent, host_bridge=host_bridge)
            return
        with folder:
            function = self._read(folder, name, parent, host_bridge)
            nothing = function.class_code is None and function.vendor_id is None and function.link is None
            if nothing and absent(folder.read("class")):
                self.values.count(NOT_RECORDED, "class")  # an empty folder of a copy: a place without a part
        self._functions[name] = function

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
                steps[i], parent=higher, host_bridge=host_bridge, bridge=True, link=UNRECORDED
            )
        return above, host_bridge

    def _read(self, folder: Dir, name: str, parent: Reading[str], host_bridge: str | None) -> Function:
        event = pairs(folder.read("uevent"))
        class_code = number(event.get("PCI_CLASS")) if "PCI_CLASS" in event else self.values.id(folder, "class")
        vendor, device = two_hex(event.get("PCI_ID"))
        if vendor is None:
            vendor, device = self.values.id(folder, "vendor"), self.values.id(folder, "device")
        sub_vendor, sub_device = two_hex(event.get("PCI_SUBSYS_ID"))
        if sub_vendor is None and "PCI_ID" not in event:
            sub_vendor, sub_device = (
                self.values.id(folder, "subsystem_vendor"),
                self.values.id(folder, "subsystem_device"),
            )
        driver: Reading[str] = event.get("DRIVER")
        if driver is None and "PCI_ID" not in event:
            driver = self._driver(folder)
        base = (class_code or 0) >> 16
        bridge = base == _BRIDGE and ((class_code or 0) >> 8) & 0xFF in (0x04, 0x09)
        power, link = self.values.power_and_link(folder, small=base not in _WORTH_CONFIG)
        asleep = power in ("suspended", "suspending")
        aer = None if asleep or link is None else self.values.aer(folder)
        registers: Reading[ConfigSpace] = None
        if link is not None and base in _WORTH_CONFIG:
            registers = ASLEEP_READING if asleep else self._registers(folder)
        config = known(registers)
        if not bridge and link is not None and base in _ENDPOINTS:
            self._virtual_functions(folder, name)
        buses = self._bus_numbers(folder) if bridge and isinstance(parent, Unknown) else (None, None)
        answers: Reading[bool] = None
        if link is not None and not asleep:
            answers = not gone(link)
        if asleep:
            answers = Unknown(ASLEEP, "power/runtime_status")
        elif config is not None and answers is not False:
            # What configuration space said may be of an earlier scan; all lanes at once say that nobody is there now.
            answers = config.answers
        if answers is False:
            link = LOST_LINK
        return Function(
            address=name,
            vendor_id=vendor,
            device_id=device,
            class_code=class_code,
            subsystem_vendor_id=sub_vendor,
            subsystem_device_id=sub_device,
            driver=driver,
            numa_node=self.values.numa(folder) if base in _ENDPOINTS else self._numa_of_bus(folder, name),
            parent=parent,
            host_bridge=host_bridge,
            bridge=bridge,
            secondary_bus=buses[0],
            subordinate_bus=buses[1],
            port_type=config.port_type if config is not None else None,
            link=_with_target(link, config),
            aer=aer,
            acs=registers if isinstance(registers, Unknown) and bridge else config.acs if config else None,
            payload_bytes=registers if isinstance(registers, Unknown) else config.payload_bytes if config else None,
            max_payload_bytes=config.max_payload_bytes if config is not None else None,
            power="suspended" if asleep else None,
            answers=answers,
            local_cpus=text(folder.read("local_cpulist")) if base in (_DISPLAY, _ACCELERATOR, _PROCESSING) else None,
        )

    def _bus_numbers(self, folder: Dir) -> tuple[int | None, int | None]:
        """Which buses a bridge leads to: where the links that tell ancestry are lost, these still do."""
        numbers = [text(folder.read(f"{name}_bus_number")) for name in ("secondary", "subordinate")]
        if all(one is not None and one.isdigit() for one in numbers):
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
            self._numa_of[bus] = self.values.numa(folder)
        return self._numa_of[bus]

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
            address = text(self._source.read(f"{SLOTS}/{name}/address"))
            if address:
                labels[address.lower()] = name
        return labels


def _with_target(link: LinkEnd | None, config: ConfigSpace | None) -> LinkEnd | None:
    if link is None or config is None or config.link is None or not config.answers:
        return link
    return link._replace(target_speed_gts=config.link.target_speed_gts)


def _is_address(text: str) -> bool:
    return text.count(":") == 2 and "." in text
