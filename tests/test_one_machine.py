"""Recordings in one call, or outputs in one file, are one machine, or are refused with what contradicts and where."""

from __future__ import annotations

from collections.abc import Callable
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
