"""A capture without identities: nothing that names the machine is left, and the report stays what it was."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path

import pytest

from gpu_topo.collectors import COLLECTORS
from gpu_topo.collectors.context import Context
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.collectors.redact import capture, redact
from gpu_topo.model.facts import Facts
from gpu_topo.source import Recording, Replay, Source, Tree
from gpu_topo.source.capture import load

NIC = "/sys/devices/pci0000:00/0000:00:01.0"
SECRETS = [
    "gpu-node-17",
    "example.com",
    "alice",
    "secretproject",
    "S3RIAL0042",
    "MT2133X01234",
    "0c42a1030065a1b2",
    "0c42:a103:0065:a1b2",
    "0c:42:a1:65:a1:b2",
    "0c42a165a1b2",
    "10.20.30.40",
    "0a14:1e28",
    "281E140A",
    "8f6fd3c4-7d4f-4e7c-9a55-0123456789ab",
    "1320921028837",
    "9223372036854775807",
    "d3adb33f" * 8,
]
VPD = b"\x82\x0a\x00ConnectX-6\x90\x30\x00PN\x0bMCX653105A-SN\x0cMT2133X01234V2\x100c42a1030065a1b2\x78"
GID = "fe80:0000:0000:0000:0c42:a103:0065:a1b2"
ENTRIES: dict[str, bytes | str] = {
    "/proc/sys/kernel/hostname": b"gpu-node-17.example.com\n",
    "/proc/version": b"Linux version 6.8.0-45-generic (alice@gpu-node-17) (gcc 13.2.0) #45-Ubuntu SMP\n",
    "/proc/sys/kernel/random/boot_id": b"8f6fd3c4-7d4f-4e7c-9a55-0123456789ab\n",
    "/proc/self/mountinfo": (
        b"22 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        b"23 22 259:5 / /mnt/secretproject/alice rw - xfs /dev/nvme1n1 rw,user=alice\n"
        b"24 22 0:55 / /home/alice rw - nfs4 10.20.30.40:/export/alice rw,addr=10.20.30.40\n"
        b"25 22 0:56 / /secretproject rw - xfs /dev/mapper/secretproject rw\n"
    ),
    "/proc/net/route": (
        b"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        b"enx0c42a165a1b2\t00000000\t281E140A\t0003\t0\t0\t0\t00000000\n"
    ),
    "/proc/1/cgroup": b"0::/kubepods/" + b"d3adb33f" * 8 + b"\n",
    "/proc/cpuinfo": b"processor : 0\nmodel name : EPYC\nflags : fpu\nSerial : 0c42a1030065a1b2\n",
    "/sys/class/dmi/id/product_name": b"DGX H100\n",
    "/sys/class/dmi/id/product_serial": b"S3RIAL0042\n",
    "/sys/class/dmi/id/product_uuid": b"8f6fd3c4-7d4f-4e7c-9a55-0123456789ab\n",
    "/sys/class/nvme/nvme0/serial": b"S3RIAL0042   \n",
    "/sys/class/nvme/nvme0/model": b"SAMSUNG MZWLJ3T8\n",
    f"{NIC}/infiniband/mlx5_0/node_guid": b"0c42:a103:0065:a1b2\n",
    f"{NIC}/infiniband/mlx5_0/sys_image_guid": b"0c42:a103:0065:a1b2\n",
    f"{NIC}/infiniband/mlx5_0/node_desc": b"gpu-node-17 mlx5_0\n",
    f"{NIC}/infiniband/mlx5_0/board_id": b"MT_0000000838\n",
    f"{NIC}/infiniband/mlx5_0/fw_ver": b"28.39.1002\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/0": GID.encode() + b"\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/1": b"0000:0000:0000:0000:0000:ffff:0a14:1e28\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/2": b"0000:0000:0000:0000:0000:0000:0000:0000\n",
    f"{NIC}/net/enx0c42a165a1b2/address": b"0c:42:a1:65:a1:b2\n",
    f"{NIC}/vpd": VPD,
    "/sys/class/net/enx0c42a165a1b2": f"../../devices{NIC[12:]}/net/enx0c42a165a1b2",
    "/sys/class/kfd/kfd/topology/nodes/1/properties": (
        b"simd_count 304\nunique_id 1320921028837\nhive_id 9223372036854775807\n"
    ),
}
TRANSCRIPT = (
    json.dumps({"q": "nvmlDeviceGetUUID", "gpu": 0, "r": "GPU-8f6fd3c4-7d4f-4e7c-9a55-0123456789ab"}),
    json.dumps({"q": "nvmlDeviceGetSerial", "gpu": 0, "r": "1320921028837"}),
    json.dumps({"q": "nvmlDeviceGetName", "gpu": 0, "r": "NVIDIA H100 80GB HBM3"}),
    json.dumps(
        {"q": "nvmlDeviceGetGpuFabricInfoV", "gpu": 0, "r": {"clusterUuid": "00000000-0000-0000-0000-000000000000"}}
    ),
    "not JSON, but it says alice@gpu-node-17",
)


def recorded() -> Recording:
    """A recording in which everything was asked."""
    tree = Tree(ENTRIES, {"nvml": TRANSCRIPT})
    recording = Recording(tree)
    for path, entry in ENTRIES.items():
        if isinstance(entry, bytes):
            recording.read(path)
            folder = recording.dir(path.rpartition("/")[0])
            assert not isinstance(folder, tuple)
            folder.read_at(path.rpartition("/")[2], 0, 4096)
        recording.link(path)
        recording.real(path)
        recording.list(path.rpartition("/")[0])
    list(recording.ask("nvml") or ())
    return recording


def test_nothing_that_names_the_machine_is_left() -> None:
    """No serial number, address, name of a host, a user or a folder is in the file."""
    text = capture(recorded()).decode()
    for secret in SECRETS:
        assert secret.lower() not in text.lower(), secret


def test_what_a_rule_needs_stays() -> None:
    """Models, firmware, board ids, the prefix of a GID, zeros and the default route are what they were."""
    replay = load(capture(recorded()))
    assert replay.read("/sys/class/dmi/id/product_name") == b"DGX H100\n"
    assert replay.read("/sys/class/nvme/nvme0/model") == b"SAMSUNG MZWLJ3T8\n"
    assert replay.read(f"{NIC}/infiniband/mlx5_0/board_id") == b"MT_0000000838\n"
    assert replay.read(f"{NIC}/infiniband/mlx5_0/fw_ver") == b"28.39.1002\n"
    gid = replay.read(f"{NIC}/infiniband/mlx5_0/ports/1/gids/0")
    assert isinstance(gid, bytes)
    assert gid.startswith(b"fe80:0000:0000:0000:")
    assert replay.read(f"{NIC}/infiniband/mlx5_0/ports/1/gids/2") == ENTRIES[f"{NIC}/infiniband/mlx5_0/ports/1/gids/2"]
    route = replay.read("/proc/net/route")
    assert isinstance(route, bytes)
    fields = route.splitlines()[1].split()
    assert (fields[1], fields[7]) == (b"00000000", b"00000000")
    version = replay.read("/proc/version")
    assert isinstance(version, bytes)
    assert version.startswith(b"Linux version 6.8.0-45-generic ")
    vpd = replay.read(f"{NIC}/vpd")
    assert isinstance(vpd, bytes)
    assert b"MCX653105A-" in vpd
    assert len(vpd) == len(VPD)
    assert json.loads(list(replay.ask("nvml") or ())[2])["r"] == "NVIDIA H100 80GB HBM3"


def test_one_value_has_one_placeholder() -> None:
    """The same identity gets the same placeholder everywhere, and different ones different ones."""
    replay = redact(recorded())
    device = f"{NIC}/infiniband/mlx5_0"
    guid, image, gid = (replay.read(f"{device}/{name}") for name in ("node_guid", "sys_image_guid", "ports/1/gids/0"))
    assert isinstance(guid, bytes)
    assert isinstance(gid, bytes)
    assert guid == image
    assert gid.strip().endswith(guid.strip())
    assert replay.read("/sys/class/dmi/id/product_serial") != ENTRIES["/sys/class/dmi/id/product_serial"]
    boot = replay.read("/proc/sys/kernel/random/boot_id")
    assert isinstance(boot, bytes)
    assert json.loads(next(iter(replay.ask("nvml") or ())))["r"] == f"GPU-{boot.decode().strip()}"


def test_names_in_paths_and_listings_agree() -> None:
    """An interface named by its hardware address has one new name in paths, listings and links."""
    replay = redact(recorded())
    listing = replay.list("/sys/class/net")
    assert isinstance(listing, tuple)
    (name,) = listing
    assert name != "enx0c42a165a1b2"
    target = replay.link(f"/sys/class/net/{name}")
    assert isinstance(target, str)
    assert target.endswith(f"/{name}")
    assert replay.read(f"{NIC}/net/{name}/address") != b"0c:42:a1:65:a1:b2\n"


def test_serial_number_capability_is_blanked() -> None:
    """The device serial number in configuration space goes, in whatever pieces it was read; nothing else does."""
    config = bytearray(range(256)) + bytearray(3840)
    config[0x100:0x104] = (0x0001 | 2 << 16 | 0x150 << 20).to_bytes(4, "little")
    config[0x150:0x154] = (0x0003 | 1 << 16).to_bytes(4, "little")
    config[0x154:0x15C] = b"\x0c\x42\xa1\x03\x00\x65\xa1\xb2"
    recording = Recording(Tree({"/d/config": bytes(config)}))
    recording.read("/d/config")
    folder = recording.dir("/d")
    assert not isinstance(folder, tuple)
    for offset in range(0x100, 0x160, 4):
        folder.read_at("config", offset, 4)
    replay = redact(recording)
    config[0x154:0x15C] = bytes(8)
    assert replay.read("/d/config") == bytes(config)
    assert replay.read_at("/d/config", 0x154, 4) == bytes(4)
    assert replay.read_at("/d/config", 0x150, 4) == bytes(config[0x150:0x154])


def test_identity_is_kept_when_asked() -> None:
    """--keep-identity keeps every byte."""
    recording = recorded()
    assert load(capture(recording, keep_identity=True)).answers == recording.answers


def collected(source: Source) -> list[Facts]:
    """What all collectors say, without the time that it took."""
    found = []
    for collector in COLLECTORS:
        facts = import_module(collector.module).collect(source, Context(time.monotonic() + 60))
        found.append(facts._replace(source=facts.source._replace(seconds=0.0)))
    return found


@pytest.mark.parametrize("pattern", ["t01-*", "t12-*", "t13-*", "k01-*", "f01-*", "m20-*", "t32-*"])
def test_a_replay_reports_the_same(corpus: Path, pattern: str) -> None:
    """Every collector says the same of a replay as of the machine; redacted, it says the same of every device."""
    (path,) = corpus.glob(f"{pattern}/*.tar.gz")
    source = read_inputs([str(path)])[0].source
    assert source is not None
    recording = Recording(source)
    original = collected(recording)
    assert collected(load(capture(recording, keep_identity=True))) == original
    replayed = collected(load(capture(recording)))
    for before, after in zip(original, replayed, strict=True):
        assert after.functions == before.functions
        assert after.accelerator_links == before.accelerator_links
        assert [port._replace(netdev=None) for port in after.ports] == [
            port._replace(netdev=None) for port in before.ports
        ]
        assert [block._replace(mounts=()) for block in after.blocks] == [
            block._replace(mounts=()) for block in before.blocks
        ]
        assert after.source == before.source


def test_redacting_twice_gives_the_same_file() -> None:
    """Placeholders depend on the content alone."""
    assert capture(recorded()) == capture(recorded())
    assert isinstance(redact(recorded()), Replay)
