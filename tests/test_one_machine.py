"""Recordings in one call, or outputs in one file, are one machine, or are refused with what contradicts and where."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from gpu_topo.agent.one_machine import Told, contradiction
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu, DriverState
from gpu_topo.model.host import Platform, Port
from gpu_topo.model.pci import Function
from tests.commands import Run, gpu_topo, one_line

__all__ = ["gpu_topo"]  # fixtures

A = "GPU-5f0a1c2d-1111-2222-3333-444455556666"
B = "GPU-9b8a7c6d-1111-2222-3333-444455556666"
LSPCI = """\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:{0}]
65:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:{1}] (rev a1)
"""
ONE, OTHER = LSPCI.format("09a2", "2330"), LSPCI.format("09a2", "20b5")


def gpus(*rows: tuple[str | None, int | None, str | None], version: str | None = None) -> Facts:
    """What a driver tool says: address, index and UUID of each GPU."""
    found = tuple(DriverGpu(address=address, ordinal=ordinal, uuid=uuid) for address, ordinal, uuid in rows)
    driver = DriverState("nvml", "ok", version=version) if version else None
    return Facts(SourceStatus("x", OK), gpus=found, driver=driver)


def functions(*rows: tuple[str, int | None, int | None, str | None]) -> Facts:
    found = tuple(Function(a, vendor_id=v, device_id=d, name=n) for a, v, d, n in rows)
    return Facts(SourceStatus("x", OK), functions=found)


def host(name: str) -> Facts:
    return Facts(SourceStatus("x", OK), platform=Platform(hostname=name))


def card(guid: str) -> Facts:
    return Facts(SourceStatus("x", OK), ports=(Port("mlx5_0", 1, card=guid),))


AT, NEXT = "0000:17:00.0", "0000:18:00.0"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (gpus((AT, None, A)), gpus((AT, None, B)), f"the GPU at {AT} is {A} in a and {B} in b"),
        (gpus((None, 0, A)), gpus((None, 0, B)), f"GPU 0 is {A}"),
        (gpus((AT, 0, A)), gpus((NEXT, 0, B)), f"GPU 0 is {A}"),
        (gpus((AT, 0, None), version="535.1"), gpus((NEXT, 0, None), version="550.2"), "535.1 in a and 550.2 in b"),
        (gpus((AT, 0, None), version="535.1"), gpus((AT, 0, None), version="550.2"), "535.1 in a and 550.2 in b"),
        (functions((AT, 0x10DE, 0x2330, None)), functions((AT, 0x10DE, 0x20B5, None)), "10de:2330 in a and 10de:20b5"),
        (host("n01"), host("n02.example.org"), "the host is n01 in a and n02 in b"),
        (card("a088c20300b2f5c4"), card("a088c20300b2f5c8"), "the adapter of mlx5_0"),
        (
            functions(*((f"0000:0{n}:00.0", 0x8086, None, "Intel") for n in range(3))),
            functions(*((f"0000:0{n}:00.0", 0x1022, None, "AMD") for n in range(3))),
            "0000:00:00.0 is Intel in a and AMD in b",
        ),
    ],
)
def test_two_machines(one: Facts, other: Facts, words: str) -> None:
    """What cannot be of one machine is named with both values and both places."""
    said = contradiction([Told(one, "a"), Told(other, "b")])
    assert said.startswith("these are two machines: ")
    assert words in said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (gpus((AT, 0, A)), gpus((AT, 0, A.upper().replace("GPU", "GPU")))),
        (gpus((AT, 0, A)), gpus((AT, 0, None))),
        (gpus((AT, 0, A)), gpus((AT, 0, "GPU-00000000-0000-0000-0000-000000000001"))),
        (gpus((AT, 0, A)), gpus((AT, 0, "GPU-xxxxxxxx-1111-2222-3333-444455556666"))),
        (gpus((AT, 0, A), (NEXT, 1, B)), gpus((NEXT, 0, B))),
        (gpus((AT, 0, A), version="535.1"), gpus((AT, 0, A), version="550.2")),
        (functions((AT, 0x10DE, 0x2330, None)), functions((AT, 0x10DE, None, "NVIDIA H100"))),
        (functions((AT, 0x10DE, 0x2330, None)), functions((AT, 0xFFFF, 0xFFFF, None))),
        (functions((AT, 0x8086, None, "Intel")), functions((AT, 0x1022, None, "AMD"))),
        (functions((AT, 0x10DE, 0x2330, None)), functions((NEXT, 0x8086, 0x2330, None))),
        (host("n01"), host("N01.example.org")),
        (host("n01"), host("host-1")),
        (card("a088c20300b2f5c4"), card("0000000000000001")),
    ],
)
def test_one_machine(one: Facts, other: Facts) -> None:
    """The same ids, ids in one of both only, placeholders and what does not answer contradict nothing."""
    assert contradiction([Told(one, "a"), Told(other, "b")]) == ""


def test_another_driver_in_one_recording() -> None:
    """Outputs without UUIDs that stand in one recording and share an address: the driver was replaced in between."""
    before, after = gpus((AT, 0, None), version="535.1"), gpus((AT, 0, None), version="550.2")
    assert contradiction([Told(before, "nvidia-smi (a)"), Told(after, "nvidia-smi -q (a)")]) == ""
    assert contradiction([Told(before, "nvidia-smi (a)"), Told(after, "nvidia-smi (b)")])


def test_two_recordings_and_two_outputs(gpu_topo: Run, tmp_path: Path) -> None:
    """Two files in one call, or one after the other in a file: one line that names both places, exit status 3. The
    same machine twice is its later sample."""
    one, other, both, same = (tmp_path / name for name in ("one.txt", "other.txt", "both.txt", "same.txt"))
    one.write_text(ONE)
    other.write_text(OTHER)
    both.write_text(ONE + "\n" + OTHER)
    same.write_text(ONE + "\n" + ONE)
    for command in ("inspect", "matrix"):
        ran = gpu_topo(command, one, other)
        assert one_line(ran)
        assert f"0000:65:00.0 is 10de:2330 in lspci -nn ({one}) and 10de:20b5 in lspci -nn ({other})" in ran.err
        ran = gpu_topo(command, both)
        assert one_line(ran)
        assert f"10de:2330 and then 10de:20b5 in lspci -nn ({both})" in ran.err
    assert gpu_topo("inspect", same).status == 0
    assert gpu_topo("inspect", one, one).status == 0


def _pdsh(host: str, text: str) -> str:
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


def _srun(host: str, text: str) -> str:
    number = host.removeprefix("node0")
    return "".join(f" {number}: {line}\n" for line in text.splitlines())


def _ansible(host: str, text: str) -> str:
    return f"{host} | CHANGED | rc=0 >>\n{text}"


def _dshbak(host: str, text: str) -> str:
    return f"{'-' * 16}\n{host}\n{'-' * 16}\n{text}"


def _clush(host: str, text: str) -> str:
    return f"{'-' * 15}\n{host} (1)\n{'-' * 15}\n{text}"


WAYS = (_pdsh, _srun, _ansible, _dshbak, _clush)
IBV = "hca_id: mlx5_0\ntransport: InfiniBand (0)\nport: 1\nstate: PORT_ACTIVE (4)\nlink_layer: InfiniBand\n" * 3


@pytest.mark.parametrize("write", WAYS)
def test_output_of_one_of_many_hosts(gpu_topo: Run, tmp_path: Path, write: Callable[[str, str], str]) -> None:
    """What a tool for many hosts writes before or above each host's output is not looked at, where it is one host."""
    plain, path = tmp_path / "plain.txt", tmp_path / "hosts.txt"
    plain.write_text(ONE)
    for text in (write("node01", ONE), write("node01", ONE) + write("node01", ONE)):
        path.write_text(text)
        ran = gpu_topo("matrix", path)
        assert (ran.status, ran.err, ran.out) == (0, "", gpu_topo("matrix", plain).out)


@pytest.mark.parametrize("write", WAYS)
def test_output_of_several_hosts(gpu_topo: Run, tmp_path: Path, write: Callable[[str, str], str]) -> None:
    """Several hosts are several machines, even where they are built alike; both are named."""
    path = tmp_path / "hosts.txt"
    path.write_text(write("node01", ONE) + write("node02", ONE))
    ran = gpu_topo("inspect", path)
    assert one_line(ran)
    first, second = ("1", "2") if write is _srun else ("node01", "node02")
    assert f"{path}: these are two machines: output of {first}" in ran.err
    assert f" and of {second}" in ran.err


def test_a_host_that_did_not_answer_is_no_machine(gpu_topo: Run, tmp_path: Path) -> None:
    """ansible and pdsh say in the same way that a host did not answer."""
    path = tmp_path / "hosts.txt"
    for text in (
        'node02 | UNREACHABLE! => {\n    "changed": false\n}\n' + _ansible("node01", ONE),
        "pdsh@head: node02: ssh exited with exit code 255\n" + _pdsh("node01", ONE * 4),
    ):
        path.write_text(text)
        assert gpu_topo("inspect", path).status == 0


def test_names_with_colons_are_no_hosts(gpu_topo: Run, tmp_path: Path) -> None:
    """ibv_devinfo's own lines look like prefixes and are read as they stand."""
    path = tmp_path / "ibv.txt"
    path.write_text(IBV)
    ran = gpu_topo("inspect", path, "--json")
    assert '"mlx5_0"' in ran.out


def tool(name: str, *rows: tuple[str | None, int | None, str | None]) -> Facts:
    """What a tool of this name says: address, index and model of each GPU."""
    found = tuple(DriverGpu(address=address, ordinal=ordinal, model=model) for address, ordinal, model in rows)
    return Facts(SourceStatus(name, OK), gpus=found)


def numbered(*buses: int, name: str = "nvidia-smi (a)") -> Facts:
    return tool(name, *((f"0000:{bus:02x}:00.0", number, None) for number, bus in enumerate(buses)))


def listing(*buses: int, whole: bool = False) -> Facts:
    found = [Function(f"0000:{bus:02x}:00.0", vendor_id=0x10DE, class_code=0x030200) for bus in buses]
    if whole:
        found.append(Function("0000:00:00.0", vendor_id=0x8086, class_code=0x060000))
    return Facts(SourceStatus("lspci (a)", OK), functions=tuple(found))


NVIDIA_SMI = "nvidia-smi (a)"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (numbered(1, 2, 3, 4), numbered(5, 6, 7, 4), "GPU 0 is 0000:01:00.0 in a and 0000:05:00.0 in b"),
        (numbered(1, 2), numbered(5, 6, name="nvidia-smi -q (a)"), "GPU 0 is"),
        (numbered(1, 2, name="rocm-smi (a)"), numbered(5, 6, name="rocm-smi (a)"), "GPU 0 is"),
        (
            tool(NVIDIA_SMI, (AT, 0, "NVIDIA H100 80GB HBM3")),
            tool(NVIDIA_SMI, (AT, 0, "NVIDIA A100-SXM4-80GB")),
            f"the GPU at {AT} is NVIDIA H100 80GB HBM3 in a and NVIDIA A100-SXM4-80GB in b",
        ),
        (listing(0x18, 0x2A), listing(0x41, 0x42, whole=True), "the first GPU is 0000:18:00.0 in a"),
    ],
)
def test_two_machines_by_their_lists(one: Facts, other: Facts, words: str) -> None:
    """Without a UUID the places and models of GPUs tell."""
    assert words in contradiction([Told(one, "a"), Told(other, "b")])
    assert contradiction([Told(other, "b"), Told(one, "a")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (numbered(1, 2, 3, 4), numbered(1, 3, 4)),  # one was lost
        (numbered(1, 3, 4), numbered(1, 2, 3, 4)),  # and came back
        (numbered(1, 2, 3, 4, 5), numbered(1, 2, 3, 4, 6)),  # one was moved
        (numbered(1, 2, 3, 5, 6), numbered(1, 3, 4, 5, 6)),  # one was lost, then another
        (numbered(1, 2, 3, 4), numbered(4, 3, 2, 1)),  # counted in another order
        (numbered(1, 2, 3, 4), numbered(3, 4)),  # a container
        (numbered(1), numbered(2)),  # a container with one GPU
        (numbered(1, 2, name="rocm-smi (a)"), numbered(5, 6, name="amd-smi list (a)")),
        (tool(NVIDIA_SMI, (AT, 0, "Tesla T4")), tool(NVIDIA_SMI, (AT, 0, "NVIDIA T4"))),
        (tool(NVIDIA_SMI, (AT, 0, "NVIDIA H100")), tool(NVIDIA_SMI, (AT, 0, "NVIDIA H100 80GB HBM3"))),
        (tool(NVIDIA_SMI, (AT, 0, "NVIDIA H100")), tool(NVIDIA_SMI, (AT, 0, None))),
        (listing(0x18, 0x2A), listing(0x41, 0x42)),  # each asked for some
        (listing(0x18, 0x2A, 0x41, 0x42), listing(0x41, 0x42, whole=True)),
    ],
)
def test_one_machine_by_its_lists(one: Facts, other: Facts) -> None:
    """A lost GPU shifts a list, a container shows part of it, and a driver's update changes how it spells a name."""
    assert contradiction([Told(one, "a"), Told(other, "b")]) == ""


def test_addresses_that_were_masked() -> None:
    """They tell nothing, and neither do models or UUIDs at them."""
    zero = "0000:00:00.0"
    one = gpus((zero, 0, A), (zero, 1, B))
    two = tool(NVIDIA_SMI, (zero, 0, "NVIDIA L4"), (zero, 1, "NVIDIA H100"))
    assert contradiction([Told(one, "a"), Told(two, "b"), Told(one, "c")]) == ""


def test_two_containers_of_one_machine() -> None:
    """Where the machine's own list has the GPUs of both."""
    parts = [Told(numbered(1, 2), "a"), Told(numbered(3, 4), "b")]
    assert contradiction(parts)
    assert contradiction([*parts, Told(listing(1, 2, 3, 4), "c")]) == ""
    assert contradiction([*parts, Told(numbered(1, 2, 3, 4), "c")]) == ""


@pytest.mark.parametrize(
    ("one", "other", "two"),
    [
        ("[root@gpu01 ~]# lspci -nn", "[root@gpu02 ~]# lspci -nn", True),
        ("root@node-a1:~# lspci", "user@node-a2:/tmp$ lspci", True),
        ("[root@gpu01 ~]# lspci", "user@GPU01.example.org:~$ lspci", False),
        ("[root@gpu01 ~]# lspci", "$ lspci", False),
        ("[root@gpu01 ~]# lspci", "root@localhost:~# lspci", False),
        ("[root@gpu01 ~]# lspci", "root@3f2a1b9c0d4e:/# lspci", False),  # a container's
        ("[root@gpu01 ~]# docker run --rm -it cuda bash", "root@gpu02:/# lspci", False),
        ("[root@gpu01 ~]# lspci", "root@trainer:/workspace# lspci", False),
    ],
)
def test_hosts_in_prompts(gpu_topo: Run, tmp_path: Path, one: str, other: str, two: bool) -> None:
    """Prompts of two hosts are two machines, however alike; of what may be a container on one machine, they are not."""
    path = tmp_path / "hosts.txt"
    path.write_text(f"{one}\n{ONE}\n{other}\n{ONE}")
    ran = gpu_topo("inspect", path)
    if not two:
        assert (ran.status, ran.err) == (0, "")
        return
    assert one_line(ran)
    assert "these are two machines: the host in the prompt is" in ran.err


def test_hosts_in_prompts_that_share_a_gpu(gpu_topo: Run, tmp_path: Path) -> None:
    """Two names of one machine: the same GPU answers at both."""
    path = tmp_path / "names.txt"
    path.write_text("".join(f"root@gpu0{n}:~# nvidia-smi -L\nGPU 0: NVIDIA L4 (UUID: {A})\n" for n in (1, 2)))
    assert gpu_topo("inspect", path).status == 0


C = A.replace("GPU-5", "GPU-6")
GUIDS = ("a088c20300b2f5c4", "a088c20300b2f5c8")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (gpus((AT, 0, A), (NEXT, 1, B)), gpus((AT, 0, C), (NEXT, 1, B))),
        (
            Facts(SourceStatus("x", OK), ports=(Port("mlx5_0", 1, card=GUIDS[0]), Port("mlx5_1", 1, card=GUIDS[1]))),
            Facts(SourceStatus("x", OK), ports=(Port("mlx5_0", 1, card=GUIDS[1]),)),
        ),
        (
            functions(*((f"0000:{n:02x}:00.0", 0x8086, n, None) for n in range(1, 9))),
            functions(*((f"0000:{n:02x}:00.0", 0x8086, n + 16 * (n == 4), None) for n in range(1, 9))),
        ),
    ],
    ids=["gpu", "adapter", "function"],
)
def test_a_part_that_was_replaced(one: Facts, other: Facts) -> None:
    """One of several GPUs or adapters, or of many functions, is another one: the rest says that it is one machine."""
    assert contradiction([Told(one, "a"), Told(other, "b")]) == ""
    assert contradiction([Told(other, "b"), Told(one, "a")]) == ""


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_containers_and_their_host(order: tuple[int, ...]) -> None:
    """Two containers number their GPUs from 0; the host lists those of both, wherever it stands."""
    told = [gpus((None, 0, A)), gpus((None, 0, B)), gpus((None, 0, A), (None, 1, B))]
    assert contradiction([Told(told[at], str(at)) for at in order]) == ""


def test_a_whole_bus_without_the_tools_gpus() -> None:
    """A tool that lists GPUs, none of which a whole lspci has, ran elsewhere."""
    said = contradiction([Told(listing(0x17, 0x18, whole=True), "a"), Told(numbered(0x2A, 0x2B), "b")])
    assert said.startswith("these are two machines: the first GPU is")
