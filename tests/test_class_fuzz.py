"""Whatever a class folder holds, its collector answers: no exception, no hang, and the rest of the scan goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from gpu_topo.collectors import block, kfd, net, rdma
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.source import Entry, Refusal, Source, Tree
from tests.test_block import mountinfo, nvme
from tests.test_kfd import gpu, link
from tests.test_net import interface, route
from tests.test_rdma import card, manager

Collect = Callable[[Source, Context], Facts]

_SAID: tuple[Entry, ...] = (
    b"",
    b"\n",
    b"\0" * 64,
    b"\xff\xfe\xfd",
    b"N/A (no PMA)\n",
    b"-1\n",
    b"0x\n",
    b"9" * 5000,
    b"4: ACTIVE (((((",
    b"1e999 Gb/sec (9X \x1b[2J)",
    b"a b c d e f g h i j k l\n" * 50,
    Refusal("failed", "EINVAL"),
    Refusal("failed", "EIO"),
    Refusal("denied", "EACCES"),
    Refusal("absent", "ENOENT"),
    "../../../../../../etc",
    "/sys/class",
    ".",
)


def machine(chance: random.Random) -> dict[str, Entry]:
    """Every class with something in it."""
    files = card(ports=(1, 2)) | manager(b"SW_MNG") | nvme(0) | nvme(1)
    files |= interface("eth0", "pci0000:00/0000:00:03.0") | interface("bond0", "virtual")
    files |= gpu(1, 0x100) | gpu(2, 0x200) | link(1, 0, 2)
    files |= mountinfo("36 35 259:1 / / rw - ext4 /dev/nvme0n1p1 rw", "37 35 9:0 / /a rw - ext4 /dev/md0 rw")
    files |= {"/proc/net/route": route("eth0"), "/proc/mdstat": b"md0 : active raid0 nvme0n1[0] nvme1n1[1]\n"}
    for path in chance.sample(sorted(files), k=len(files) // 3):
        files[path] = chance.choice(_SAID)
    for _ in range(3):
        del files[chance.choice(sorted(files))]
    return files


@pytest.mark.parametrize("collect", [rdma.collect, net.collect, block.collect, kfd.collect])
def test_damaged_classes_are_read_as_far_as_they_go(collect: Collect) -> None:
    """A third of all files and links replaced by nonsense, three hundred times."""
    begun = time.monotonic()
    for seed in range(300):
        facts = collect(Tree(machine(random.Random(seed))), Context(time.monotonic() + 10))
        assert facts.source.status in ("ok", "partial", "absent", "denied", "failed")
    assert time.monotonic() - begun < 60
