"""Every reader is fed damaged recordings: whatever comes, it gives facts, in time and without exceptions."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from gpu_topo.collectors.outputs import MAX_LINE
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.collectors.recording import READERS, readers
from gpu_topo.model.facts import Facts
from tests.conftest import SHARED

# A little of each kind for a machine without the recordings; the readers' own tests have more.
SAMPLES: dict[str, str] = {
    "lspci": """\
0000:64:00.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 04) (prog-if 00 [Normal decode])
\tBus: primary=64, secondary=65, subordinate=65, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), IntMsgNum 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)
0000:65:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331] (rev a1)
\tControl: I/O- Mem+ BusMaster+
\tCapabilities: <access denied>
\tKernel driver in use: nvidia
00: de 10 31 23 06 04 10 00 a1 00 02 03 10 00 00 00
40: 10 00 12 00 e1 8f 2c 01 30 29 00 00 04 4d 45 00
""",
    "lspci_tree": """\
-+-[0000:64]---00.0-[65]----00.0  NVIDIA Corporation GH100 [H100 PCIe]
 \\-[0000:00]-+-00.0  Intel Corporation Device 09a2
             \\-1f.0  Intel Corporation Device 1b81
""",
    "nvidia_smi_query": """\
==============NVSMI LOG==============
Driver Version                            : 550.54.15
Attached GPUs                             : 1
GPU 00000000:65:00.0
    Product Name                          : NVIDIA H100 PCIe
    GPU UUID                              : GPU-00000000-0000-0000-0000-000000000001
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
""",
    "nvidia_smi_xml": """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
<driver_version>550.54.15</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:65:00.0"><product_name>NVIDIA H100 PCIe</product_name>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
</pci_gpu_link_info></pci></gpu>
</nvidia_smi_log>
""",
    "nvidia_smi_topo": """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t56-111,168-223\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
NIC Legend:

  NIC0: mlx5_0
""",
    "nvidia_smi_nvlink": """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000001)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
""",
    "nvidia_smi_table": """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:17:00.0 Off |                   On |
| N/A   34C    P0             61W /  700W |       1MiB /  81559MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
| MIG devices:                                                                            |
|  0    7   0   0  |               5MiB /  4864MiB  | 14      0 |  1   0    0    0    0 |
+------------------+--------------------------------+-----------+-------------------------+
| Processes:                                                                              |
""",
    "nvidia_smi_csv": """\
index, name, uuid, pci.bus_id, pstate, utilization.gpu [%], pcie.link.gen.current, pcie.link.width.current
0, NVIDIA H100 80GB HBM3, GPU-00000000-0000-0000-0000-000000000001, 00000000:17:00.0, P0, 97 %, 5, 16
1, NVIDIA H100 80GB HBM3, GPU-00000000-0000-0000-0000-000000000002, 00000000:65:00.0, P0, [N/A],
[Unknown Error], 8
$ nvidia-smi --query-gpu=index,pcie.link.width.current --format=csv,noheader
0, 16
""",
    "rocm_smi": """\
=========================== ROCm System Management Interface ===========================
=============================== Weight between two GPUs ================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

============================== Link Type between two GPUs ==============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0

====================================== Bandwidth =======================================
       GPU0          GPU1
GPU0   N/A           50000-100000
GPU1   50000-100000  N/A
====================================== Numa Nodes ======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
====================================== PCI Bus ID ======================================
GPU[0]\t\t: PCI Bus: 0000:43:00.0
GPU[1]\t\t: PCI Bus: 0000:23:00.0
===================================== Concise Info =====================================
0       2     0x74a1,   3771   47.0C      154.0W    NPS4, CPX, 0        133Mhz  900Mhz
1       3     N/A,      62138  N/A        N/A       N/A, N/A, 1         N/A     N/A
================================= End of ROCm SMI Log ==================================
""",
    "amd_smi_topology": """\
WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 0            15
0000:22:00.0 15           0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 SELF         XGMI
0000:22:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 N/A          50000-50000
0000:22:00.0 50000-50000  N/A

XGMI LINK STATUS:
       bdf           GPU0          GPU1
GPU0   0000:0c:00.0  SELF          U
GPU1   0000:22:00.0  U             SELF

Legend:
  SELF = Current GPU
""",
    "amd_smi": """\
GPU: 0
    BDF: 0000:0c:00.0
    UUID: 00000000-0000-1000-8000-000000000001
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
        DEVICE_ID: 0x74a1
    BUS:
        BDF: 0000:0c:00.0
        MAX_PCIE_WIDTH: 16
        MAX_PCIE_SPEED: 32 GT/s
    PCIE:
        WIDTH: 16
        SPEED: 32 GT/s
        REPLAY_COUNT: 0
    NUMA:
        NODE: 0
""",
    "npu_smi": """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 171.2       41                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3104 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           42                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2886 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
""",
    "npu_smi_topo": """\
\t   NPU0       NPU1       NPU2       NPU3       CPU Affinity
NPU0       X          HCCS       HCCS       PHB        0-23
NPU1       HCCS       X          HCCS       SYS        0-23,96-119
NPU2       HCCS       HCCS       X          NA         24-47
NPU3       PHB        SYS        NA         X          24-47

Legend:

  X    = Self
  PIX  = Path traversing a single PCIe switch
  HCCS = Connection traversing HCCS.
""",
    "ibstat": """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
""",
    "ibstatus": """\
Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0001
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand
""",
    "ibv_devinfo": """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tlink_layer:\t\tInfiniBand
""",
    "nccl_xml": """\
<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64">
    <pci busid="0000:0c:00.0" class="0x060400" vendor="0x1000" device="0xc030">
      <pci busid="0000:0f:00.0" class="0x030200" vendor="0x10de" device="0x2330">
        <gpu dev="0" sm="90"><nvlink target="0000:04:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
    </pci>
  </cpu>
</system>
""",
    "hwloc_xml": """\
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000001">
    <object type="NUMANode" os_index="0" cpuset="0x0000000f" nodeset="0x00000001"/>
    <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">
      <object type="PCIDev" pci_busid="0000:00:01.0" pci_type="0302 [10de:1db1] [10de:1212] a1" pci_link_speed="15.7">
        <object type="OSDev" gp_index="1" name="nvml0" osdev_type="1"><info name="GPUModel" value="V100"/></object>
      </object>
    </object>
  </object>
  <distances2 type="OSDev" nbobjs="1" kind="9" name="NVLinkBandwidth" indexing="gp">
    <indexes length="2">1 </indexes><u64values length="8">1000000 </u64values>
  </distances2>
</topology>
""",
}

# What the recordings have of each kind.
RECORDED: dict[str, Sequence[str]] = {
    "lspci": (
        "m20-*/lspci-vvv.txt",
        "m02-*/lspci-nnDvvvxxxx.txt",
        "d1*/*.lspci",
        "l02-*/lspci-nn.txt",
        "d05-*/*.lspci",
    ),
    "lspci_tree": ("m*/lspci-t*.txt",),
    "nvidia_smi_query": ("m*/nvidia-smi-query.txt", "c01-*/capture.txt"),
    "nvidia_smi_xml": ("n*/nvidia-smi-qx.xml",),
    "nvidia_smi_topo": ("p*/nvidia-smi-topo-m.txt", "m23-*/nvidia-smi-topo-m.txt"),
    "nvidia_smi_nvlink": ("l0*/nvlink-s*.txt",),
    "nvidia_smi_table": ("c0*/capture.txt",),
    "nvidia_smi_csv": ("c0*/capture.txt",),
    "rocm_smi": (),
    "amd_smi_topology": (),
    "amd_smi": (),
    "npu_smi": (),
    "npu_smi_topo": (),
    "ibstat": ("i*/ibstat.txt",),
    "ibstatus": ("i*/ibstatus.txt",),
    "ibv_devinfo": ("m23-*/ibv_devinfo.txt",),
    "nccl_xml": ("x*/topo.xml",),
    "hwloc_xml": ("h*/hwloc.xml",),
}

_CONTROLS = frozenset(map(chr, (*range(32), *range(127, 160))))
_MOST = 50_000  # characters of a seed, so that a hundred mutations of each take a second
_ROUNDS = 60
_NASTY = (
    "-1",
    "99999999999999999999",
    "0x",
    "1e400",
    "nan",
    "N/A",
    "[Unknown Error]",
    "ERR!",
    "\ufffd",
    "é",
    "٣",
    "²",
    "ffff:ff:1f.7",
    "10000000:00:00.0",
    "</gpu>",
    "&amp;",
    "&x;",
    "<![CDATA[",
    "<!--",
    ":",
    "::",
    "(",
    "[",
    "\t",
    " " * 300,
    "x" * 300,
    "=" * 300,
)


def seeds(name: str) -> Iterator[str]:
    """The built-in sample and a piece of each recording of that kind."""
    yield SAMPLES[name]
    for pattern in RECORDED[name]:
        for path in sorted((SHARED / "corpus").glob(pattern)):
            text = path.read_text(errors="replace")
            if len(text) <= _MOST or not name.endswith("_xml"):  # half a document is no document
                yield text[:_MOST]


def mutate(text: str, chance: random.Random) -> str:
    """One damaged copy: characters, words and lines changed, moved, repeated or cut."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(lines))
        line = lines[at]
        act = chance.randrange(9)
        if act == 0:
            del lines[at : at + chance.randint(1, 5)]
        elif act == 1:
            lines[at:at] = lines[at : at + chance.randint(1, 20)]
        elif act == 2:
            lines.insert(chance.randrange(len(lines) + 1), line)
        elif act == 3 and line:
            cut = chance.randrange(len(line))
            lines[at] = (
                line[:cut] + chr(chance.choice((chance.randrange(32, 127), chance.randrange(160, 0x2FFF)))) + line[cut:]
            )
        elif act == 4 and line:
            lines[at] = line[: chance.randrange(len(line))]
        elif act == 5 and line.split():
            words = line.split(" ")
            words[chance.randrange(len(words))] = chance.choice(_NASTY)
            lines[at] = " ".join(words)
        elif act == 6:
            lines[at] = line.lstrip() if chance.random() < 0.5 else "\t" + line
        elif act == 7:
            lines = lines[: chance.randrange(1, len(lines) + 1)]
        elif act == 8:
            digits = [i for i, character in enumerate(line) if character.isdigit()]
            if digits:
                cut = chance.choice(digits)
                lines[at] = line[:cut] + chance.choice(_NASTY) + line[cut + 1 :]
        if not lines:
            lines = [""]
    return "\n".join(lines)


def texts(value: object) -> Iterator[str]:
    """Every text in a structure of named tuples."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list, frozenset)):
        for item in value:
            yield from texts(item)
    elif hasattr(value, "items"):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)


def check(found: list[Facts], limit: int) -> None:
    """Facts, no more of them than the input could hold, and nothing in them that a terminal obeys."""
    for facts in found:
        assert isinstance(facts, Facts)
        assert len(facts.functions) <= limit
        for text in texts(facts):
            assert all(character == "\t" or character not in _CONTROLS for character in text), repr(text)
        for function in facts.functions:
            for number in (function.vendor_id, function.device_id):
                assert number is None or 0 <= number <= 0xFFFF
            assert function.class_code is None or 0 <= function.class_code <= 0xFFFFFF


def lines_of(text: str) -> list[str]:
    return [clean(line)[:MAX_LINE] for line in text.split("\n")]


@pytest.fixture(params=READERS)
def named(request: pytest.FixtureRequest) -> tuple[str, Reader]:
    """Each reader of the registry with its module's name."""
    name: str = request.param
    return name, readers()[name]


def test_every_reader_has_a_sample() -> None:
    """A new reader is fuzzed from its first day."""
    assert set(SAMPLES) == set(READERS)
    assert set(RECORDED) == set(READERS)


def test_samples_are_understood(named: tuple[str, Reader]) -> None:
    """The samples are of their kind, else the mutations would test nothing."""
    name, reader = named
    for text in seeds(name):
        lines = lines_of(text)
        assert any(map(reader.begins, lines))
        found = reader.read(lines, "t")
        assert any(facts.functions or facts.gpus or facts.ports or facts.driver for facts in found)


def test_damaged_recordings(named: tuple[str, Reader]) -> None:
    """A mutated recording raises nothing, takes no longer than its size allows, and gives clean facts."""
    name, reader = named
    chance = random.Random(name)
    started = time.process_time()
    for text in seeds(name):
        rounds = _ROUNDS if len(text) < 5_000 else _ROUNDS // 6
        for _ in range(rounds):
            lines = lines_of(mutate(text, chance))
            for line in lines[:200]:
                assert reader.begins(line) in (True, False)
            check(reader.read(lines, "t"), len(lines) * 64)
    assert time.process_time() - started < 60


def test_cut_anywhere(named: tuple[str, Reader]) -> None:
    """A sample cut after any character, or begun at any line, raises nothing."""
    name, reader = named
    text = SAMPLES[name]
    for at in range(0, len(text), 3):
        check(reader.read(lines_of(text[:at]), "t"), 1000)
    lines = lines_of(text)
    for at in range(len(lines)):
        check(reader.read(lines[at:], "t"), 1000)
    check(reader.read([], "t"), 0)


def test_foreign_text(named: tuple[str, Reader]) -> None:
    """The samples of all the other readers, and noise, raise nothing."""
    _, reader = named
    for text in SAMPLES.values():
        check(reader.read(lines_of(text), "t"), 1000)
    chance = random.Random(7)
    noise = "".join(chr(chance.randrange(9, 0x300)) for _ in range(20_000))
    check(reader.read(lines_of(noise), "t"), 100_000)


def test_time_and_memory_grow_with_the_input(named: tuple[str, Reader]) -> None:
    """Many copies of an output take time and memory in proportion: no reader looks back over all that it has seen."""
    name, reader = named
    lines = lines_of(SAMPLES[name])
    many = lines * (20_000 // len(lines))
    started = time.process_time()
    reader.read(many, "t")
    assert time.process_time() - started < 10
    tracemalloc.start()
    try:
        reader.read(many, "t")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize("filler", [" ", "\t", "=", "0", "a", ":", "0:", "[", "(", "<", "-", "|", "x1 ", ","])
def test_endless_lines(named: tuple[str, Reader], filler: str) -> None:
    """No pattern loses its way in a line of thousands of equal characters."""
    name, reader = named
    tail = (filler * MAX_LINE)[:MAX_LINE]
    started = time.process_time()
    for line in lines_of(SAMPLES[name]):
        for at in {0, len(line) // 2, len(line)}:
            long = (line[:at] + tail)[:MAX_LINE] + "!"
            reader.begins(long)
    first = lines_of(SAMPLES[name])
    check(reader.read([*first[:2], *(line + tail for line in first[2:8])], "t"), 1000)
    assert time.process_time() - started < 5
