"""Makes gpu_topo/catalogue/*.csv from a folder of reference tables: `python tools/make_catalogue.py FOLDER`.

The tables (gpus.csv, nics.csv, nic_psid.csv, nvswitches.csv, pcie_switches.csv, baseboards.csv) hold far more than
the product looks at. What comes out is sorted, holds the columns in use and the source of each row, and no field has
a comma or a quote in it, so that the product cuts a row at its commas without a parser.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

Row = Mapping[str, str]
OUT = Path(__file__).resolve().parents[1] / "gpu_topo" / "catalogue"
PCI_IDS = "pciutils/pciids:pci.ids (2023-04-10)"
GTS = {"1": "2.5", "2": "5", "3": "8", "4": "16", "5": "32", "6": "64"}

# PLX, IDT, Pericom, ASMedia: what pci.ids calls a switch of theirs is one, but for the endpoints in it.
SWITCH_VENDORS = ("10b5", "111d", "12d8", "1b21")
SWITCH_NAME = r"\b[Ss]witch\b"
NO_SWITCH_NAME = r"\bNT\d|DMA interface|Non-Transparent"

# Ports of Thunderbolt controllers. The link that a tunnel shows (2.5 GT/s x4, whatever it carries) is no real one, so
# that they are no switch and nothing is judged of them. The first controllers have one name for all their functions.
TUNNEL_VENDORS = ("1022", "8086")
TUNNEL_NAME = r"Thunderbolt(?: Controller \[|.*(?:Bridge|Root Port|tunnel))"

# Bridges that the tables lack: vendor, device, name, role. Names as in pci.ids or after the card that shows them
# (GPU cards with a switch of their own, seen in lspci and hwloc output of such machines).
MORE_BRIDGES = (
    ("1000", "02b2", "Virtual PCIe Placeholder Endpoint", "placeholder"),
    ("10de", "05b1", "NF200 PCIe 2.0 switch", "switch"),
    ("10de", "05b8", "NF200 PCIe 2.0 switch for GTX 295", "internal"),
    ("10de", "05be", "NF200 PCIe 2.0 switch for Quadro Plex and Tesla S", "switch"),
    ("8086", "4fa0", "DG2 Upstream Port of PCI Express Switch", "internal"),
    ("8086", "4fa1", "DG2 Upstream Port of PCI Express Switch", "internal"),
    ("8086", "4fa4", "DG2 Downstream Port of PCI Express Switch", "internal"),
    ("8086", "e2ff", "Battlemage Upstream Port of PCI Express Switch", "internal"),
    ("8086", "e2f0", "Battlemage Downstream Port of PCI Express Switch", "internal"),
    ("8086", "e2f1", "Battlemage Downstream Port of PCI Express Switch", "internal"),
    ("1002", "14a0", "Vega 20 Upstream Port of PCI Express Switch", "internal"),
    ("1002", "14a1", "Vega 20 Downstream Port of PCI Express Switch", "internal"),
    ("1022", "14c7", "Instinct MI200 internal bridge", "internal"),
    ("1022", "43b0", "X370 Series Chipset PCIe Upstream Port", "chipset"),
    ("1022", "43b1", "X399 Series Chipset PCIe Bridge", "chipset"),
    ("1022", "43b4", "300 Series Chipset PCIe Port", "chipset"),
    ("1022", "43c6", "400 Series Chipset PCIe Bridge", "chipset"),
    ("1022", "43c7", "400 Series Chipset PCIe Port", "chipset"),
    ("1022", "43e9", "500 Series Chipset Switch Upstream Port", "chipset"),
    ("1022", "43ea", "500 Series Chipset Switch Downstream Port", "chipset"),
    ("1022", "43f4", "600 Series Chipset PCIe Switch Upstream Port", "chipset"),
    ("1022", "43f5", "600 Series Chipset PCIe Switch Downstream Port", "chipset"),
    ("1022", "57a3", "Matisse PCIe GPP Bridge", "chipset"),
    ("1022", "57a4", "Matisse PCIe GPP Bridge", "chipset"),
    ("1022", "57ad", "Matisse Switch Upstream", "chipset"),
    ("1d17", "071f", "ZX-200 Upstream Port of PCI Express Switch", "chipset"),
    ("1d17", "0721", "ZX-200 Downstream Port of PCI Express Switch", "chipset"),
    ("8086", "37c0", "C620 Series Chipset internal upstream port", "chipset"),
    ("8086", "37c1", "C620 Series Chipset internal downstream port", "chipset"),
    ("8086", "37c2", "C620 Series Chipset internal downstream port", "chipset"),
    ("8086", "37c3", "C620 Series Chipset internal downstream port", "chipset"),
    ("8086", "37c4", "C620 Series Chipset internal downstream port", "chipset"),
    ("8086", "37c5", "C620 Series Chipset internal downstream port", "chipset"),
    ("8086", "1d3f", "C608/C606/X79 series chipset PCI Express Virtual Switch Port", "chipset"),
    ("8086", "1d74", "C608/C606/X79 series chipset PCI Express Upstream Port", "chipset"),
    ("8086", "3500", "6311ESB/6321ESB PCI Express Upstream Port", "chipset"),
    ("8086", "3501", "6310ESB PCI Express Upstream Port", "chipset"),
    ("8086", "3510", "6311ESB/6321ESB PCI Express Downstream Port E1", "chipset"),
    ("8086", "3511", "6310ESB PCI Express Downstream Port E1", "chipset"),
    ("8086", "3514", "6311ESB/6321ESB PCI Express Downstream Port E2", "chipset"),
    ("8086", "3515", "6310ESB PCI Express Downstream Port E2", "chipset"),
    ("8086", "3518", "6311ESB/6321ESB PCI Express Downstream Port E3", "chipset"),
    ("8086", "3519", "6310ESB PCI Express Downstream Port E3", "chipset"),
)

# Model names as the NVIDIA driver prints them, where the catalogue's own name differs by more than case and hyphens.
README = "NVIDIA/open-gpu-kernel-modules:README.md@015742d32fa615353199b11589ecaba828040859 (supported GPUs)"
DRIVER_NAMES = (
    ("A100 80GB PCIe", "20b5"),
    ("A100-PCIE-40GB", "20f1"),
    ("A100-SXM-64GB", "20b3"),
    ("A800 80GB PCIe", "20f5"),
    ("H100 80GB HBM3", "2330"),
    ("H100 NVL", "2321"),
    ("H100 PCIe", "2331"),
    ("H200", "2335"),
    ("H800", "2324"),
    ("H800 PCIe", "2322"),
    ("GH200 120GB", "2342"),
    ("GH200 480GB", "2342"),
    ("GeForce RTX 2080 Ti", "1e07"),
    ("GeForce RTX 2080", "1e87"),
    ("GeForce RTX 3050", "2507"),
    ("GeForce RTX 3060", "2503"),
    ("GeForce RTX 3080", "2216"),
    ("GeForce RTX 4060 Ti", "2805"),
    ("Quadro RTX 6000", "1e30"),
)
LATER_README = "NVIDIA/open-gpu-kernel-modules:README.md@580.119.02 (supported GPUs)"
LATER_DRIVER_NAMES = (("GB10", "2e12"),)
NEW_README = "NVIDIA/open-gpu-kernel-modules:README.md; a release that lists GB300 (supported GPUs)"
NEW_DRIVER_NAMES = (
    ("A100-PG509-200", "20b0"),
    ("A800 80GB PCIe LC", "20f5"),
    ("B200", "2901"),
    ("B200", "2909"),
    ("H100", "2339"),
    ("Quadro RTX 6000", "1e78"),
    ("Quadro RTX 8000", "1e78"),
    ("RTX PRO 4000 Blackwell SFF Edition", "2c33"),
    ("RTX PRO 5000 72GB Blackwell", "2bb3"),
    ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "2bb4"),
    ("RTX PRO 6000 Blackwell Server Edition", "2bb5"),
    ("RTX PRO 6000 Blackwell Workstation Edition", "2bb1"),
)
MN5 = "MareNostrum 5 hardware reference: 4x NVIDIA H100 64GB HBM2; the one H100 of 64 GB in pci.ids is 2337"
MN5_NAMES = (("H100 64GB HBM2", "2337"),)

# What newer editions of pci.ids than this machine's call the parts, in the brackets of their names.
NEW_PCI_IDS = "pciutils/pciids:pci.ids@c1c12547d626ebf05fd0223144ad87fab5e95d06 (2026-08-22)"
NEW_NAMES = (
    ("A2 / A16", "10de", "25b6"),
    ("AX800 Converged Accelerator", "10de", "20fd"),
    ("B100", "10de", "29bc"),
    ("B200", "10de", "2901"),
    ("B300 SXM6 AC", "10de", "3182"),
    ("Data Center GPU Flex 140", "8086", "56c1"),
    ("Data Center GPU Flex 170", "8086", "56c0"),
    ("GB10", "10de", "2e12"),
    ("GB300", "10de", "31c2"),
    ("GB300", "10de", "31c3"),
    ("GH100-88K-A1", "10de", "2345"),
    ("H100", "10de", "2336"),
    ("H100", "10de", "2339"),
    ("H100 96GB", "10de", "233d"),
    ("H100L 94GB", "10de", "2321"),
    ("H20 HBM3e", "10de", "232c"),
    ("H800L 94GB", "10de", "233a"),
    ("HGX B200 168GB", "10de", "2909"),
    ("HGX GB200", "10de", "2941"),
    ("RTX PRO 4000 Blackwell SFF Edition", "10de", "2c33"),
    ("RTX PRO 5000 Blackwell / RTX PRO 5000 72GB Blackwell", "10de", "2bb3"),
    ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "10de", "2bb4"),
    ("RTX PRO 6000 Blackwell Server Edition", "10de", "2bb5"),
    ("RTX PRO 6000 Blackwell Workstation Edition", "10de", "2bb1"),
    ("TS4 / B100", "10de", "2920"),
)

# Ports of USB4 and Thunderbolt chips that the edition of this machine lacks, as TUNNEL_NAME finds the others.
NEW_TUNNELS = (
    ("1b21", "2421", "ASM4242 PCIe Switch Upstream Port", "chipset"),
    ("1b21", "2423", "ASM4242 PCIe Switch Downstream Port", "chipset"),
    ("1b21", "2463", "ASM2464PD USB4 Device Controller 40G", "chipset"),
    ("8086", "1133", "Thunderbolt 4 Bridge [Maple Ridge 2C 2020]", "chipset"),
    ("8086", "5780", "JHL9580 Thunderbolt 5 80/120G Bridge [Barlow Ridge Host 80G 2023]", "chipset"),
    ("8086", "5783", "JHL9540 Thunderbolt 4 Bridge [Barlow Ridge Host 40G 2023]", "chipset"),
    ("8086", "5786", "JHL9480 Thunderbolt 5 80/120G Bridge [Barlow Ridge Hub 80G 2023]", "chipset"),
    ("8086", "57a4", "JHL9440 Thunderbolt 4 Bridge [Barlow Ridge Hub 40G 2023]", "chipset"),
)

# Graphics inside a processor or chipset, by the code names of pci.ids; its audio functions and bridges aside.
APU_NAMES = (
    "Barcelo|BeaverCreek|Carrizo|Cezanne|Cyan Skillfish|Granite Ridge|HawkPoint|Kabini|Kaveri|Krackan|Lucienne|"
    "Mendocino|Mullins|Phoenix|Picasso|Raphael|Raven|RC410M?|Rembrandt|Renoir|Richland|RS\\d{3}[A-Z]*|Stoney|Strix|"
    "Sumo|SuperSumo|Temash|"
    "Trinity|VanGogh|Wani|Wrestler"
)
NO_DISPLAY = "Audio|Bridge|Port|Coprocessor|Host"
MORE_DISPLAYS = (
    ("1002", "1114", "Krackan [Radeon 840M / 860M]", "apu"),
    ("1002", "13c0", "Granite Ridge", "apu"),
    ("1002", "150e", "Strix [Radeon 880M / 890M]", "apu"),
    ("1002", "1586", "Strix Halo [Radeon 8050S / 8060S]", "apu"),
    ("1002", "15bf", "Phoenix1", "apu"),
    ("1002", "15c8", "Phoenix2", "apu"),
    ("1002", "1900", "HawkPoint1", "apu"),
    ("1002", "1901", "HawkPoint2", "apu"),
    # ATI's graphics of server boards before the BMC had its own.
    ("1002", "4752", "Rage XL PCI", "management"),
    ("1002", "515e", "ES1000", "management"),
    ("1002", "515f", "ES1000", "management"),
    ("1002", "5969", "ES1000", "management"),
)
PCI_IDS_FILE = Path("/usr/share/misc/pci.ids")

ROLES = {
    "switch port": "switch",
    "switch port (upstream or downstream)": "switch",
    "switch port (upstream or downstream) plus management endpoint": "switch",
    "switch port inside a NIC, DPU or converged board": "internal",
    "switch port inside a NIC": "internal",
    "switch port inside a GPU": "internal",
    "internal switch port": "chipset",
    "CPU root port": "root",
    "bridge": "root",
    "virtual bridge": "virtual",
    "management endpoint": "management",
    "placeholder endpoint": "placeholder",
    "non-transparent or DMA endpoint": "management",
}


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table; a comma that its author forgot to quote belongs to the source column."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    header = lines[0]
    source = header.index("source")
    rows = []
    for line in lines[1:]:
        extra = len(line) - len(header)
        joined = ",".join(line[source : source + 1 + extra])
        rows.append(dict(zip(header, [*line[:source], joined, *line[source + 1 + extra :]], strict=True)))
    return rows


def plain(text: str) -> str:
    """Text without the characters that CSV would have to quote, and without numbers that mean nothing outside."""
    text = re.sub(r" \(index id \d+\)", "", text)
    return text.replace('"', "'").replace(", ", "; ").replace(",", ";").replace("\n", " ").strip()


def write(name: str, header: str, rows: Iterable[Iterable[str]]) -> None:
    """One table of the catalogue, sorted, one row a line."""
    lines = sorted({",".join(plain(field) for field in row) for row in rows})
    columns = header.count(",") + 1
    for line in lines:
        if line.count(",") + 1 != columns:
            raise SystemExit(f"{name}: {line} does not have {columns} columns")
    (OUT / name).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def once(rows: Iterable[tuple[str, ...]]) -> Iterable[tuple[str, ...]]:
    """Of rows that differ in nothing but their source, the last column, the first."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in rows:
        found.setdefault(row[:-1], row)
    return found.values()


def number(text: str) -> str:
    """The figure a cell begins with; nothing where it is announced only or depends on the board."""
    match = re.match(r"\d+(?:\.\d+)?", text)
    return "" if match is None or "announced" in text or "or lower" in text else match[0]


def gpu(row: Row) -> tuple[str, ...]:
    """The product's columns of one row of gpus.csv."""
    idle = row["idle_pcie_downshift"] if row["idle_confidence"] == "verified" else ""
    gts = GTS.get(row["pcie_max_gen"], "")
    return (
        row["vendor_id"],
        row["device_id"],
        row["subsystem_id"],
        row["name"].replace(" (alt id)", ""),
        row["arch"],
        row["form_factor"],
        row["market"],
        gts,
        row["pcie_max_lanes"],
        row["pcie_confidence"] if gts or row["pcie_max_lanes"] else "",
        row["fabric"],
        row["fabric_links"],
        number(row["gbps_per_link_per_dir"]),
        row["fabric_attach"],
        row["fabric_confidence"],
        # MI300A: processor and GPU share one package, so its host link is no PCIe link either.
        "yes" if row["c2c"] or row["form_factor"].startswith("APU") else "",
        idle,
        row["source"],
    )


def nic(row: Row) -> tuple[str, ...]:
    """The product's columns of one row of nics.csv."""
    role = {"nic": "nic", "dpu": "nic", "vf": "vf"}.get(row["role"], "management")
    gts = GTS.get(row["pcie_max_gen"], "")
    return (
        row["vendor_id"],
        row["device_id"],
        row["name"],
        role,
        gts,
        row["pcie_max_lanes"],
        row["spec_confidence"] if gts else "",
        number(row["port_max_gbps"]),
        row["source"],
    )


def bridge(row: Row) -> tuple[str, ...] | None:
    """One row of pcie_switches.csv; None for what is neither a bridge nor inside a switch."""
    role = ROLES.get(row["kind"])
    if role is None:
        return None
    # GPUs hang below the switch of a ConnectX-8: there it is the board's switch and not a bridge inside a card.
    if row["vendor_id"] == "15b3" and "PCIe Switch" in row["name"]:
        role = "switch"
    return row["vendor_id"], row["device_id"], row["name"], role, row["source"]


# Rates that a board is sold with, by what its documents call them: Gb/s of one port.
_RATE = re.compile(r"(\d+) ?(?:GbE|Gb/sec)|\b(HDR100|NDR200|HDR|NDR|XDR|EDR)\b")
_NAMED = {"EDR": 100, "HDR100": 100, "HDR": 200, "NDR200": 200, "NDR": 400, "XDR": 800}


def psid(row: Row) -> tuple[str, ...] | None:
    """One row of nic_psid.csv; None where the table has no rate."""
    text = row["port_speed_string_expected"] or row["max_speed"]
    if row["port_speed_string_expected"]:
        text = text.partition("(")[0]  # "400 Gb/sec (4X NDR)": the number decides, the name is of a lane
    rates = [int(figure) if figure else _NAMED[name] for figure, name in _RATE.findall(text)]
    return (row["psid"], str(max(rates)), row["source"]) if rates else None


def baseboard(row: Row) -> tuple[str, ...] | None:
    """One row of baseboards.csv; None where it is not one board with a number of GPUs."""
    if not row["gpus"].isdigit():
        return None
    ids = " ".join(part if ":" in part else f"10de:{part}" for part in row["gpu_device_ids"].split(","))
    ids = re.sub(r"\b10de:(7[0-9a-f]{3})\b", r"1002:\1", ids)
    fabric = row["fabric"].lower()
    if "cube" in fabric:
        kind = "cube-mesh"
    elif "rack" in fabric:
        kind = "rack"
    elif fabric.startswith("nvswitch"):
        kind = "nvswitch"
    elif "bridge" in fabric:
        kind = "bridge"
    else:
        kind = "ring" if "ring" in fabric else "mesh"
    # NVSwitches of the fourth generation and those of a rack are no PCI devices of the node.
    visible = "" if kind not in ("nvswitch", "rack") else "no" if kind == "rack" or "gen 4" in fabric else "yes"
    return (
        row["baseboard"],
        row["gpus"],
        ids,
        kind,
        row["switch_chips"] if kind != "rack" and row["switch_chips"].isdigit() else "",
        visible,
        row["source"],
    )


def pci_ids(vendor: str) -> list[tuple[str, str]]:
    """The devices of one vendor in pci.ids: device id, name."""
    text = PCI_IDS_FILE.read_text(encoding="utf-8", errors="replace")
    block = re.split(r"\n(?=[0-9a-fC])", text.partition(f"\n{vendor}  ")[2], maxsplit=1)[0]
    return re.findall(r"^\t([0-9a-f]{4})  (.*)$", block, re.MULTILINE)


def model(name: str) -> str:
    """The part in brackets of "AD102 [GeForce RTX 4090]", else the whole name."""
    found = re.search(r"\[([^\[\]]+)\]$", name)
    return found[1] if found else name


def aliases(parts: Iterable[tuple[str, ...]], brackets: bool) -> Iterable[tuple[str, ...]]:
    """What pci.ids calls parts of (vendor, device, name) where that is another name, for recordings without ids.

    brackets: the model alone, as drivers print it. The code of a chip alone names a dozen parts and is left out.
    """
    listed = {vendor: dict(pci_ids(vendor)) for vendor in {part[0] for part in parts}}
    for vendor, device, own, *_ in parts:
        name = listed[vendor].get(device)
        if name is not None and " " in name and own not in ((model(name),) if brackets else (plain(name), model(name))):
            yield model(name) if brackets else name, vendor, device, PCI_IDS


def displays() -> Iterable[tuple[str, ...]]:
    """AMD's integrated graphics as pci.ids names them, and the displays that it does not tell apart."""
    listed = {ids for _, ids, _, _ in MORE_DISPLAYS}
    for device, name in pci_ids("1002"):
        integrated = re.match(rf"(?:{APU_NAMES})\b|HawkPoint|Phoenix", name) and not re.search(NO_DISPLAY, name)
        if integrated and device not in listed:
            yield "1002", device, name, "apu", PCI_IDS
    for more in MORE_DISPLAYS:
        yield *more, "pciutils/pciids:pci.ids"


def bridges(folder: Path) -> Iterable[tuple[str, ...]]:
    """Bridges of the tables, then those that only pci.ids or MORE_BRIDGES has."""
    tunnels = {ids[:2] for ids in NEW_TUNNELS}  # which the table takes for switches by their names
    ports = (line for row in read(folder / "pcie_switches.csv") if (line := bridge(row)))
    found = [port for port in ports if port[:2] not in tunnels]
    for row in read(folder / "nvswitches.csv"):
        if "variant" in row["name"]:
            found.append((row["vendor_id"], row["device_id"], row["name"], "internal", row["source"]))
    found += [(*more, PCI_IDS) for more in MORE_BRIDGES]
    found += [(*more, NEW_PCI_IDS) for more in NEW_TUNNELS]
    yield from found
    listed = {(vendor, device) for vendor, device, *_ in found}
    for vendor in SWITCH_VENDORS:
        for device, name in pci_ids(vendor):
            is_switch = re.search(SWITCH_NAME, name) and not re.search(NO_SWITCH_NAME, name)
            if is_switch and (vendor, device) not in listed:
                yield vendor, device, name, "switch", PCI_IDS
    for vendor in TUNNEL_VENDORS:
        for device, name in pci_ids(vendor):
            if re.search(TUNNEL_NAME, name) and (vendor, device) not in listed:
                yield vendor, device, name, "chipset", PCI_IDS


def main(folder: Path) -> None:
    """Writes every table of the catalogue."""
    write(
        "gpus.csv",
        "vendor,device,subsystem,name,arch,form_factor,market,pcie_gts,pcie_lanes,pcie_confidence,"
        "fabric,links,gbs_per_link,attach,fabric_confidence,c2c,idle_downshift,source",
        map(gpu, read(folder / "gpus.csv")),
    )
    named = [(name, "10de", ids, README) for name, ids in DRIVER_NAMES]
    named += [(name, "10de", ids, LATER_README) for name, ids in LATER_DRIVER_NAMES]
    named += [(name, "10de", ids, NEW_README) for name, ids in NEW_DRIVER_NAMES]
    named += [(name, "10de", ids, MN5) for name, ids in MN5_NAMES]
    named += [(*names, NEW_PCI_IDS) for names in NEW_NAMES]
    gpus = [(row["vendor_id"], row["device_id"], row["name"]) for row in read(folder / "gpus.csv")]
    write("gpu_names.csv", "name,vendor,device,source", once([*named, *aliases(gpus, brackets=True)]))
    nics = [nic(row)[:3] for row in read(folder / "nics.csv") if row["role"] != "bridge"]
    write("nic_names.csv", "name,vendor,device,source", aliases(nics, brackets=False))
    write(
        "nics.csv",
        "vendor,device,name,role,pcie_gts,pcie_lanes,pcie_confidence,port_gbps,source",
        (nic(row) for row in read(folder / "nics.csv") if row["role"] != "bridge"),
    )
    write("psids.csv", "psid,port_gbps,source", filter(None, map(psid, read(folder / "nic_psid.csv"))))
    switches = read(folder / "nvswitches.csv")
    write(
        "nvswitches.csv",
        "vendor,device,name,source",
        (
            (row["vendor_id"], row["device_id"], row["name"], row["source"])
            for row in switches
            if row["pci_class"] == "068000"
        ),
    )
    ports = list(bridges(folder))
    write("bridges.csv", "vendor,device,name,role,source", ports)
    write("bridge_names.csv", "name,vendor,device,source", aliases(ports, brackets=False))
    write("displays.csv", "vendor,device,name,role,source", displays())
    write(
        "baseboards.csv",
        "name,gpus,device_ids,fabric,nvswitches,nvswitches_on_pci,source",
        filter(None, map(baseboard, read(folder / "baseboards.csv"))),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
