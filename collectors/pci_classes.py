"""Names of PCI classes, as lspci prints them, and the class code that each stands for.

Source: the class list of pci.ids (https://pci-ids.ucw.cz), and spellings that older editions of it had.
"""

from __future__ import annotations

import re

# Base class and subclass -> name.
_NAMES = {
    0x0000: "Non-VGA unclassified device",
    0x0001: "VGA compatible unclassified device",
    0x0005: "Image coprocessor",
    0x0100: "SCSI storage controller",
    0x0101: "IDE interface",
    0x0102: "Floppy disk controller",
    0x0103: "IPI bus controller",
    0x0104: "RAID bus controller",
    0x0105: "ATA controller",
    0x0106: "SATA controller",
    0x0107: "Serial Attached SCSI controller",
    0x0108: "Non-Volatile memory controller",
    0x0109: "Universal Flash Storage controller",
    0x0180: "Mass storage controller",
    0x0200: "Ethernet controller",
    0x0201: "Token ring network controller",
    0x0202: "FDDI network controller",
    0x0203: "ATM network controller",
    0x0204: "ISDN controller",
    0x0205: "WorldFip controller",
    0x0206: "PICMG controller",
    0x0207: "Infiniband controller",
    0x0208: "Fabric controller",
    0x0280: "Network controller",
    0x0300: "VGA compatible controller",
    0x0301: "XGA compatible controller",
    0x0302: "3D controller",
    0x0380: "Display controller",
    0x0400: "Multimedia video controller",
    0x0401: "Multimedia audio controller",
    0x0402: "Computer telephony device",
    0x0403: "Audio device",
    0x0480: "Multimedia controller",
    0x0500: "RAM memory",
    0x0501: "FLASH memory",
    0x0502: "CXL",
    0x0580: "Memory controller",
    0x0600: "Host bridge",
    0x0601: "ISA bridge",
    0x0602: "EISA bridge",
    0x0603: "MicroChannel bridge",
    0x0604: "PCI bridge",
    0x0605: "PCMCIA bridge",
    0x0606: "NuBus bridge",
    0x0607: "CardBus bridge",
    0x0608: "RACEway bridge",
    0x0609: "Semi-transparent PCI-to-PCI bridge",
    0x060A: "InfiniBand to PCI host bridge",
    0x0680: "Bridge",
    0x0700: "Serial controller",
    0x0701: "Parallel controller",
    0x0702: "Multiport serial controller",
    0x0703: "Modem",
    0x0704: "GPIB controller",
    0x0705: "Smard Card controller",
    0x0780: "Communication controller",
    0x0800: "PIC",
    0x0801: "DMA controller",
    0x0802: "Timer",
    0x0803: "RTC",
    0x0804: "PCI Hot-plug controller",
    0x0805: "SD Host controller",
    0x0806: "IOMMU",
    0x0880: "System peripheral",
    0x0899: "Timing Card",
    0x0900: "Keyboard controller",
    0x0901: "Digitizer Pen",
    0x0902: "Mouse controller",
    0x0903: "Scanner controller",
    0x0904: "Gameport controller",
    0x0980: "Input device controller",
    0x0A00: "Generic Docking Station",
    0x0A80: "Docking Station",
    0x0B00: "386",
    0x0B01: "486",
    0x0B02: "Pentium",
    0x0B10: "Alpha",
    0x0B20: "Power PC",
    0x0B30: "MIPS",
    0x0B40: "Co-processor",
    0x0C00: "FireWire (IEEE 1394)",
    0x0C01: "ACCESS Bus",
    0x0C02: "SSA",
    0x0C03: "USB controller",
    0x0C04: "Fibre Channel",
    0x0C05: "SMBus",
    0x0C06: "InfiniBand",
    0x0C07: "IPMI Interface",
    0x0C08: "SERCOS interface",
    0x0C09: "CANBUS",
    0x0C80: "Serial bus controller",
    0x0D00: "IRDA controller",
    0x0D01: "Consumer IR controller",
    0x0D10: "RF controller",
    0x0D11: "Bluetooth",
    0x0D12: "Broadband",
    0x0D20: "802.1a controller",
    0x0D21: "802.1b controller",
    0x0D80: "Wireless controller",
    0x0E00: "I2O",
    0x0F01: "Satellite TV controller",
    0x0F02: "Satellite audio communication controller",
    0x0F03: "Satellite voice communication controller",
    0x0F04: "Satellite data communication controller",
    0x1000: "Network and computing encryption device",
    0x1010: "Entertainment encryption device",
    0x1080: "Encryption controller",
    0x1100: "DPIO module",
    0x1101: "Performance counters",
    0x1110: "Communication synchronizer",
    0x1120: "Signal processing management",
    0x1180: "Signal processing controller",
    0x1200: "Processing accelerators",
    0x1201: "SNIA Smart Data Accelerator Interface (SDXI) controller",
}

# Base class -> name: lspci prints it, with the number in brackets, where it knows no name of the subclass.
_BASE_NAMES = {
    0x00: "Unclassified device",
    0x01: "Mass storage controller",
    0x02: "Network controller",
    0x03: "Display controller",
    0x04: "Multimedia controller",
    0x05: "Memory controller",
    0x06: "Bridge",
    0x07: "Communication controller",
    0x08: "Generic system peripheral",
    0x09: "Input device controller",
    0x0A: "Docking station",
    0x0B: "Processor",
    0x0C: "Serial bus controller",
    0x0D: "Wireless controller",
    0x0E: "Intelligent controller",
    0x0F: "Satellite communications controller",
    0x10: "Encryption controller",
    0x11: "Signal processing controller",
    0x12: "Processing accelerators",
    0x13: "Non-Essential Instrumentation",
    0x40: "Coprocessor",
    0xFF: "Unassigned class",
}

# Spellings of older editions.
_OLD_NAMES = {
    "ipmi smic interface": 0x0C07,
    "ipmi kcs interface": 0x0C07,
    "system management bus": 0x0C05,
    "high definition audio controller": 0x0403,
    "non-volatile memory": 0x0108,
    "sas controller": 0x0107,
    "raid controller": 0x0104,
    "nubus": 0x0606,
    "smart card controller": 0x0705,
    "unknown class": 0xFF00,
}

_NUMBER = re.compile(r"(?:\[|^(?:class )?)([0-9a-f]{4})\]?$")
_codes: dict[str, int] = {}


def class_code_of(name: str, prog_if: int = 0) -> int | None:
    """The 24-bit class code of a class name from lspci ("3D controller" is 0x030200), None for no class.

    A number in brackets behind the name ("3D controller [0302]") or in its place ("Class 0302", "0302") wins, since
    names differ between editions. prog_if: the programming interface, where the text gives it.
    """
    text = name.strip().lower()
    number = _NUMBER.search(text)
    if number:
        return int(number[1], 16) << 8 | prog_if
    if not _codes:
        _codes.update({base.lower(): number << 8 for number, base in _BASE_NAMES.items()})
        _codes.update(_OLD_NAMES)
        # Last: where a subclass has the name of its base class, lspci without a number means the subclass.
        _codes.update({label.lower(): number for number, label in _NAMES.items()})
    code = _codes.get(text)
    return None if code is None else code << 8 | prog_if
