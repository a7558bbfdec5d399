"""What NVML says becomes facts: the real nvidia-ml-py against the fake library, and the transcript by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_topo
from gpu_topo.collectors import nvml, nvml_driver, nvml_facts, nvml_transcript, nvml_worker
from gpu_topo.collectors.context import Context
from gpu_topo.collectors.nvml_worker.answers import text
from gpu_topo.collectors.nvml_worker.questions import kernel_address
from gpu_topo.model.facts import ABSENT, OK
from gpu_topo.model.gpu import ACTIVE, INACTIVE, DriverGpu, NvLink
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known
from tests.fakenvml import Machine, states
from tests.fakenvml.fixtures import Boot, Host, Replayed, boot, collect, library, old_library, workers

__all__ = ["boot", "library", "old_library"]  # fixtures

NO_TIME = Context(0.0)  # a recording needs none
HGX = tuple(bus[4:].lower() for bus in states.HGX_BUSES)


def links(gpu: DriverGpu) -> tuple[NvLink, ...]:
    found = known(gpu.nvlinks)
    assert found is not None
    return found


def active(gpu: DriverGpu) -> int:
    return sum(link.state == ACTIVE for link in links(gpu))


# --- machines -----------------------------------------------------------------------------------------------------


def test_hgx_h100(boot: Boot) -> None:
    """Eight H100: identity, PCIe as the driver sees it, 18 links to four NVSwitches on PCI, fabric, NV18 everywhere."""
    boot(states.hgx_h100)
    facts = collect(Host())
    assert facts.source.status == OK
    assert facts.driver is not None
    assert (facts.driver.status, facts.driver.version) == ("ok", "550.90.07")
    assert [gpu.address for gpu in facts.gpus] == list(HGX)
    gpu = facts.gpus[3]
    assert (gpu.ordinal, gpu.uuid, gpu.model) == (
        3,
        "GPU-00000003-1111-2222-3333-444455556666",
        "NVIDIA H100 80GB HBM3",
    )
    assert (gpu.vendor_id, gpu.device_id, gpu.architecture) == (0x10DE, 0x2330, "Hopper")
    assert gpu.link is not None
    assert (gpu.link.speed_gts, gpu.link.width, gpu.link.max_speed_gts, gpu.link.max_width) == (32.0, 16, 32.0, 16)
    assert (gpu.gpu_max_speed_gts, gpu.replays, gpu.minor, gpu.numa_node) == (32.0, 0, 3, 0)
    assert (gpu.pstate, gpu.utilization) == (0, 0)
    assert (gpu.mig, gpu.partitions, gpu.c2c, gpu.virtualization, gpu.lost) == (False, 0, None, "None", False)
    assert len(links(gpu)) == active(gpu) == 18
    switches = {link.remote for link in links(gpu)}
    assert switches == {"0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"}
    assert {(link.version, link.remote_kind, link.gbs) for link in links(gpu)} == {(4, "nvswitch", 26.562)}
    assert links(gpu)[0].errors == {"replay": 0, "recovery": 0, "crc": 0}
    fabric = known(gpu.fabric)
    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.clique) == ("Completed", "Success", 0)
    assert fabric.health["summary"] == "Healthy"
    assert fabric.health["bandwidth"] == "Full"
    assert {peer.kind for peer in facts.peers} == {"NV18"}
    assert len(facts.peers) == 28
    assert facts.peers[0].p2p == {"read": "OK", "nvlink": "OK"}


def test_a100_pcie_pair(boot: Boot) -> None:
    """Four A100 PCIe cards of which two are bridged: 12 links, the other two have 12 inactive ones."""
    boot(states.a100_pcie)
    facts = collect(Host())
    assert [active(gpu) for gpu in facts.gpus] == [12, 12, 0, 0]
    assert [len(links(gpu)) for gpu in facts.gpus] == [12] * 4
    link = links(facts.gpus[0])[0]
    assert (link.remote, link.remote_kind, link.version, link.gbs) == ("0000:41:00.0", "gpu", 3, 25.0)
    assert link.errors == {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
    assert {(peer.a, peer.b): peer.kind for peer in facts.peers}["0000:01:00.0", "0000:41:00.0"] == "NV12"
    assert sum(peer.kind == "SYS" for peer in facts.peers) == 4
    assert all(gpu.fabric is None for gpu in facts.gpus)


def test_dgx1_cube_mesh(boot: Boot) -> None:
    """DGX-1: every pair has exactly the links of the hybrid cube mesh, the rest is PCIe."""
    boot(states.dgx1)
    facts = collect(Host())
    addresses = [gpu.address for gpu in facts.gpus]
    kinds = {(addresses.index(peer.a), addresses.index(peer.b)): peer.kind for peer in facts.peers}
    for pair in combinations(range(8), 2):
        expected = f"NV{states.CUBE_MESH[pair]}" if pair in states.CUBE_MESH else None
        assert kinds[pair] == expected or (expected is None and kinds[pair] in ("PIX", "SYS"))
    assert all(active(gpu) == 6 and gpu.mig is None for gpu in facts.gpus)


def test_hgx_b200(boot: Boot) -> None:
    """Eight B200: the NVSwitches have no address, the links count all the same, with Blackwell's error counters."""
    boot(states.hgx_b200)
    facts = collect(Host())
    for gpu in facts.gpus:
        assert {(link.remote, link.remote_kind, link.version, link.gbs) for link in links(gpu)} == {
            (None, "nvswitch", 5, 50.0)
        }
        assert links(gpu)[0].errors["effective"] == 0
    assert {peer.kind for peer in facts.peers} == {"NV18"}
    fabric = known(facts.gpus[0].fabric)
    assert fabric is not None
    assert (fabric.health["partition"], fabric.health["incorrect_configuration"]) == ("Assigned", "None")


def test_gb200_tray(boot: Boot) -> None:
    """A GB200 tray: C2C, PCI domains of their own, one clique of the rack's fabric."""
    boot(states.gb200_tray)
    facts = collect(Host())
    assert [gpu.address for gpu in facts.gpus] == ["0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"]
    assert all(gpu.c2c is True and active(gpu) == 18 for gpu in facts.gpus)
    assert [getattr(gpu.fabric, "clique", None) for gpu in facts.gpus] == [32766] * 4


def test_mig(boot: Boot) -> None:
    """MIG on: the partitions are counted, the links are inactive and no pair has NVLink."""
    boot(lambda: states.mig_h100(5))
    facts = collect(Host())
    assert [(gpu.mig, gpu.partitions) for gpu in facts.gpus] == [(True, 5)] * 8
    assert all(active(gpu) == 0 for gpu in facts.gpus)
    assert {peer.kind for peer in facts.peers} == {"NODE", "SYS"}


def test_no_nvlink(boot: Boot) -> None:
    """A card without NVLink has None for its links, which is no gap: the source is ok."""
    boot(states.l40s)
    facts = collect(Host())
    assert [gpu.nvlinks for gpu in facts.gpus] == [None, None]
    assert facts.source.status == OK
    assert facts.gpus[0].unknowns["nvmlDeviceGetNvLinkState"] == "NOT_SUPPORTED"


def test_one_link_down(boot: Boot) -> None:
    """An inactive link stays in the list, and its pair counts one less where the link is direct."""
    machine = boot(states.a100_pcie)
    machine.put("gpu.0.nvlink.5=0,255,-,4")
    facts = collect(Host())
    assert links(facts.gpus[0])[5].state == INACTIVE
    assert (active(facts.gpus[0]), active(facts.gpus[1])) == (11, 12)
    assert facts.peers[0].kind == "NV11"


def test_gap_in_link_numbers(boot: Boot) -> None:
    """Links behind a number that the state query rejects are found, as far as the part claims to have links."""
    machine = boot(states.a100_pcie)
    machine.put("gpu.0.error.nvmlDeviceGetNvLinkState=2", "gpu.1.nvlink.12=1,0,00000000:01:00.0,4")
    facts = collect(Host())
    assert facts.gpus[0].nvlinks is None
    assert len(links(facts.gpus[1])) == 13


def test_load(boot: Boot) -> None:
    """P-state, utilisation and the link of now are told as they are."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.1.pstate=2", "gpu.1.util=97", "gpu.1.pcie.gen=1", "gpu.2.pstate=32")
    facts = collect(Host())
    gpu = facts.gpus[1]
    assert (gpu.pstate, gpu.utilization) == (2, 97)
    assert gpu.link is not None
    assert gpu.link.speed_gts == 2.5
    assert isinstance(facts.gpus[2].pstate, Unknown)


@pytest.mark.parametrize(("newest", "version"), [(3, 3), (2, 2)])
def test_fabric_versions(boot: Boot, newest: int, version: int) -> None:
    """A driver that does not know the newest structure of the fabric call is asked with the one before."""
    machine = boot(states.hgx_h100)
    machine.put(f"fabric.version={newest}")
    host = Host()
    facts = collect(host)
    fabric = known(facts.gpus[0].fabric)
    assert fabric is not None
    assert fabric.state == "Completed"
    assert fabric.health["route_unhealthy"] == "False"
    assert ("summary" in fabric.health) == (version == 3)


def test_fabric_fault(boot: Boot) -> None:
    """A registration that completed with an error, or is unhealthy, says so."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.0.fabric=3,999,0,0x01,2", "gpu.1.fabric=2,0,0,0,0", "gpu.2.fabric=0,0,0,0,0")
    facts = collect(Host())
    first, second = known(facts.gpus[0].fabric), known(facts.gpus[1].fabric)
    assert first is not None
    assert (first.status, first.health) == ("NVML error 999", {"summary": "Unhealthy", "bandwidth": "Degraded"})
    assert second is not None
    assert second.state == "In Progress"
    assert facts.gpus[2].fabric is None


def test_old_driver(boot: Boot, old_library: Path) -> None:
    """A driver without the newer symbols: each is one answer, the rest is told; whom several reach is a switch."""
    boot(states.hgx_h100, old_library)
    facts = collect(Host())
    assert facts.source.status == OK
    gpu = facts.gpus[0]
    assert gpu.unknowns["nvmlDeviceGetMigMode"] == "FUNCTION_NOT_FOUND"
    assert (gpu.mig, gpu.fabric, gpu.architecture, gpu.gpu_max_speed_gts) == (None, None, None, None)
    assert gpu.model == "NVIDIA H100 80GB HBM3"
    assert {link.remote_kind for link in links(gpu)} == {"nvswitch"}
    assert {peer.kind for peer in facts.peers} == {"NV18"}


def test_p2p_status(boot: Boot) -> None:
    """P2P status is told by the words of `nvidia-smi topo -p2p`."""
    machine = boot(states.l40s)
    machine.put("p2p.0.1.0=3")
    assert collect(Host()).peers[0].p2p == {"read": "TNS", "nvlink": "NS"}


# --- what is asked, and recorded ----------------------------------------------------------------------------------


def test_every_answer_and_refusal_is_recorded(boot: Boot) -> None:
    """The transcript has every answer and every refusal, and replaying it gives the same facts."""
    boot(states.a100_pcie)
    host = Host()
    facts = collect(host)
    said = [json.loads(line) for line in host.lines]
    assert any(line["q"] == "nvmlDeviceGetC2cModeInfoV" and line["e"] == "NOT_SUPPORTED" for line in said)
    assert all(("r" in line) != ("e" in line) for line in said)
    assert said[-1] == {"q": "end", "r": True}
    assert said[-2]["q"] == "nvmlShutdown"
    replayed = nvml.collect(Replayed(host.lines), NO_TIME)
    assert replayed._replace(source=replayed.source._replace(seconds=facts.source.seconds)) == facts


def test_a_sample_asks_for_the_load_only(boot: Boot) -> None:
    """A further sample tells P-state, utilisation and PCIe link; what it does not ask is None, not unknown."""
    machine = boot(states.hgx_h100)
    host = Host()
    collect(host)
    full = len(host.lines)
    machine.put("gpu.0.util=50")
    facts = collect(host, load_only=True)
    assert len(host.lines) - full < 80
    gpu = facts.gpus[0]
    assert (gpu.address, gpu.utilization, gpu.pstate) == ("0000:17:00.0", 50, 0)
    assert (gpu.model, gpu.nvlinks, gpu.fabric, gpu.mig, gpu.gpu_max_speed_gts) == (None, None, None, None, None)
    assert facts.source.status == OK
    assert facts.peers == ()
    again = nvml.replayed(Replayed(host.lines))
    assert [known(sample.gpus[0].utilization) for sample in again] == [50]
    assert len(nvml.collect(Replayed(host.lines), NO_TIME).peers) == 28


def test_library_chatter_stays_inside(boot: Boot, capfd: pytest.CaptureFixture[str]) -> None:
    """What the library prints reaches neither standard output nor standard error."""
    machine = boot(states.l40s)
    machine.put("chatter=1")
    assert collect(Host()).source.status == OK
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left(boot: Boot) -> None:
    """After a healthy batch the library was shut down, and neither process nor descriptor is left."""
    boot(states.l40s)
    collect(Host())
    before = psutil.Process().num_fds()
    collect(Host())
    assert workers() == []
    assert psutil.Process().children() == []
    assert psutil.Process().num_fds() == before


def test_needs_no_imports_of_gpu_topo() -> None:
    """The worker starts fast because it imports the standard library and nvidia-ml-py only."""
    for path in Path(nvml_worker.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert "import gpu_topo" not in source
        assert "from gpu_topo" not in source


# --- no driver ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without libnvidia-ml; the folder is where the linker looks by itself."""
    if nvml_driver.find_library({}) is not None:
        pytest.skip("this machine has a libnvidia-ml")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(nvml_driver, "_LIBRARY_DIRS", (str(tmp_path),))
    return tmp_path


def test_no_library(bare: Path) -> None:
    """Without libnvidia-ml the source is absent, no process is started, and the recording says why."""
    host = Host()
    facts = collect(host)
    assert (facts.source.status, facts.source.detail) == (ABSENT, "no libnvidia-ml.so.1 on this machine")
    assert facts.driver is not None
    assert facts.driver.status == ABSENT
    assert psutil.Process().children() == []
    assert nvml.collect(Replayed(host.lines), NO_TIME).driver == facts.driver


def test_no_library_loads_nothing(bare: Path) -> None:
    """Finding out that there is no driver loads none of what reads the answers of one."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpu_topo.collectors import nvml\n"
        "from gpu_topo.collectors.context import Context\n"
        "from gpu_topo.source import Live\n"
        "print(nvml.collect(Live('/'), Context(0.0)).source.status, *sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(gpu_topo.__file__).parent.parent)]
    status, *loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert status == ABSENT
    assert [name for name in loaded if name in ("json", "re", "typing", "gpu_topo.collectors.nvml_facts")] == []


def test_library_without_kernel_driver(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose kernel driver is not loaded is not asked: nvmlInit would load it and change the machine."""
    (bare / nvml_driver.LIBRARY).touch()
    monkeypatch.setattr(nvml_driver, "_DRIVER_SIGNS", ())
    facts = collect(Host())
    assert facts.source.status == ABSENT
    assert "not loaded" in facts.source.detail
    assert psutil.Process().children() == []


def test_find_library(bare: Path) -> None:
    """The library is looked for where the linker would find it, LD_LIBRARY_PATH first."""
    (bare / "given").mkdir()
    assert nvml_driver.find_library({}) is None
    (bare / nvml_driver.LIBRARY).touch()
    assert nvml_driver.find_library({}) == str(bare / nvml_driver.LIBRARY)
    (bare / "given" / nvml_driver.LIBRARY).touch()
    environment = {"LD_LIBRARY_PATH": f":/nowhere:{bare / 'given'}"}
    assert nvml_driver.find_library(environment) == str(bare / "given" / nvml_driver.LIBRARY)


def test_copy_is_not_asked() -> None:
    """Of a copied tree nobody asks this machine's driver, and nothing is said of the driver."""
    facts = nvml.collect(Replayed([]), NO_TIME)
    assert (facts.source.status, facts.source.detail, facts.driver) == (ABSENT, "not recorded", None)


def test_missing_binding(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py the source failed, and says so."""
    boot(states.l40s)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "packages" not in path])
    facts = collect(Host())
    assert facts.source.status == "failed"
    assert "pynvml" in facts.source.detail
    assert facts.driver is not None and facts.driver.status == "unasked"


# --- containers and jobs ------------------------------------------------------------------------------------------

A, B, C = "0000:17:00.0", "0000:3b:00.0", "0000:53:00.0"


def transcript(*entries: dict[str, object]) -> list[str]:
    """A transcript with one listed GPU, A with minor 0, and these entries."""
    own: list[dict[str, object]] = [
        {"q": "begin", "args": ["all"], "r": "/usr/lib64/libnvidia-ml.so.1"},
        {"q": "nvmlInit", "r": None},
        {"q": "nvmlDeviceGetCount", "r": 1},
        {"q": "nvmlDeviceGetHandleByIndex", "gpu": 0, "r": True},
        {"q": "nvmlDeviceGetPciInfo", "gpu": 0, "r": ["00000000:17:00.0", 0x233010DE, 0]},
        {"q": "nvmlDeviceGetMinorNumber", "gpu": 0, "r": 0},
        *entries,
        {"q": "end", "r": True},
    ]
    return [json.dumps(entry) for entry in own]


@pytest.mark.parametrize(
    ("entries", "bound", "lists_all"),
    [
        # Every bound GPU is listed.
        ([{"q": "openable", "r": [0]}, {"q": "procfs", "r": [A]}], {A}, True),
        # A job's device cgroup: the kernel lists B, its node may not be opened.
        (
            [
                {"q": "openable", "r": [0]},
                {"q": "procfs", "r": [A, B]},
                {"q": "procfs_minor", "args": [B], "r": 1},
            ],
            {A, B},
            False,
        ),
        # B may be opened and is not listed: lost, not hidden.
        (
            [
                {"q": "openable", "r": [0, 1]},
                {"q": "procfs", "r": [A, B]},
                {"q": "procfs_minor", "args": [B], "r": 1},
            ],
            {A, B},
            True,
        ),
        # A container's masked /proc.
        ([{"q": "openable", "r": [0]}, {"q": "procfs", "r": [A]}], {A, B, C}, False),
        # No /proc of the driver, and fewer device nodes than GPUs.
        ([{"q": "openable", "r": [0]}, {"q": "procfs", "e": "FileNotFoundError"}], {A, B}, False),
        # Nothing is known of the kernel's side.
        ([], set(), True),
    ],
)
def test_lists_all(entries: list[dict[str, object]], bound: set[str], lists_all: bool) -> None:
    """A GPU that a container or job may not see is told from one that NVML lost."""
    driver = nvml_facts.read(transcript(*entries), frozenset(bound), 0.0).driver
    assert driver is not None
    assert driver.lists_all is lists_all


def test_minors() -> None:
    """The minors come from NVML, and from the kernel for the GPUs that NVML did not list."""
    lines = transcript({"q": "procfs", "r": [A, B]}, {"q": "procfs_minor", "args": [B], "r": 7})
    driver = nvml_facts.read(lines, frozenset({A, B}), 0.0).driver
    assert driver is not None
    assert driver.minors == {A: 0, B: 7}
    assert driver.openable_minors == Unknown(NOT_RECORDED, "/dev/nvidia*")


def test_address_of_a_lost_gpu() -> None:
    """A GPU without a handle gets the one address that the driver is bound to and NVML did not name."""
    lost = {"q": "nvmlDeviceGetHandleByIndex", "gpu": 1, "e": "GPU_IS_LOST"}
    facts = nvml_facts.read(transcript(lost), frozenset({A, B}), 0.0)
    assert [(gpu.address, gpu.lost) for gpu in facts.gpus] == [(A, False), (B, True)]
    assert facts.gpus[1].model == Unknown("lost", "nvmlDeviceGetHandleByIndex")
    facts = nvml_facts.read(transcript(lost), frozenset({A, B, C}), 0.0)
    assert facts.gpus[1].address is None


# --- recordings of strangers --------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def hgx_lines(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A real transcript of the whole machine."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(library, tmp_path_factory.mktemp("hgx"), states.a100_pcie())
        for name, value in machine.environment.items():
            patch.setenv(name, value)
        host = Host()
        collect(host)
    return host.lines


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_transcripts_never_raise(hgx_lines: list[str], data: st.DataObject) -> None:
    """Whatever a recording holds in place of an answer, an index or arguments: facts come out, no exception."""
    lines = list(hgx_lines)
    for at in data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=40)):
        entry = json.loads(hgx_lines[at])
        key = data.draw(st.sampled_from(["q", "gpu", "args", "r", "e"]))
        entry[key] = data.draw(_json)
        lines[at] = data.draw(st.sampled_from([json.dumps(entry), lines[at][:20], "", "[" * 5000]))
    nvml_facts.read(lines, frozenset({A, B}), 0.0)
    nvml_transcript.batches(lines)


def test_writes_both_kinds_of_strings() -> None:
    """Older nvidia-ml-py leaves bytes in structures, newer ones give text."""
    assert text(b"00000000:17:00.0") == text("00000000:17:00.0") == "00000000:17:00.0"


def test_kernel_address() -> None:
    """NVML's eight-digit domain becomes the kernel's spelling, which has at least four digits."""
    assert kernel_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert kernel_address("00010008:01:00.0") == "10008:01:00.0"
