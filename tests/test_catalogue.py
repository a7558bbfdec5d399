"""The catalogue: exact parts only, every row with its source."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

from gpu_topo import catalogue

FOLDER = Path(catalogue.__file__).parent
TOOL = Path(__file__).resolve().parents[1] / "tools" / "make_catalogue.py"
TABLES = sorted(path.name for path in FOLDER.glob("*.csv"))

NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3
A100_40, A100_80, H100, H200, A16_A2, RTX_6000 = 0x20B0, 0x20B2, 0x2330, 0x2335, 0x25B6, 0x1E30


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_plain(table: str) -> None:
    """A row can be cut at its commas, as a CSV parser reads it, and names its source."""
    text = (FOLDER / table).read_text(encoding="utf-8")
    lines = text.splitlines()
    with (FOLDER / table).open(newline="", encoding="utf-8") as file:
        parsed = list(csv.reader(file))
    assert parsed == [line.split(",") for line in lines]
    assert text.endswith("\n")
    assert lines[1:] == sorted(set(lines[1:]))
    assert {len(row) for row in parsed} == {len(parsed[0])}
    assert parsed[0][-1] == "source"
    assert all(row[-1].strip() for row in parsed)


@pytest.mark.parametrize("table", ["gpus.csv", "nics.csv", "psids.csv", "nvswitches.csv", "baseboards.csv"])
def test_tables_are_what_the_tool_makes(
    table: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed tables are what tools/make_catalogue.py makes of the reference tables."""
    spec = importlib.util.spec_from_file_location("make_catalogue", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    if not tool.PCI_IDS_FILE.exists():
        pytest.skip("no pci.ids on this machine")
    monkeypatch.setattr(tool, "OUT", tmp_path)
    tool.main(shared / "facts")
    assert (tmp_path / table).read_text(encoding="utf-8") == (FOLDER / table).read_text(encoding="utf-8")


def test_every_row_can_be_looked_up() -> None:
    """The search in bytes finds the rows that a CSV parser reads."""
    with (FOLDER / "gpus.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            subsystem = (NVIDIA, int(row["subsystem"], 16)) if row["subsystem"] else None
            part = catalogue.gpu_part(int(row["vendor"], 16), int(row["device"], 16), subsystem)
            assert part is not None
            assert part.name == row["name"]
            assert part.pcie_max_lanes == (int(row["pcie_lanes"]) if row["pcie_lanes"] else None)


def test_an_unlisted_part_has_no_reference() -> None:
    """Neighbouring numbers and names are never a near match."""
    assert catalogue.gpu_part(NVIDIA, 0x2333) is None
    assert catalogue.gpu_part(0x1234, H100) is None
    assert catalogue.nic_part(MELLANOX, 0x1020) is None
    assert catalogue.nvswitch_part(NVIDIA, 0x22A8) is None
    assert catalogue.bridge_part(NVIDIA, 0x0001) is None
    assert catalogue.psid_gbps("MT_000000022") is None
    for name in ("NVIDIA GH200", "NVIDIA H200 NVL 2", "NVIDIA GeForce RTX 3060 Laptop GPU", "NVIDIA", "", "A100"):
        assert catalogue.gpu_part_by_name(name) is None, name


def test_boards_of_one_id_are_told_apart_by_their_subsystem() -> None:
    """An equal subsystem of NVIDIA or a board vendor of its professional boards decides; else only what all share."""
    assert getattr(catalogue.gpu_part(NVIDIA, A16_A2, (NVIDIA, 0x157E)), "name", None) == "A2"
    assert getattr(catalogue.gpu_part(NVIDIA, RTX_6000, (0x1028, 0x129E)), "name", None) == "Quadro RTX 8000"
    assert getattr(catalogue.gpu_part(NVIDIA, RTX_6000, (0x1028, 0x0001)), "name", None) == "Quadro RTX 6000 / RTX 8000"
    either = catalogue.gpu_part(NVIDIA, A16_A2)
    assert either is not None
    assert (either.pcie_max_lanes, either.form_factor) == (8, "")
    assert catalogue.gpu_part(NVIDIA, A16_A2, (0x1458, 0x157E)) == either


def test_only_verified_parts_hold_their_speed_when_idle() -> None:
    """A100, H100 and H200 hold it, two consumer cards do not, of all others nothing is known."""
    expected = {A100_80: None, 0x2231: None, 0x26B1: None} | {
        A100_40: True,
        H100: True,
        H200: True,
        0x2684: False,
        0x1B06: False,
    }
    for device, holds in expected.items():
        part = catalogue.gpu_part(NVIDIA, device)
        assert part is not None
        assert part.holds_speed_when_idle is holds


def test_links_per_gpu_are_nominal() -> None:
    """25 GB/s a link on A100 and H100, 14.0625 on GA102 boards, whatever line rate NVML prints."""
    for device, links, gbs in ((A100_80, 12, 25.0), (H100, 18, 25.0), (0x2204, 4, 14.0625), (0x2901, 18, 50.0)):
        part = catalogue.gpu_part(NVIDIA, device)
        assert part is not None
        assert (part.fabric, part.fabric_links, part.fabric_gbs_per_link) == ("nvlink", links, gbs)


def test_chip_to_chip_links_are_marked() -> None:
    """The host links of GH200, GB200, GB300, GB10 and MI300A are not PCIe."""
    for vendor, device in ((NVIDIA, 0x2342), (NVIDIA, 0x2941), (NVIDIA, 0x31C2), (NVIDIA, 0x2E12), (AMD, 0x74A0)):
        part = catalogue.gpu_part(vendor, device)
        assert part is not None
        assert part.c2c
    part = catalogue.gpu_part(NVIDIA, H100)
    assert part is not None
    assert not part.c2c


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("nvidia h200", "H200 SXM 141GB"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
    ],
)
def test_model_names_are_matched_whole(model: str, name: str) -> None:
    """A driver's model name finds its part; vendor, case and hyphens do not count."""
    part = catalogue.gpu_part_by_name(model)
    assert part is not None
    assert part.name == name


@pytest.mark.parametrize(
    ("model", "links", "c2c"),
    [
        ("NVIDIA B200", 18, False),
        ("HGX GB200", 18, True),
        ("NVIDIA GB300", 18, True),
        ("NVIDIA GB10", 0, True),
        ("NVIDIA H100 64GB HBM2", 18, False),
        ("NVIDIA H100", 18, False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0, False),
        ("A2 / A16", 0, False),
        ("A30 PCIe", 4, False),
        ("Instinct MI250X/MI250", 8, False),
        ("Habana Labs Ltd. Gaudi2 AI Training Accelerator", 24, False),
    ],
)
def test_names_of_drivers_and_of_pci_ids(model: str, links: int, c2c: bool) -> None:
    """What nvidia-smi and lspci print for a part that the tables call otherwise."""
    part = catalogue.gpu_part_by_name(model)
    assert part is not None
    assert (part.fabric_links, part.c2c) == (links, c2c)


@pytest.mark.parametrize("table", ["gpu_names.csv", "nic_names.csv", "bridge_names.csv"])
def test_names_lead_to_listed_parts(table: str) -> None:
    """Every further name is that of a part in the table of its kind."""
    of = {"gpu_names.csv": "gpus.csv", "nic_names.csv": "nics.csv", "bridge_names.csv": "bridges.csv"}[table]
    with (FOLDER / of).open(newline="", encoding="utf-8") as file:
        listed = {(row["vendor"], row["device"]) for row in csv.DictReader(file)}
    with (FOLDER / table).open(newline="", encoding="utf-8") as file:
        assert {(row["vendor"], row["device"]) for row in csv.DictReader(file)} <= listed


def test_an_ambiguous_name_keeps_what_its_parts_share() -> None:
    """GH200 480GB is two parts: both are superchips with 18 links, their PCIe figures differ and are dropped."""
    part = catalogue.gpu_part_by_name("NVIDIA GH200 480GB")
    assert part is not None
    assert (part.c2c, part.fabric_links, part.pcie_max_gts, part.pcie_confidence) == (True, 18, None, "")


@pytest.mark.parametrize(
    ("vendor", "device", "role"),
    [
        (0x1000, 0xC030, "switch"),
        (0x10B5, 0x9797, "switch"),
        (0x11F8, 0x4128, "switch"),
        (MELLANOX, 0x1024, "switch"),
        (MELLANOX, 0x1979, "internal"),
        (AMD, 0x1478, "internal"),
        (0x8086, 0x4FA1, "internal"),
        (0x1022, 0x43F4, "chipset"),
        (0x1022, 0x57AD, "chipset"),
        (NVIDIA, 0x22B1, "root"),
        (0x1B36, 0x000C, "virtual"),
        (0x1000, 0x00B2, "management"),
        (0x1000, 0x02B2, "placeholder"),
        (0x8086, 0x2030, ""),
    ],
)
def test_bridges_have_roles(vendor: int, device: int, role: str) -> None:
    """Switch chips, bridges inside cards, chipsets and management functions are different things."""
    part = catalogue.bridge_part(vendor, device)
    assert (part is None) == (role == "")
    if part is not None:
        assert (part.switch_chip, part.internal_bridge) == (role == "switch", role == "internal")
        assert part.management == (role in ("management", "placeholder"))


def test_nics() -> None:
    """A network adapter has the rate of its best board; its virtual and its management functions are told apart."""
    part = catalogue.nic_part(MELLANOX, 0x1021)
    assert part is not None
    assert (part.port_max_gbps, part.pcie_max_gts, part.pcie_max_lanes) == (400.0, 32.0, 16)
    assert catalogue.nic_part_by_name("ConnectX-7") == part
    assert catalogue.is_virtual_function(MELLANOX, 0x101E)
    assert not catalogue.is_virtual_function(MELLANOX, 0x1021)
    management = catalogue.nic_part(MELLANOX, 0xC2D3)
    assert management is not None
    assert management.management


def test_psids() -> None:
    """A board's PSID tells its grade, which its device id does not."""
    assert catalogue.psid_gbps("MT_0000000838") == 400.0
    assert catalogue.psid_gbps("MT_0000000844") == 200.0
    assert catalogue.psid_gbps("MT_0000000542") is None


@pytest.mark.parametrize(
    ("device", "gpus", "nvswitches"),
    [
        (A100_40, 8, 6),
        (A100_40, 4, 0),
        (A100_40, 16, 12),
        (0x1DB8, 16, 12),
        (H100, 8, 4),
        (H100, 7, 4),
        (H100, 2, 0),
        (0x2901, 8, None),  # not on PCI
        (0x2941, 4, None),  # in the rack
        (0x2684, 8, None),
        (H100, 17, None),
    ],
)
def test_nvswitches_of_a_node(device: int, gpus: int, nvswitches: int | None) -> None:
    """How many NVSwitches a node has on PCI follows from model and number of its GPUs, where a board is known."""
    assert catalogue.nvswitches_per_baseboard([(NVIDIA, device)], gpus) == nvswitches


def test_what_joins_the_gpus_of_a_board() -> None:
    """By exactly this model and number: eight A100 have NVSwitches, four are a mesh, eight V100 mostly a cube mesh."""
    assert [board.fabric for board in catalogue.baseboards(NVIDIA, A100_80, 8)] == ["nvswitch"]
    assert [board.fabric for board in catalogue.baseboards(NVIDIA, A100_80, 4)] == ["mesh"]
    assert [board.fabric for board in catalogue.baseboards(NVIDIA, 0x1DB1, 8)] == ["cube-mesh"]
    assert [board.fabric for board in catalogue.baseboards(AMD, 0x74A1, 8)] == ["mesh"]
