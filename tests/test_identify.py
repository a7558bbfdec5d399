"""Kinds, names and hypervisors of PCI functions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gpu_topo.assemble.hypervisor import hypervisor_of_functions
from gpu_topo.assemble.identify import identify
from gpu_topo.collectors.readers import lspci, lspci_names
from gpu_topo.model.node import Part
from gpu_topo.model.pci import INTEGRATED_ENDPOINT, UPSTREAM_PORT, Function, LinkEnd

NVIDIA, AMD, INTEL, MELLANOX, BROADCOM, HABANA = 0x10DE, 0x1002, 0x8086, 0x15B3, 0x1000, 0x1DA3


def function(vendor: int | None, device: int | None, class_code: int | None, **more: object) -> Function:
    made = Function("0000:65:00.0", vendor, device, class_code)
    return made._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vendor", "device", "class_code", "kind"),
    [
        # graphics and compute
        (NVIDIA, 0x2330, 0x030200, "gpu"),
        (NVIDIA, 0xFFF0, 0x030000, "gpu"),
        (AMD, 0x740F, 0x038000, "gpu"),
        (AMD, 0x74A1, 0x120000, "gpu"),
        (AMD, 0x74FF, 0x120000, "gpu"),
        (INTEL, 0x0BD5, 0x038000, "gpu"),
        (INTEL, 0x56C0, 0x038000, "gpu"),
        # displays that are no GPUs
        (0x1A03, 0x2000, 0x030000, "other"),
        (0x102B, 0x0536, 0x030000, "other"),
        (0x1234, 0x1111, 0x030000, "other"),
        (0x1013, 0x00B8, 0x030000, "other"),
        (0x1B36, 0x0100, 0x030000, "other"),
        (0x1AF4, 0x1050, 0x030000, "other"),
        (0x15AD, 0x0405, 0x030000, "other"),
        (0x1414, 0x5353, 0x030000, "other"),
        (AMD, 0x515E, 0x030000, "other"),
        (NVIDIA, 0x22BA, 0x040300, "other"),  # a GPU's audio
        (NVIDIA, 0x1AD8, 0x0C0330, "other"),  # a GPU's USB
        # accelerators
        (0x1DA3, 0x1020, 0x120000, "accelerator"),
        (0x19E5, 0xD802, 0x120000, "accelerator"),
        (INTEL, 0x7D1D, 0x120000, "accelerator"),
        (0x1BCF, 0x001C, 0x0B4000, "accelerator"),
        (INTEL, 0x4940, 0x0B4000, "accelerator"),
        # networks
        (MELLANOX, 0x1021, 0x020700, "nic"),
        (MELLANOX, 0x1021, 0x020000, "nic"),
        (0x1077, 0x7322, 0x0C0600, "nic"),
        (INTEL, 0x24F0, 0x020800, "nic"),
        (0x1AF4, 0x1041, 0x020000, "nic"),
        (MELLANOX, 0xC2D5, 0x080100, "other"),
        # storage
        (0x144D, 0xA80A, 0x010802, "storage"),
        (INTEL, 0x1BD2, 0x010601, "storage"),
        (BROADCOM, 0x00B2, 0x010700, "other"),
        (BROADCOM, 0x02B2, 0x010700, "other"),
        (BROADCOM, 0x00E6, 0x010700, "storage"),
        # bridges and switches
        (NVIDIA, 0x22A3, 0x068000, "nvswitch"),
        (NVIDIA, 0x1AF1, 0x068000, "nvswitch"),
        (NVIDIA, 0x22A8, 0x060400, "bridge"),
        (NVIDIA, 0x22B1, 0x060400, "bridge"),
        (NVIDIA, 0x0752, 0x068000, "other"),
        (BROADCOM, 0xC030, 0x060400, "bridge"),
        (0x11F8, 0x4128, 0x060400, "bridge"),
        (0x11F8, 0x4128, 0x058000, "other"),
        (INTEL, 0x29C0, 0x060000, "other"),
        (INTEL, 0x1B81, 0x060100, "other"),
    ],
)
def test_kinds(vendor: int, device: int, class_code: int, kind: str) -> None:
    """The kind follows from class and exact ids."""
    assert identify(function(vendor, device, class_code)).kind == kind


def test_a_root_complex_with_the_class_of_a_processor_is_a_bridge() -> None:
    """What has a bridge's header forwards, whatever class it bears."""
    assert identify(function(0x1957, 0x0070, 0x0B2000, bridge=True, secondary_bus=1)).kind == "bridge"


def test_storage_beside_an_upstream_port_is_the_switch_itself() -> None:
    """A storage-class function on the device that is a switch's upstream port is its management function."""
    port = Function("0000:65:00.0", BROADCOM, 0xC0FF, 0x060400, port_type=UPSTREAM_PORT)
    other = Function("0000:65:00.1", BROADCOM, 0x0ABC, 0x010700)
    assert identify(other, siblings=(port,)).kind == "other"
    assert identify(other).kind == "storage"


def test_management_functions_are_marked() -> None:
    """Functions inside a switch say so, so that no rule takes their link for a device's."""
    part = identify(function(BROADCOM, 0x00B2, 0x010700)).part
    assert part is not None
    assert part.management


@pytest.mark.parametrize(
    ("made", "kind", "integrated"),
    [
        (Function("0000:00:02.0", INTEL, 0x9A49, 0x030000), "gpu", True),
        (Function("0000:00:02.1", INTEL, 0x2A43, 0x038000), "other", True),
        (Function("0000:03:00.0", INTEL, 0x56A5, 0x030000, parent="0000:02:01.0"), "gpu", False),
        (Function("0000:00:02.0", INTEL, 0x56C0, 0x038000), "gpu", False),  # a Flex card handed to a guest
        (Function("0000:c4:00.0", AMD, 0x15BF, 0x030000, parent="0000:00:08.1"), "gpu", True),
        (Function("0000:00:01.0", AMD, 0x9999, 0x030000), "gpu", True),
        (Function("0000:0c:00.0", AMD, 0x73BF, 0x030000, parent="0000:0b:00.0"), "gpu", False),
        # A guest's virtual root bus makes integrated endpoints of whole cards.
        (Function("0000:00:05.0", NVIDIA, 0x2330, 0x030200, port_type=INTEGRATED_ENDPOINT), "gpu", False),
        (Function("0000:00:14.3", INTEL, 0x9DF0, 0x028000, port_type=INTEGRATED_ENDPOINT), "nic", True),
    ],
)
def test_integrated_graphics(made: Function, kind: str, integrated: bool) -> None:
    """Graphics inside a processor are GPUs without a link; cards are not, wherever a guest shows them."""
    found = identify(made)
    assert (found.kind, found.integrated) == (kind, integrated)


def test_an_unlisted_processor_shows_by_the_functions_beside_its_graphics() -> None:
    """AMD's processors put their crypto and USB functions beside their graphics; cards have only the card's own."""
    graphics = Function("0000:c4:00.0", AMD, 0x0001, 0x030000, parent="0000:00:08.1")
    crypto = Function("0000:c4:00.2", 0x1022, 0x0002, 0x108000)
    audio = Function("0000:c4:00.1", AMD, 0xAB28, 0x040300)
    assert identify(graphics, siblings=(audio, crypto)).integrated
    assert not identify(graphics, siblings=(audio,)).integrated


def test_names_come_from_the_recording_then_from_lists_then_from_the_catalogue() -> None:
    """The best name at hand: the recording's, a name list's, the catalogue's, the numbers."""
    names = {(NVIDIA, 0x2330): "NVIDIA Corporation GH100 [H100 SXM5 80GB]"}
    bare = function(NVIDIA, 0x2330, 0x030200)
    assert identify(bare._replace(name="NVIDIA H100 (rev a1)"), names).name == "NVIDIA H100"
    assert identify(bare, names).name == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    assert identify(bare._replace(name="NVIDIA Corporation Device 2330"), names).name == names[NVIDIA, 0x2330]
    assert identify(bare).name == "NVIDIA H100 SXM5 80GB"
    assert identify(function(0x1234, 0x5678, 0x088000)).name == "1234:5678"


@pytest.mark.parametrize(
    ("vendor", "name", "class_code", "kind", "part"),
    [
        (NVIDIA, "NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]", 0x030000, "gpu", "RTX 6000 Ada Generation"),
        (NVIDIA, "NVIDIA Corporation GA107BM [GeForce RTX 3050 Mobile]", 0x030000, "gpu", None),
        (AMD, "Advanced Micro Devices, Inc. [AMD/ATI] Navi 21 [Radeon RX 6900 XT]", 0x030000, "gpu", None),
        (AMD, "Advanced Micro Devices, Inc. [AMD/ATI] ES1000", 0x030000, "other", None),
        (0x102B, "Matrox Electronics Systems Ltd. Integrated Matrox G200eW3", 0x030000, "other", None),
        (None, "Some Vendor Nobody Knows Display", 0x030000, "other", None),
        (NVIDIA, "NVIDIA Corporation GA100 [A100 NVSwitch]", 0x068000, "nvswitch", "A100 NVSwitch"),
        (MELLANOX, "Mellanox Technologies MT2910 Family [ConnectX-7]", 0x020000, "nic", "ConnectX-7"),
        (MELLANOX, "Mellanox Technologies MT2910 Family [ConnectX-7]", 0x020700, "nic", "ConnectX-7"),
        (MELLANOX, "Mellanox Technologies MT2910 Family [ConnectX-7]", None, "nic", "ConnectX-7"),
        (BROADCOM, "Broadcom / LSI PCIe Switch management endpoint", 0x010700, "other", None),
        (BROADCOM, "Broadcom / LSI MegaRAID 12GSAS/PCIe Secure SAS39xx", 0x010400, "storage", None),
        (INTEL, "Intel Corporation C600/X79 series chipset Root Port 1", 0x060400, "bridge", None),
    ],
)
def test_words_identify(vendor: int | None, name: str, class_code: int | None, kind: str, part: str | None) -> None:
    """lspci without numbers: class and vendor give the kind, the model in brackets the part."""
    found = identify(function(vendor, None, class_code, name=name))
    assert found.kind == kind
    if part is not None or kind in ("gpu", "nic"):
        assert (found.part.name if found.part else None) == part


@pytest.mark.parametrize(
    ("vendor", "name", "switch", "internal"),
    [
        (BROADCOM, "Broadcom / LSI PEX890xx PCIe Gen 5 Switch", True, False),
        (0x10B5, "PLX Technology, Inc. PEX 8747 48-Lane, 5-Port PCI Express Gen 3 (8.0 GT/s) Switch", True, False),
        (AMD, "Advanced Micro Devices, Inc. [AMD/ATI] Navi 10 XL Upstream Port of PCI Express Switch", False, True),
        (MELLANOX, "Mellanox Technologies MT42822 Family [BlueField-2 SoC PCIe Bridge]", False, True),
        (0x1022, "Advanced Micro Devices, Inc. [AMD] Matisse Switch Upstream", False, False),
        (0x1022, "Advanced Micro Devices, Inc. [AMD] Zeppelin Switch Upstream (PCIE SW.US)", False, False),
        (INTEL, "Intel Corporation C610/X99 series chipset PCI Express Root Port #1", False, False),
        (0x1022, "Advanced Micro Devices, Inc. [AMD] Vega 10 PCIe Bridge", False, True),
        (0x1022, "Advanced Micro Devices, Inc. [AMD] 600 Series Chipset PCIe Switch Upstream Port", False, False),
        (0x1022, "Advanced Micro Devices, Inc. [AMD] 900 Series Chipset PCIe Switch Upstream Port", False, False),
        (0x1DD8, "Pensando Systems DSC Capri Upstream Port", False, True),
        (0x1B21, "ASMedia Technology Inc. ASM4242 PCIe Switch Upstream Port", False, False),
        (0x1B21, "ASMedia Technology Inc. ASM9999 USB4 Upstream Port", False, False),
        (0x11F8, "PMC-Sierra Inc. PM8536 PFX 96xG3 PCIe Fanout Switch", True, False),
    ],
)
def test_bridges_by_name(vendor: int, name: str, switch: bool, internal: bool) -> None:
    """Switch chips, bridges inside cards and chipsets are told apart by their words too."""
    found = identify(function(vendor, None, 0x060400, name=name, bridge=True))
    assert found.kind == "bridge"
    part = found.part or Part("")
    assert (part.switch_chip, part.internal_bridge) == (switch, internal)


def test_a_server_described_in_words(corpus: Path) -> None:
    """An eight-GPU server, lspci -vvv without numbers: its words and the numbers that stand for names tell it all."""
    text = (corpus / "m20-8xh100-xe9680-pex-switches" / "lspci-vvv.txt").read_text(encoding="utf-8")
    functions = lspci.READER.read(text.splitlines(), "lspci-vvv.txt")[0].functions
    found = [identify(one) for one in functions]
    kinds = Counter(one.kind for one in found)
    assert (kinds["gpu"], kinds["nvswitch"], kinds["nic"]) == (8, 4, 14)
    assert {one.part.name for one in found if one.kind == "gpu" and one.part} == {"H100 SXM5 80GB"}
    assert sum(1 for one in found if one.part and one.part.switch_chip) == 42 + 5
    assert all(one.kind == "other" for one in found if "management endpoint" in one.name)


@pytest.mark.parametrize(("class_code", "kind"), [(0x030200, "gpu"), (0x038000, "gpu"), (0x020700, "nic")])
def test_a_class_alone_identifies(class_code: int, kind: str) -> None:
    """Provider-made NCCL files hold classes and nothing else."""
    assert identify(function(None, None, class_code)).kind == kind


@pytest.mark.parametrize(
    ("vendor", "device", "kind"),
    [(NVIDIA, 0x20B2, "gpu"), (MELLANOX, 0x1021, "nic"), (NVIDIA, 0x1AF1, "nvswitch"), (0x1DA3, 0x1020, "accelerator")],
)
def test_ids_without_a_class_identify_listed_parts(vendor: int, device: int, kind: str) -> None:
    """Where a recording holds ids and no class, exact parts are still known."""
    assert identify(function(vendor, device, None)).kind == kind
    if vendor != HABANA:  # which builds nothing else
        assert identify(function(vendor, 0x0001, None)).kind == "other"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA Corporation GB100 [B200]", "gpu"),
        ("NVIDIA Corporation GB100 [HGX GB200]", "gpu"),
        ("NVIDIA Corporation GA107GL [A2 / A16]", "gpu"),
        ("NVIDIA Corporation GA106M [GeForce RTX 3060 Mobile / Max-Q]", "gpu"),
        ("NVIDIA Corporation TU117GL", "gpu"),
        ("NVIDIA Corporation GR102", "gpu"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 48 [Radeon RX 9070/9070 XT/9070 GRE]", "gpu"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]", "gpu"),
        ("Intel Corporation DG2 [Arc A770]", "gpu"),
        ("Intel Corporation ATS-M [Data Center GPU Flex 170V]", "gpu"),
        ("Habana Labs Ltd. HL-325 AI Training Accelerator [Gaudi3]", "accelerator"),
        ("Huawei Technologies Co., Ltd. Ascend 910 AI processor", "accelerator"),
        ("Groq TSP [GroqChip]", "accelerator"),
        ("NVIDIA Corporation GH100 [H100 NVSwitch]", "nvswitch"),
        # what stands beside them
        ("NVIDIA Corporation AD102 High Definition Audio Controller", "other"),
        ("NVIDIA Corporation TU104 USB Type-C UCSI Controller", "other"),
        ("NVIDIA Corporation C51 Host Bridge", "other"),
        ("NVIDIA Corporation THOR Processor PCI Express Root Port", "other"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 21/23 HDMI/DP Audio Controller", "other"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 21 USB", "other"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] ES1000", "other"),
        ("Intel Corporation DG2 Audio Controller", "other"),
        ("Intel Corporation Ice Lake Memory Map/VT-d", "other"),
        ("ASPEED Technology, Inc. ASPEED Graphics Family", "other"),
        # networks and drives
        ("Broadcom Inc. and subsidiaries BCM57608 25Gb/50Gb/100Gb/200Gb/400Gb Ethernet", "nic"),
        ("AMD Pensando Systems DSC Ethernet Controller", "nic"),
        ("Intel Corporation Ethernet Controller E810-C for QSFP", "nic"),
        ("Chelsio Communications Inc T62100-LP-CR Unified Wire Ethernet Controller", "nic"),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", "nic"),
        ("Huawei Technologies Co., Ltd. Hi1822 Family (4*25GE)", "nic"),
        ("Huawei Technologies Co., Ltd. Hi1822 Family (2*16G FC)", "other"),
        ("Huawei Technologies Co., Ltd. HNS GE/10GE/25GE RDMA Network Controller", "nic"),
        ("Huawei Technologies Co., Ltd. HiSilicon SAS 3.0 HBA", "other"),
        (
            "Huawei Technologies Co., Ltd. Hi171x Series [iBMC Intelligent Management system chip w/VGA support]",
            "other",
        ),
        ("Google, Inc. Compute Engine Virtual Ethernet [gVNIC]", "nic"),
        ("Mellanox Technologies MT43244 BlueField-3 SoC Management Interface", "other"),
        ("Samsung Electronics Co Ltd NVMe SSD Controller PM9A1/PM9A3/980PRO", "storage"),
        ("Intel Corporation C620 Series Chipset Family SATA Controller [AHCI mode]", "storage"),
        ("Broadcom / LSI PCIe Switch management endpoint", "other"),
    ],
)
def test_names_without_a_class(name: str, kind: str) -> None:
    """A drawing (lspci -tv) has names and no classes: the words that pci.ids uses tell the kind."""
    assert identify(function(lspci_names.vendor_of(name), None, None, name=name)).kind == kind


def test_an_id_without_a_class_is_completed_by_its_name() -> None:
    """lspci -tvnn: the catalogue does not list the id, and the name beside it tells."""
    name = "NVIDIA Corporation GA106M [GeForce RTX 3060 Mobile / Max-Q]"
    assert identify(function(NVIDIA, 0x2520, None, name=name)).kind == "gpu"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0000:c4:00.0", "Advanced Micro Devices, Inc. [AMD/ATI] Raphael"),
        ("0000:00:02.0", "Intel Corporation RocketLake-S GT1 [UHD Graphics 750]"),
    ],
)
@pytest.mark.parametrize("class_code", [None, 0x030000])
def test_integrated_graphics_by_name(address: str, name: str, class_code: int | None) -> None:
    """Without ids too, graphics inside a processor have no link of their own."""
    found = identify(Function(address, lspci_names.vendor_of(name), None, class_code, name=name))
    assert (found.kind, found.integrated) == ("gpu", True)


@pytest.mark.parametrize(
    ("name", "gbps"),
    [
        ("Intel Corporation Ethernet Controller E810-C for QSFP", 100),
        ("Broadcom Inc. and subsidiaries BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet", 200),
        ("Mellanox Technologies MT43244 BlueField-3 integrated ConnectX-7 network controller", 400),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", None),  # the parts of this name differ
    ],
)
def test_adapters_by_the_names_of_pci_ids(name: str, gbps: float | None) -> None:
    """lspci -vvv without numbers: pci.ids calls adapters otherwise than the catalogue does."""
    part = identify(function(lspci_names.vendor_of(name), None, 0x020000, name=name)).part
    assert part is not None
    assert part.port_max_gbps == gbps


HOST = Function("0000:00:00.0", INTEL, 0x09A2, 0x060000)
Q35 = Function("0000:00:00.0", INTEL, 0x29C0, 0x060000)
VIRTIO = Function("0000:01:00.0", 0x1AF4, 0x1041, 0x020000)
NATOMA = Function("0000:00:00.0", INTEL, 0x1237, 0x060000)
PORT = Function("0000:64:01.0", INTEL, 0x347A, 0x060400, bridge=True)
ENA = Function("0000:00:05.0", 0x1D0F, 0xEC20, 0x020000)
EBS = Function("0000:00:04.0", 0x1D0F, 0x8061, 0x010802)


@pytest.mark.parametrize(
    ("functions", "hypervisor"),
    [
        ((), None),
        ((HOST,), None),
        ((HOST, VIRTIO), None),  # a card that shows virtio to bare metal
        ((Q35, VIRTIO), "KVM"),
        ((VIRTIO,), "KVM"),
        ((Q35,), None),  # a real board of 2007
        ((Q35._replace(subsystem_vendor_id=0x1AF4, subsystem_device_id=0x1100),), "KVM"),
        ((Function("0000:00:01.0", 0x1234, 0x1111, 0x030000),), "KVM"),
        ((Function("0000:00:01.0", 0x1B36, 0x000C, 0x060400),), "KVM"),
        ((Function("0000:00:0f.0", 0x15AD, 0x0405, 0x030000),), "VMware"),
        ((Function("0000:00:08.0", 0x1414, 0x5353, 0x030000),), "Hyper-V"),
        ((Function("0000:00:03.0", 0x5853, 0x0001, 0xFF8000),), "Xen"),
        ((HOST, Function("0000:00:05.0", 0x1D0F, 0xEFA0, 0x020000)), None),  # Amazon's metal instances have it too
        ((HOST, PORT, ENA, EBS), None),
        ((ENA, EBS), None),  # a few lines of a longer listing
        ((NATOMA, ENA), "Amazon Nitro"),
        ((NATOMA._replace(device_id=None, name="Intel Corporation 440FX - 82441FX PMC [Natoma]"), EBS), "Amazon Nitro"),
        ((Function("0000:00:00.0", 0x1D0F, 0x0200, 0x060000), ENA), "Amazon Nitro"),  # Graviton
        ((Q35, Function("0000:00:03.0", 0x1AE0, 0x0042, 0x020000)), "KVM"),  # Google
        ((NATOMA, Function("0000:00:1e.0", NVIDIA, 0x2237, 0x030200)), "KVM"),
        ((NATOMA, Function("0000:00:04.0", 0x144D, 0xA80A, 0x010802)), "KVM"),
        ((NATOMA, Function("0000:00:04.0", 0x144D, 0xA80A, 0x020000, link=LinkEnd(16.0, 4))), "KVM"),
        ((NATOMA, Function("0000:00:02.0", 0x5333, 0x8811, 0x030000)), None),  # a machine of 1996
    ],
)
def test_hypervisors_show_by_their_devices(functions: tuple[Function, ...], hypervisor: str | None) -> None:
    """Emulated devices are evidence of a hypervisor; virtio only where no real host bridge is."""
    assert hypervisor_of_functions(functions) == hypervisor


def number(text: object) -> int | None:
    try:
        return int(str(text), 16) or None
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("listed", "kinds"),
    [
        ("gpus", ("gpu",)),
        ("accelerators", ("accelerator",)),
        ("nics", ("nic",)),
        ("nvme", ("storage",)),
        ("other_display", ("other",)),
    ],
)
def test_real_machines(corpus: Path, listed: str, kinds: tuple[str, ...]) -> None:
    """What others listed as GPUs, accelerators, NICs, drives and management displays is identified so."""
    seen = 0
    for item in json.loads((corpus / "index.json").read_text())["items"]:
        for device in (item.get("facts") or {}).get(listed) or ():
            if not isinstance(device, dict) or "class" not in device or "bdf" not in device:
                continue
            ids = str(device.get("id", ":")).split(":")
            vendor = number(device.get("vendor") or ids[0])
            code = int(str(device["class"]), 16)
            found = identify(
                Function(
                    str(device["bdf"]),
                    vendor,
                    number(device.get("device") or ids[1]),
                    code << 8 if code <= 0xFFFF else code,
                    name=None if vendor else device.get("name"),
                )
            )
            seen += 1
            if vendor == AMD and found.kind == "other":
                continue  # the list counts a server's on-board ES1000 as a GPU
            assert found.kind in kinds, (item["id"], device)
    assert seen


@pytest.mark.parametrize("what", ["Intel Corporation Device 352a", "Intel Corporation Device [8086:352a]"])
def test_a_part_that_no_list_names_is_its_numbers(what: str) -> None:
    """With and without -nn, lspci's words for a part without a name are no name."""
    (made,) = lspci.READER.read([f"16:01.0 PCI bridge: {what} (rev 04)"], "t")[0].functions
    assert identify(made).name == "8086:352a"


def test_a_thunderbolt_tunnel_is_no_switch() -> None:
    """By its ids and by its name alone, it is a bridge of which nothing is judged."""
    name = "Intel Corporation JHL7540 Thunderbolt 3 Bridge [Titan Ridge DD 2018]"
    for function in (
        Function("0000:01:00.0", 0x8086, 0x15EF, 0x060400, bridge=True),
        Function("0000:01:00.0", class_code=0x060400, bridge=True, name=name),
    ):
        found = identify(function)
        assert found.kind == "bridge"
        assert found.part is not None
        assert not found.part.switch_chip
        assert not found.part.internal_bridge
