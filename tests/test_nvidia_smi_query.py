"""nvidia-smi -q as text: recordings of real machines, samples over time, and everything that a driver refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_query import READER, read
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.model.gpu import DriverGpu, Fabric
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import DENIED, FAILED, LOST, MALFORMED, Unknown, known

HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Sat Dec  3 23:09:53 2022
Driver Version                            : 510.85.02
CUDA Version                              : 11.6

Attached GPUs                             : 1
"""


def one(body: str, head: str = HEAD) -> DriverGpu:
    """The only GPU of a text that holds one."""
    (sample,) = read((head + "GPU 00000000:17:00.0\n" + body).splitlines(), "test")
    (gpu,) = sample.gpus
    return gpu


def recorded(path: Path) -> list[str]:
    return [clean(line) for line in path.read_text(encoding="utf-8").splitlines()]


def printed(lines: list[str], name: str) -> list[str]:
    """Every value printed under a name, found without the reader."""
    return [line.partition(" : ")[2].strip() for line in lines if re.match(rf"\s*{name} +: ", line)]


@pytest.mark.parametrize(
    "recording",
    [
        "c01-h200-vm-idle-load/capture.txt",
        "c04-h200-mig/capture.txt",
        "c05-l40s/capture.txt",
        "c06-rtx4080s-gen1-idle-gen4-load/capture.txt",
        "m01-2x3080-am5-x8x8/nvidia-smi-query.txt",
        "m08-2xa6000-threadripper-healthy/nvidia-smi-query.txt",
        "m14-8xrtx5000-plx/nvidia-smi-query.txt",
        "m19-1650ti-laptop-x8/nvidia-smi-query.txt",
    ],
)
def test_recordings(corpus: Path, recording: str) -> None:
    """Addresses, models, P-states, versions, minors and replays are those that a search of the text finds."""
    lines = recorded(corpus / recording)
    samples = read(lines, recording)
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    assert [gpu.address for gpu in gpus] == [
        f"{int(match[1], 16):04x}:{match[2].lower()}"
        for match in map(re.compile(r"GPU (\w{8}):(\S+)$").match, lines)
        if match
    ]
    assert [gpu.model for gpu in gpus] == printed(lines, "Product Name")
    assert [f"P{gpu.pstate}" for gpu in gpus] == printed(lines, "Performance State")
    assert [str(gpu.minor) for gpu in gpus] == printed(lines, "Minor Number")
    assert [str(gpu.replays) for gpu in gpus] == printed(lines, "Replays Since Reset")
    assert [gpu.virtualization for gpu in gpus] == printed(lines, "Virtualization Mode")
    with_gpus = printed(lines, "Driver Version")[: len(samples)]
    assert [sample.driver.version for sample in samples if sample.driver] == with_gpus
    assert [str(len(sample.gpus)) for sample in samples] == printed(lines, "Attached GPUs")
    assert all(not gpu.lost and not gpu.unknowns for gpu in gpus)
    assert all(gpu.ordinal == number for sample in samples for number, gpu in enumerate(sample.gpus))


def test_samples_in_order(corpus: Path) -> None:
    """Idle and loaded output in one file are two samples, oldest first."""
    idle, loaded = read(recorded(corpus / "c06-rtx4080s-gen1-idle-gen4-load" / "capture.txt"), "c06")
    assert idle.gpus[0].link == LinkEnd(2.5, 16, 16.0, 16)
    assert loaded.gpus[0].link == LinkEnd(16.0, 16, 16.0, 16)
    assert (idle.gpus[0].pstate, idle.gpus[0].utilization) == (8, 0)
    assert (loaded.gpus[0].pstate, loaded.gpus[0].utilization) == (2, 7)
    assert idle.gpus[0].host_max_speed_gts == 32.0


def test_mig(corpus: Path) -> None:
    """MIG devices are counted, and what is printed of them is not taken for the GPU's own."""
    lines = recorded(corpus / "c04-h200-mig" / "capture.txt")
    for sample in read(lines, "c04"):
        (gpu,) = sample.gpus
        assert gpu.mig is True
        assert gpu.partitions == 5
        assert gpu.utilization is None


def test_fabric_and_identity(corpus: Path) -> None:
    """Identity, fabric and virtualization of an H200 in a guest."""
    (gpu,) = read(recorded(corpus / "c01-h200-vm-idle-load" / "capture.txt"), "c01")[0].gpus
    assert (gpu.vendor_id, gpu.device_id) == (0x10DE, 0x2335)
    assert gpu.architecture == "Hopper"
    assert gpu.fabric == Fabric("Completed", "Success", 0, {})
    assert gpu.c2c is False


def test_lost_gpu_recordings(corpus: Path) -> None:
    """A GPU that nvidia-smi cannot open is lost; nothing is said of the others. The list of units is no sample."""
    (sample,) = read(recorded(corpus / "m02-3xa6000-plx-one-unreachable" / "nvidia-smi-query.txt"), "m02")
    assert [(gpu.address, gpu.lost) for gpu in sample.gpus] == [("0000:68:00.0", True)]
    assert sample.driver
    assert sample.driver.status == "ok"
    assert not sample.driver.lists_all
    (sample,) = read(recorded(corpus / "m17-840m-dead-config-ff" / "nvidia-smi-query.txt"), "m17")
    assert [(gpu.address, gpu.lost) for gpu in sample.gpus] == [("0000:04:00.0", True)]


def test_failed_driver(corpus: Path) -> None:
    """A driver that does not answer is a failed source, said once, and no GPU is lost by it."""
    (sample,) = read(recorded(corpus / "m13-vm-2080ti-conventional-bus" / "nvidia-smi-query.txt"), "m13")
    assert sample.source.status == "failed"
    assert sample.driver
    assert sample.driver.status == "failed"
    assert "mismatch" in sample.driver.detail
    assert sample.gpus == ()


@pytest.mark.parametrize(
    ("line", "address", "ordinal"),
    [
        ("Unable to determine the device handle for GPU0000:68:00.0: Unknown Error", "0000:68:00.0", None),
        ("Unable to determine the device handle for GPU 0000:04:00.0: GPU is lost.  Reboot", "0000:04:00.0", None),
        ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error", "0000:34:00.0", 1),
        ("Unable to determine the device handle for gpu 00000001:34:00.0: Unknown Error", "0001:34:00.0", None),
        ("Unable to determine the device handle for GPU 3: Unknown Error", None, 3),
    ],
)
def test_lost_by_handle(line: str, address: str | None, ordinal: int | None) -> None:
    """Every release's wording of a GPU that cannot be opened names it by address, by index or by both."""
    assert READER.begins(line)
    (sample,) = read([line], "test")
    (gpu,) = sample.gpus
    assert (gpu.address, gpu.ordinal, gpu.lost) == (address, ordinal, True)


def test_lost_beside_others() -> None:
    """The error line and the output of the remaining GPUs are two samples, each with what it says."""
    text = "Unable to determine the device handle for GPU0: 0000:65:00.0: Unknown Error\n" + HEAD
    errors, output = read((text + "GPU 00000000:17:00.0\n    Product Name   : NVIDIA H100\n").splitlines(), "test")
    assert [gpu.address for gpu in errors.gpus] == ["0000:65:00.0"]
    assert [gpu.address for gpu in output.gpus] == ["0000:17:00.0"]


def test_lost_while_asked() -> None:
    """ "GPU is lost" in any field, or errors in all that a present GPU answers, mean a lost GPU."""
    assert one("    Product Name  : NVIDIA A100\n    Performance State : GPU is lost\n").lost
    broken = "    Performance State : ERR!\n    Utilization\n        Gpu : Unknown Error\n"
    gpu = one("    Product Name  : NVIDIA A100\n" + broken)
    assert gpu.lost
    assert isinstance(gpu.pstate, Unknown)
    assert gpu.pstate.why == FAILED
    assert gpu.unknowns.keys() == {"pstate", "utilization"}


def test_one_broken_sensor_is_no_lost_gpu() -> None:
    """An unknown error in one field leaves the GPU in place."""
    body = "    Performance State : P0\n    Utilization\n        Gpu : [Unknown Error]\n"
    gpu = one(body)
    assert not gpu.lost
    assert gpu.pstate == 0


def test_three_states() -> None:
    """Not supported is None, a refusal is Unknown with its reason, anything else is the value."""
    gpu = one(
        """
    Product Name       : NVIDIA A100
    GPU UUID           : [Insufficient Permissions]
    Minor Number       : [N/A]
    GPU C2C Mode       : Not Supported
    Performance State  : P99
    PCI
        Device Id      : 0x20B010DE
        GPU Link Info
            PCIe Generation
                Max     : 4
                Current : Requested functionality has been deprecated
            Link Width
                Max     : 16x
                Current : [GPU is lost]
""".lstrip("\n")
    )
    assert isinstance(gpu.uuid, Unknown)
    assert gpu.uuid.why == DENIED
    assert gpu.minor is None
    assert gpu.c2c is None
    assert isinstance(gpu.pstate, Unknown)
    assert gpu.pstate.why == MALFORMED
    assert gpu.link
    assert gpu.link.speed_gts is None
    assert gpu.link.max_speed_gts == 16.0
    assert isinstance(gpu.link.width, Unknown)
    assert gpu.link.width.why == LOST
    assert set(gpu.unknowns) == {"uuid", "pstate", "link.width"}


def test_selected_gpu() -> None:
    """`-i 3` prints one of eight GPUs: its index is not known, and the output is no list of all."""
    head = HEAD.replace(": 1", ": 8")
    gpu = one("    Product Name : NVIDIA H100\n", head)
    assert gpu.ordinal is None
    (sample,) = read((head + "GPU 00000000:17:00.0\n    Product Name : NVIDIA H100\n").splitlines(), "test")
    assert sample.driver
    assert not sample.driver.lists_all


def test_no_devices() -> None:
    """No devices is an answer of a working driver."""
    (sample,) = read(["No devices were found"], "test")
    assert sample.driver
    assert sample.driver.status == "ok"
    assert sample.gpus == ()


def test_lost_indentation() -> None:
    """A paste that lost its indentation still tells the GPU's values."""
    body = "Product Name : NVIDIA A100\nMIG Mode\nCurrent : Disabled\nPCI\nGPU Link Info\nPCIe Generation\nMax : 4\n"
    body += "Current : 1\n"
    gpu = one(body + "Link Width\nMax : 16x\nCurrent : 8x\nPerformance State : P8\nUtilization\nGpu : 0 %\n")
    assert gpu.mig is False
    assert gpu.link == LinkEnd(2.5, 8, 16.0, 16)
    assert (gpu.pstate, gpu.utilization) == (8, 0)


def test_indented_as_a_whole(corpus: Path) -> None:
    """A quoted block that is indented as a whole reads the same."""
    lines = recorded(corpus / "m08-2xa6000-threadripper-healthy" / "nvidia-smi-query.txt")
    assert read(["    " + line for line in lines], "x") == read(lines, "x")


def test_other_output_behind() -> None:
    """What follows an output at the left margin is not taken for the GPU's."""
    gpu = one("    Product Name : NVIDIA A100\nsome prose\n    Performance State : P0\n")
    assert gpu.pstate is None


def test_whole_capture(corpus: Path) -> None:
    """In a capture of several tools each output finds its reader."""
    (capture,) = read_inputs([str(corpus / "c01-h200-vm-idle-load" / "capture.txt")])
    kinds = [facts.source.name.partition(" (")[0] for facts in capture.facts]
    looks = ["nvidia-smi", "nvidia-smi -q", "nvidia-smi --query-gpu"]
    assert kinds == ["nvidia-smi -L", "nvidia-smi topo -m", "nvidia-smi nvlink", *looks, *looks]


@given(st.text(max_size=400), st.integers(0, 600), st.integers(0, 600))
def test_any_text(noise: str, start: int, cut: int) -> None:
    """No text makes the reader raise, nor a real output with noise inside or its end cut off."""
    text = (
        HEAD
        + "GPU 00000000:17:00.0\n    MIG Device\n        Index : 0\n    Clocks Event Reasons\n        Idle : Active\n"
    )
    read(noise.splitlines(), "test")
    read((text[:start] + noise + text[start:cut]).splitlines(), "test")
    for line in noise.splitlines():
        READER.begins(line)


def test_much_text() -> None:
    """Long lines and many lines take time in proportion."""
    read([HEAD, "GPU 00000000:17:00.0", "    " + "x : " * 100_000, *["    a : b"] * 100_000], "test")
    read([" " * 500_000 + "GPU", "Unable to determine the device handle for GPU " + "0" * 500_000], "test")


def test_a_width_at_which_the_text_is_cut_off() -> None:
    """A width without its x is no width: 1 may be the beginning of 16x."""
    text = "GPU 00000000:2E:00.0\n    PCI\n        GPU Link Info\n            Link Width\n                Current : 1"
    for end, width in (("", None), ("6x", 16)):
        (sample,) = read((text + end).splitlines(), "t")
        link = sample.gpus[0].link
        assert link is not None
        assert known(link.width) == width
