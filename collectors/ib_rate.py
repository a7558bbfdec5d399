"""The words of RDMA ports that sysfs, ibstat, ibstatus and ibv_devinfo share: rates, states and transports."""

from __future__ import annotations

_UNITS = {"k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3}  # Gb/s of one unit, by its first letter
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/"
_DIGITS = "0123456789"
_LONGEST = 14  # characters of a number that could be a rate

INFINIBAND = "infiniband"
ROCE = "roce"
IWARP = "iwarp"
EFA = "efa"
SOFTWARE = "software"

# Kernel modules and the device names that they give; both work in tools that print only one of them.
_SOFTWARE_PREFIXES = ("rxe", "siw", "rdma_rxe")
_IWARP_PREFIXES = ("i40iw", "iw_cxgb", "cxgb", "erdma", "iwp", "nes")
_TWO_FACED_PREFIXES = ("irdma", "qedr")  # iWARP or RoCE, as the node type says
_AMAZON = 0x1D0F


def parse_rate(text: str) -> tuple[float | None, int | None, str | None]:
    """Gb/s, lanes and speed name of a rate in any spelling; None for each that the text does not give.

    Nothing is looked up: names and widths of later generations pass through as they are. A port that is down, and
    a kernel older than its card, print placeholders ("10 Gb/sec (4X SDR)"), which are returned as read.
    """
    # "400 Gb/sec (4X NDR)", "10 Gb/sec (4X)", "25Gb/s": a number, a unit, and in brackets lanes and the lane's speed.
    head, opened, bracket = text.partition("(")
    words = head.split()
    number = words[0].rstrip(_LETTERS) if words else ""
    if not number.replace(".", "", 1).isdecimal() or len(number) > _LONGEST:
        return None, None, None
    unit = words[0][len(number) :] or (words[1] if len(words) > 1 else "")
    factor = _UNITS.get(unit[0].lower()) if unit[:1].isalpha() else 1.0
    gbps = None if factor is None else round(float(number) * factor, 6)
    if gbps == 0:
        gbps = None  # no port runs at 0 Gb/s: the driver has no figure
    lanes: int | None = None
    speed: str | None = None
    for word in bracket.partition(")")[0].upper().split() if opened else ():
        if word[-1] == "X" and word[:-1].isdecimal() and len(word) < 5:
            lanes = int(word[:-1]) or None
        elif len(name := word.rstrip(_DIGITS)) > 2 and name.endswith("DR"):
            speed = word
    return gbps, lanes, speed


def parse_state(text: str) -> str | None:
    """The name in "4: ACTIVE", "5: LinkUp", "PORT_ACTIVE (4)" or "Active"; None where there is none."""
    number, colon, rest = text.partition(":")
    name = (rest if colon and number.strip().removeprefix("0x").isdecimal() else text).strip()
    if name.endswith(")"):
        before, _, code = name[:-1].rpartition("(")
        if code.removeprefix("-").isdecimal():
            name = before.strip()
    return name if name and not name.isdigit() and name.strip("<>").lower() not in ("unknown", "n/a") else None


def port_state(text: str) -> str | None:
    """The logical state in the kernel's words: DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER.

    ibstat says "Initializing" for INIT, libibverbs' tools put PORT_ in front.
    """
    name = parse_state(text)
    if name is None:
        return None
    word = name.upper().replace(" ", "_").removeprefix("PORT_")
    return "INIT" if word.startswith("INIT") else word


def is_software(device: str, driver: str | None = None) -> bool:
    """Whether an RDMA device is emulated on a network interface (Soft-RoCE, Soft-iWARP)."""
    return device.startswith(_SOFTWARE_PREFIXES) or (driver or "").startswith(_SOFTWARE_PREFIXES)


def transport(
    device: str,
    link_layer: str | None,
    node_type: str | None = None,
    driver: str | None = None,
    hca_type: str | None = None,
    vendor_id: int | None = None,
) -> str | None:
    """infiniband, roce, iwarp, efa or software; None where the evidence does not tell.

    node_type is sysfs' "4: RNIC" or the transport line of ibv_devinfo ("iWARP (1)"); driver the kernel module.
    """
    told = tuple(word.lower() for word in (driver, hca_type, device) if word)
    node = (node_type or "").lower()
    if is_software(device, driver):
        return SOFTWARE
    if vendor_id == _AMAZON or any(word.startswith("efa") for word in told):
        return EFA
    if "rnic" in node or "iwarp" in node or any(word.startswith(_IWARP_PREFIXES) for word in told):
        return IWARP
    layer = (link_layer or "").lower()
    if layer == "infiniband":
        return INFINIBAND
    if layer == "ethernet" and (node or not any(word.startswith(_TWO_FACED_PREFIXES) for word in told)):
        return ROCE
    return None
