"""lspci with one block a device: every way of printing and pasting it that people have, against lspci as witness."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers import lspci
from gpu_topo.model.facts import PARTIAL, Facts
from gpu_topo.model.pci import Function, LinkEnd
from gpu_topo.model.reading import DENIED, LOST, NO_DATA, NOT_RECORDED, Unknown, known

from .test_config_space import dumps

PORT = """\
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge (prog-if 00 [Normal decode])
\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- <PERR- INTx-
\tNUMA node: 1
\tBus: primary=00, secondary=01, subordinate=02, sec-latency=0
\tCapabilities: [50] Power Management version 3
\t\tFlags: PMEClk- DSI- D1- D2- AuxCurrent=0mA PME(D0+,D1-,D2-,D3hot+,D3cold+)
\t\tStatus: D0 NoSoftRst- PME-Enable- DSel=0 DScale=0 PME-
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
\t\t\tExtTag+ RBE+
\t\tDevCtl:\tCorrErr- NonFatalErr- FatalErr- UnsupReq-
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #1, Speed 16GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
\t\t\tClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)
\t\t\tTrErr- Train- SlotClk+ DLActive+ BWMgmt+ ABWMgmt-
\t\tSltCap:\tAttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug- Surprise-
\t\t\tSlot #4, PowerLimit 75.000W; Interlock- NoCompl+
\t\tSltSta:\tStatus: AttnBtn- PowerFlt- MRL- CmdCplt- PresDet+ Interlock-
\t\t\tChanged: MRL- PresDet- LinkState+
\t\tLnkCap2: Supported Link Speeds: 2.5-16GT/s, Crosslink- Retimer+ 2Retimers+ DRS-
\t\tLnkCtl2: Target Link Speed: 16GT/s, EnterCompliance- SpeedDis-
\tCapabilities: [150 v2] Advanced Error Reporting
\t\tUESta:\tDLP- SDES+ TLP- FCP- CmpltTO+ CmpltAbrt- UnxCmplt- RxOF- MalfTLP-
\t\t\tECRC- UnsupReq- ACSViol- UncorrIntErr+ BlockedTLP-
\t\tUESvrt:\tDLP+ SDES+ TLP- FCP+ CmpltTO- CmpltAbrt- UnxCmplt- RxOF+ MalfTLP+
\t\t\tECRC- UnsupReq- ACSViol- UncorrIntErr+ BlockedTLP-
\t\tCESta:\tRxErr- BadTLP+ BadDLLP- Rollover- Timeout- AdvNonFatalErr+
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport
"""
GPU = """\
01:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tSubsystem: NVIDIA Corporation Device 16c1
\tPhysical Slot: 3
\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
\tNUMA node: 1
\tIOMMU group: 15
\tRegion 0: Memory at f5000000 (64-bit, prefetchable) [size=16M]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)
\tKernel driver in use: nvidia
\tKernel modules: nvidiafb, nouveau, nvidia
"""


def only(text: str) -> Facts:
    (facts,) = lspci.read(clean(text).split("\n"), "test")
    return facts


def functions(text: str) -> dict[str, Function]:
    return {function.address: function for function in only(text).functions}


def link(function: Function) -> LinkEnd:
    assert function.link is not None
    return function.link


def test_a_root_port_and_the_gpu_below_it() -> None:
    """Everything that -vvv prints of a port and its device becomes a fact."""
    found = functions(PORT + "\n" + GPU)
    port, gpu = found["0000:00:01.1"], found["0000:01:00.0"]
    assert port.port_type == "root-port"
    assert port.bridge
    assert (port.secondary_bus, port.subordinate_bus) == (1, 2)
    assert port.parent is None
    assert port.link == LinkEnd(8.0, 8, 16.0, 16, 16.0)
    assert port.payload_bytes == 256
    assert port.acs == frozenset({"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"})
    assert port.aer is not None
    assert port.aer.fatal == {"SDES": 1, "UncorrIntErr": 1}
    assert port.aer.nonfatal == {"CmpltTO": 1}
    assert port.aer.correctable == {"BadTLP": 1, "AdvNonFatalErr": 1}
    assert port.power == "D0"
    assert not port.hotplug_empty
    assert (gpu.vendor_id, gpu.device_id, gpu.class_code, gpu.revision) == (0x10DE, None, 0x030200, 0xA1)
    assert gpu.name == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    assert (gpu.subsystem_vendor_id, gpu.subsystem_device_id) == (0x10DE, 0x16C1)
    assert (gpu.driver, gpu.numa_node, gpu.slot) == ("nvidia", 1, "3")
    assert gpu.parent == "0000:00:01.1"
    assert gpu.host_bridge == "pci0000:00"
    assert gpu.link == LinkEnd(8.0, 8, 32.0, 16, None)
    assert gpu.acs is None


@pytest.mark.parametrize(
    "paste",
    [
        lambda text: "".join(f"    {line}\n" for line in text.split("\n")),
        lambda text: "".join(f"> {line}\n" for line in text.split("\n")),
        lambda text: text.replace("\t", "        "),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: re.sub(r"(?m)^[ \t]+", "", text),
        lambda text: f"root@node:~# lspci -vvv\n{text}\nroot@node:~# exit\nWidth x1 is what I see, LnkSta: Width x1\n",
        lambda text: text.replace("01:00.0", "\x1b[1;31m01:00.0\x1b[0m"),
        lambda text: text.replace("00:01.1", "0000:00:01.1").replace("01:00.0", "0000:01:00.0"),
    ],
)
def test_however_it_was_pasted(paste: Callable[[str], str]) -> None:
    """Indented, quoted, tabs to blanks, doubled lines, no indentation, between prompts, coloured: the same facts."""
    plain, pasted = only(PORT + "\n" + GPU), only(paste(PORT + "\n" + GPU))
    assert pasted.functions == plain.functions


def test_numbers_instead_of_names() -> None:
    """-n gives ids alone, -nn both, -D the domain."""
    found = functions("41:00.0 0302: 10de:2330 (rev a1)\n\tSubsystem: 10de:16c1\n\tFlags: fast devsel, NUMA node 1\n")
    gpu = found["0000:41:00.0"]
    assert (gpu.class_code, gpu.vendor_id, gpu.device_id, gpu.name) == (0x030200, 0x10DE, 0x2330, None)
    assert (gpu.subsystem_vendor_id, gpu.subsystem_device_id, gpu.numa_node) == (0x10DE, 0x16C1, 1)
    line = "10000:e1:00.0 Non-Volatile memory controller [0108]: Samsung Electronics Co Ltd PM173X [144d:a824]"
    (ssd,) = functions(line + " (prog-if 02 [NVM Express])").values()
    assert (ssd.address, ssd.class_code, ssd.device_id) == ("10000:e1:00.0", 0x010802, 0xA824)
    assert ssd.name == "Samsung Electronics Co Ltd PM173X"


def test_an_inventory_is_structure_only() -> None:
    """lspci -nn says what is there, nothing of links or parents, and not that there is no driver."""
    facts = only(
        "00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]\n"
        "00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a]\n"
        "17:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)\n"
    )
    gpu = facts.functions[-1]
    assert facts.structure_only
    assert gpu.link is None
    assert gpu.parent == Unknown(NOT_RECORDED, "the bridge above")
    assert isinstance(gpu.driver, Unknown)
    assert facts.functions[1].bridge


def test_denied_capabilities_are_unknown_not_absent() -> None:
    """Without root the link, the type and ACS are denied, the bus numbers are still there, and the source says so."""
    text = "\n".join(
        block.split("\tCapabilities")[0] + "\tCapabilities: <access denied>\n\tKernel driver in use: x\n"
        for block in (PORT, GPU)
    )
    facts = only(text)
    port, gpu = facts.functions
    assert isinstance(link(gpu).width, Unknown)
    assert link(gpu).width == Unknown(DENIED, "lspci: Capabilities: <access denied>")
    assert isinstance(port.acs, Unknown)
    assert gpu.parent == port.address
    assert facts.source.status == PARTIAL
    assert facts.unread == {"denied: capabilities": 2}
    assert not facts.structure_only


@pytest.mark.parametrize("mark", ["", " (ok)", " (downgraded)", " (overdriven)", " (strange)"])
def test_marks_behind_values_are_passed_over(mark: str) -> None:
    """New pciutils adds its own opinion of speed and width."""
    text = GPU.replace(
        "Speed 8GT/s (downgraded), Width x8 (downgraded)", f"Speed 2.5GT/s{mark}, Width x4{mark}, TrErr- Train-"
    )
    assert link(functions(text)["0000:01:00.0"])[:2] == (2.5, 4)


@pytest.mark.parametrize("status", ["Speed unknown, Width x0", "Speed <unknown>, Width x63", "Speed 7GT/s, Width x255"])
def test_impossible_links_are_unknown(status: str) -> None:
    """No link, ones, and numbers that PCI Express does not have are unknown and never numbers."""
    text = GPU.replace("Speed 8GT/s (downgraded), Width x8 (downgraded)", status)
    end = link(functions(text)["0000:01:00.0"])
    assert end.speed_gts == Unknown(NO_DATA, "LnkSta")
    assert end.width == Unknown(NO_DATA, "LnkSta")


def test_the_oldest_link_lines() -> None:
    """pciutils before 3.0 named the registers otherwise."""
    text = (
        "01:00.0 VGA compatible controller: nVidia Corporation G80 [GeForce 8800 GTX] (rev a2)\n"
        "\tControl: I/O+ Mem+ BusMaster+\n"
        "\tCapabilities: [78] Express Endpoint IRQ 0\n"
        "\t\tDevice: Supported: MaxPayload 256 bytes, PhantFunc 0, ExtTag-\n"
        "\t\tDevice: MaxPayload 128 bytes, MaxReadReq 512 bytes\n"
        "\t\tLink: Supported Speed 2.5Gb/s, Width x16, ASPM L0s L1, Port 0\n"
        "\t\tLink: Latency L0s <512ns, L1 <4us\n"
        "\t\tLink: Speed 2.5Gb/s, Width x8\n"
    )
    (gpu,) = functions(text).values()
    assert gpu.link == LinkEnd(2.5, 8, 2.5, 16, None)
    assert gpu.payload_bytes == 128
    assert gpu.port_type == "endpoint"
    assert gpu.vendor_id == 0x10DE


def test_what_is_left_after_grep() -> None:
    """People grep for the lines that they think matter."""
    text = "01:00.0 3D controller: NVIDIA Corporation GH100\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM\n"
    text += (
        "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n02:00.0 Ethernet controller: Intel Corporation I210\n"
    )
    facts = only(text)
    assert facts.functions[0].link == LinkEnd(32.0, 8, 32.0, 16, None)
    assert not facts.structure_only
    assert facts.functions[1].link is None


def test_a_device_that_is_gone() -> None:
    """Revision ff, an unknown header type, ff rows: it does not answer, and its class is the remembered one."""
    head = "04:00.0 3D controller: NVIDIA Corporation GM108M [GeForce 840M] (rev ff) (prog-if ff)\n"
    rows = "".join(f"{offset:02x}:{' ff' * 16}\n" for offset in range(0, 256, 16))
    for text in (head + "\t!!! Unknown header type 7f\n\tKernel driver in use: nvidia\n", head + rows, head):
        (gpu,) = functions(text).values()
        assert gpu.answers is False
        assert gpu.class_code == 0x030200
        assert gpu.revision is None
        assert isinstance(link(gpu).width, Unknown)
        assert link(gpu).width == Unknown(LOST, "configuration space reads all ones")


def test_an_empty_slot() -> None:
    """Presence detect says that a slot is empty, unless something is recorded below it."""
    text = PORT.replace("PresDet+ Interlock", "PresDet- Interlock")
    assert functions(text)["0000:00:01.1"].hotplug_empty
    assert not functions(text + "\n" + GPU)["0000:00:01.1"].hotplug_empty


def test_the_slot_number_of_the_port_names_the_slot() -> None:
    """Where lspci prints no physical slot for a device, the port's slot number does."""
    assert functions(PORT + "\n" + GPU.replace("\tPhysical Slot: 3\n", ""))["0000:01:00.0"].slot == "4"


def test_a_run_without_any_driver_does_not_mean_missing_drivers() -> None:
    """A driver is absent only where the run names drivers at all."""
    lone = GPU.replace("\tKernel driver in use: nvidia\n", "")
    assert functions(lone)["0000:01:00.0"].driver is None
    silent = lone.replace("\tKernel modules: nvidiafb, nouveau, nvidia\n", "")
    assert isinstance(functions(silent)["0000:01:00.0"].driver, Unknown)
    assert functions(PORT + "\n" + silent)["0000:01:00.0"].driver is None


def test_one_pasted_device_has_an_unknown_parent() -> None:
    """An endpoint sits below a port that this paste does not hold."""
    assert functions(GPU)["0000:01:00.0"].parent == Unknown(NOT_RECORDED, "the bridge above")


def test_two_runs_are_two_samples() -> None:
    """The same device again begins another run; runs over different devices count as one."""
    busy = GPU.replace("Speed 8GT/s (downgraded)", "Speed 32GT/s (ok)")
    first, second = lspci.read((GPU + "\n" + busy).split("\n"), "test")
    assert link(first.functions[0]).speed_gts == 8.0
    assert link(second.functions[0]).speed_gts == 32.0
    assert len(lspci.read((GPU + "\n" + PORT).split("\n"), "test")) == 1


def test_an_inventory_behind_a_detailed_run_stays_apart() -> None:
    """nvidia-bug-report prints the NVIDIA devices in full and then the list of all."""
    listing = "00:00.0 Host bridge: Intel Corporation Device 09a2\n01:00.0 3D controller: NVIDIA Corporation GH100\n"
    detailed, inventory = lspci.read((GPU + "\n" + listing).split("\n"), "test")
    assert len(detailed.functions) == 1
    assert inventory.structure_only
    assert len(inventory.functions) == 2


def test_virtual_functions_by_their_routing_ids() -> None:
    """Offset and stride of the SR-IOV capability find the virtual functions, over the end of a bus too."""
    owner = """\
01:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
\tControl: I/O- Mem+ BusMaster+
\tCapabilities: [180 v1] Single Root I/O Virtualization (SR-IOV)
\t\tIOVCap:\tMigration-, Interrupt Message Number: 000
\t\tIOVCtl:\tEnable+ Migration- Interrupt- MSE+ ARIHierarchy+
\t\tIOVSta:\tMigration-
\t\tInitial VFs: 8, Total VFs: 8, Number of VFs: 2, Function Dependency Link: 00
\t\tVF offset: 255, stride: 1, Device ID: 101e
"""
    others = "".join(
        f"{address} Ethernet controller: Mellanox Technologies Device 101e\n\tControl: I/O- Mem-\n\n"
        for address in ("01:1f.7", "02:00.0", "02:00.1")
    )
    found = functions(PORT + "\n" + owner + "\n" + others)
    assert found["0000:01:1f.7"].physical_function == "0000:01:00.0"
    assert found["0000:02:00.0"].physical_function == "0000:01:00.0"
    assert found["0000:02:00.0"].parent == "0000:00:01.1"
    assert found["0000:02:00.1"].physical_function is None
    assert not found["0000:02:00.1"].virtual_function


def test_a_guest_knows_a_virtual_function_by_its_name() -> None:
    """Without the physical function the name tells."""
    text = "00:05.0 Ethernet controller: Mellanox Technologies MT28908 Family [ConnectX-6 Virtual Function]"
    (nic,) = functions(text).values()
    assert nic.virtual_function
    assert nic.physical_function is None


def test_rows_complete_the_text_and_the_text_completes_the_rows() -> None:
    """-v with -xxx: type, link and payload from the rows, NUMA node and driver from the text, ACS from neither."""
    data = bytearray(256)
    data[0:4] = bytes.fromhex("de103023")
    data[6] = 0x10
    data[8:12] = bytes.fromhex("a1000203")
    data[0x34] = 0x60
    data[0x60:0x64] = bytes.fromhex("10000200")
    data[0x6C:0x70] = (0x105).to_bytes(4, "little")
    data[0x72:0x74] = (0x0084).to_bytes(2, "little")
    rows = "".join(f"{at:02x}: {data[at : at + 16].hex(' ')}\n" for at in range(0, 256, 16))
    text = (
        "01:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n"
        "\tFlags: bus master, fast devsel, latency 0, IRQ 351, NUMA node 0, IOMMU group 7\n"
        "\tCapabilities: [60] Express Endpoint, MSI 00\n\tKernel driver in use: nvidia\n"
    )
    facts = only(text + rows)
    (gpu,) = facts.functions
    assert gpu.device_id == 0x2330
    assert link(gpu)[:4] == (16.0, 8, 32.0, 16)
    assert (gpu.numa_node, gpu.driver) == (0, "nvidia")
    assert isinstance(gpu.acs, Unknown)
    assert not facts.structure_only


def test_rows_out_of_place_are_left_out() -> None:
    """A row that does not follow the one before ends the dump; what came first still counts."""
    rows = "00: de 10 30 23 06 00 10 00 a1 00 02 03 00 00 00 00\n20: ff ff ff ff\n"
    (gpu,) = functions("01:00.0 3D controller: NVIDIA Corporation GH100\n" + rows).values()
    assert gpu.answers is not False


def keyed(facts: Facts) -> dict[str, Function]:
    return {function.address: function for function in facts.functions}


def plain(value: object) -> object:
    """A reading without the words for why it is unknown."""
    if isinstance(value, LinkEnd):
        return tuple(known(one) for one in value[:4])
    return None if isinstance(value, Unknown) else value


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_text_and_rows_of_every_recorded_dump_say_the_same(corpus: Path, tmp_path: Path) -> None:
    """What lspci makes of a dump, read as text, equals what is decoded from its rows."""
    compared = 0
    fields = [field for field in Function._fields if field not in ("name", "revision", "driver", "numa_node")]
    for path, dump in dumps(corpus):
        copy = tmp_path / "dump"
        copy.write_text(dump)
        run = subprocess.run(["lspci", "-F", str(copy), "-vvv", "-nn"], capture_output=True, text=True, check=True)
        (rows,) = lspci.read(dump.split("\n"), "rows")
        (text,) = lspci.read(run.stdout.split("\n"), "text")
        by_text = keyed(text)
        for address, function in keyed(rows).items():
            if not function.answers:
                continue
            compared += 1
            for field in fields:
                mine, theirs = plain(getattr(function, field)), plain(getattr(by_text[address], field))
                if field == "aer" and function.aer and known(function.aer.correctable) is None:
                    continue  # 256 bytes: lspci says nothing either
                assert mine == theirs, f"{path.parent.name} {address} {field}"
    assert compared > 700


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_lspci_on_a_tree_finds_the_parents_that_the_tree_has(corpus: Path, tmp_path: Path) -> None:
    """Bus numbers in lspci's text lead to the same parents as the links in sysfs."""
    compared = 0
    for archive in sorted(corpus.glob("*/sysfs-rebuilt.tar.gz")):
        root = tmp_path / archive.parent.name
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="tar")
        devices = root / "sys/bus/pci/devices"
        if not all((entry / "config").exists() for entry in devices.iterdir()):
            continue
        command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci", "-vvv", "-D"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        (facts,) = lspci.read(run.stdout.split("\n"), "text")
        assert {entry.name for entry in devices.iterdir()} == set(keyed(facts))
        for address, function in keyed(facts).items():
            above = (devices / address).resolve().parent.name
            assert function.parent == (above if above.count(":") == 2 else None), f"{archive.parent.name} {address}"
            compared += 1
    assert compared > 500


LINES = [*(PORT + "\n" + GPU).split("\n"), "00: de 10 30 23 06 00 10 00 a1 00 02 03 00 00 00 00", "10: ff"]


@settings(max_examples=200)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=120))
def test_shuffled_and_foreign_lines_are_read_without_an_exception(lines: list[str]) -> None:
    """Lines in any order, doubled, with anything between them."""
    for facts in lspci.read(lines, "test"):
        for function in facts.functions:
            assert known(link(function).width) != 0 if function.link else True


@settings(max_examples=200)
@given(st.data())
def test_damaged_text_is_read_without_an_exception(data: st.DataObject) -> None:
    """Characters replaced, removed, doubled; the text cut off."""
    text = PORT + "\n" + GPU
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 40)))
        text = text[:at] + data.draw(st.text(max_size=8)) + text[end:]
    lspci.read(text.split("\n"), "test")


@pytest.mark.parametrize(
    "text",
    [
        "01:00.0 " + "a" * 1_000_000,
        "01:00.0 3D controller: " + "[" * 1_000_000,
        "01:00.0 3D controller: x\n\tLnkSta:\tSpeed" + " 8GT/s" * 200_000,
        "01:00.0 3D controller: x\n\tCapabilities: [60] Express\n\t\tLnkSta:\tSpeed\n" + "\t\t\tx\n" * 300_000,
        "".join(f"{n >> 8 & 255:02x}:{n >> 3 & 31:02x}.{n & 7} 3D controller: x\n" for n in range(20_000)),
        "01:00.0 3D controller: x\n" * 20_000,
        "".join(
            f"{n:04x}:00:00.0 PCI bridge: x\n\tBus: primary=00, secondary=01, subordinate=ff, sec-latency=0\n"
            for n in range(4_000)
        ),
        "".join(
            f"{n:04x}:00:00.0 Ethernet controller: x\n\tCapabilities: [1] Single Root I/O Virtualization (SR-IOV)\n"
            "\t\tIOVCtl:\tEnable+\n\t\tInitial VFs: 1, Number of VFs: 65535\n"
            "\t\tVF offset: 1, stride: 1, Device ID: 101e\n"
            for n in range(4_000)
        ),
    ],
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    """Megabytes of one line, one field, one device or one bridge a domain end soon."""
    before = time.process_time()
    lspci.read(text.split("\n"), "test")
    assert time.process_time() - before < 10


def test_an_unknown_header_type_that_was_read() -> None:
    """Only 7f is all ones: a device with any other header type answers."""
    head = "41:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)\n"
    for number, answers in (("03", None), ("7f", False)):
        (gpu,) = functions(head + f"\t!!! Unknown header type {number}\n").values()
        assert gpu.answers is answers


def test_a_width_at_which_the_text_is_cut_off() -> None:
    """x1 may be the beginning of x16; a line below it, or a grep that leaves no other lines, says that it is not."""
    whole = PORT[: PORT.index("\t\t\tTrErr-")].replace("Width x8 (downgraded)\n", "Width x1")
    (port,) = functions(whole).values()
    assert isinstance(link(port).width, Unknown)
    assert port.driver == Unknown(NOT_RECORDED, "lspci: Kernel driver in use")
    (port,) = functions(whole + "\n\t\t\tTrErr- Train- SlotClk+\n").values()
    assert link(port).width == 1
    (port,) = functions(PORT.splitlines()[0] + "\n\t\tLnkSta:\tSpeed 8GT/s, Width x1").values()
    assert link(port).width == 1
