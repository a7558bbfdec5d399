"""The platform collector: bare metal or not, NUMA nodes, identity of the machine."""

from __future__ import annotations

import os
import platform as witness
from collections.abc import Mapping

import pytest

from gpu_topo.collectors import platform
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, PARTIAL
from gpu_topo.model.host import BARE_METAL, UNKNOWN_PLATFORM, VIRTUAL_MACHINE, Platform
from gpu_topo.model.reading import Unknown, known
from gpu_topo.source import Entry, Live, Refusal, Tree

CONTEXT = Context(deadline=float("inf"))
X86 = b"processor\t: 0\nmodel name\t: Some Processor\nflags\t\t: fpu vme lm%s sse2\n"
METAL = {"/proc/cpuinfo": X86 % b""}
FLAGGED = {"/proc/cpuinfo": X86 % b" hypervisor"}


def dmi(vendor: str, product: str) -> dict[str, Entry]:
    return {
        "/sys/class/dmi/id/sys_vendor": f"{vendor}\n".encode(),
        "/sys/class/dmi/id/product_name": f"{product}\n".encode(),
    }


def read(entries: Mapping[str, Entry]) -> Platform:
    facts = platform.collect(Tree(entries), CONTEXT)
    assert facts.platform is not None
    return facts.platform


@pytest.mark.parametrize(
    ("entries", "kind", "hypervisor"),
    [
        ({}, UNKNOWN_PLATFORM, None),
        (METAL, BARE_METAL, None),
        (FLAGGED, VIRTUAL_MACHINE, None),
        (METAL | dmi("Dell Inc.", "PowerEdge XE9680"), BARE_METAL, None),
        (dmi("Dell Inc.", "PowerEdge XE9680"), BARE_METAL, None),
        (dmi("Nobody knows", "Thing"), UNKNOWN_PLATFORM, None),
        (METAL | dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)"), VIRTUAL_MACHINE, "KVM"),
        (FLAGGED | dmi("VMware, Inc.", "VMware Virtual Platform"), VIRTUAL_MACHINE, "VMware"),
        (FLAGGED | dmi("Microsoft Corporation", "Virtual Machine"), VIRTUAL_MACHINE, "Hyper-V"),
        (METAL | dmi("Microsoft Corporation", "Surface Book 3"), BARE_METAL, None),
        (FLAGGED | dmi("Amazon EC2", "p5.48xlarge"), VIRTUAL_MACHINE, "Amazon Nitro"),
        (METAL | dmi("Amazon EC2", "g4dn.metal"), BARE_METAL, None),
        (dmi("Amazon EC2", "c7g.metal"), BARE_METAL, None),
        (dmi("Amazon EC2", "g5g.xlarge"), VIRTUAL_MACHINE, "Amazon Nitro"),
        (FLAGGED | dmi("Google", "Google Compute Engine"), VIRTUAL_MACHINE, "KVM"),
        (FLAGGED | {"/sys/hypervisor/type": b"xen\n"}, VIRTUAL_MACHINE, "Xen"),
        (FLAGGED | {"/proc/xen/capabilities": b"control_d\n"}, BARE_METAL, "Xen"),
        ({"/proc/device-tree/hypervisor/compatible": b"linux,kvm\0"}, VIRTUAL_MACHINE, "KVM"),
        ({"/proc/cpuinfo": b"cpu\t: POWER9\nplatform\t: PowerNV\n"}, BARE_METAL, None),
        ({"/proc/cpuinfo": b"cpu\t: POWER9\nplatform\t: pSeries\n"}, VIRTUAL_MACHINE, "PowerVM"),
        ({"/proc/cpuinfo": b"CPU implementer\t: 0x41\n"}, UNKNOWN_PLATFORM, None),
    ],
)
def test_bare_metal_needs_evidence(entries: Mapping[str, Entry], kind: str, hypervisor: str | None) -> None:
    """Hardware and hypervisors show by firmware, processor flags and kernel interfaces; without any it is unknown."""
    found = read(entries)
    assert (found.kind, found.hypervisor) == (kind, hypervisor)
    assert (found.kind == UNKNOWN_PLATFORM) == (found.evidence == "")


def test_nodes_without_processors_are_not_counted() -> None:
    """The memory of GPUs (GH200, POWER9) shows as NUMA nodes without processors: they are kept and not counted."""
    found = read(
        {
            "/sys/devices/system/node/node0/cpulist": b"0-71\n",
            "/sys/devices/system/node/node8/cpulist": b"72-143\n",
            "/sys/devices/system/node/node1/cpulist": b"\n",
            "/sys/devices/system/node/online": b"0-1,8\n",
            "/sys/devices/system/cpu/cpu0/topology/physical_package_id": b"0\n",
            "/sys/devices/system/cpu/cpu72/topology/physical_package_id": b"-1\n",
        }
    )
    nodes = known(found.numa)
    assert nodes is not None
    assert [tuple(node) for node in nodes] == [(0, "0-71", 0), (1, None, None), (8, "72-143", None)]
    assert found.numa_count == 2


def test_a_malformed_node_is_unknown_and_hides_no_other() -> None:
    """Nonsense in one file is an unknown reading."""
    found = read(
        {
            "/sys/devices/system/node/node0/cpulist": b"all of them\n",
            "/sys/devices/system/node/node1/cpulist": b"4-7\n",
        }
    )
    nodes = known(found.numa)
    assert nodes is not None
    assert isinstance(nodes[0].cpus, Unknown)
    assert nodes[1].cpus == "4-7"


def test_identity_and_kernel() -> None:
    """Host name, kernel, product, chassis and time since boot come from where the kernel keeps them."""
    found = read(
        METAL
        | dmi("HP", "Victus \x1b[31mby HP")
        | {
            "/sys/class/dmi/id/chassis_type": b"10\n",
            "/etc/hostname": b"node17\n",
            "/proc/version": b"Linux version 6.8.0-45-generic (builder@host) #1\n",
            "/proc/uptime": b"1234.5 99.0\n",
            "/sys/module/ib_core/refcnt": b"3\n",
        }
    )
    assert (found.hostname, found.kernel, found.arch) == ("node17", "6.8.0-45-generic", "x86_64")
    assert (found.product, found.chassis) == ("HP Victus by HP", 10)
    assert found.uptime_seconds == 1234.5
    assert found.modules == frozenset({"ib_core"})


@pytest.mark.parametrize(
    ("driver", "kernel", "dmabuf"),
    [
        (None, "6.8.0", None),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.00", "6.8.0", True),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.00", "5.4.0", False),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.00", "6.8.0", False),
    ],
)
def test_dmabuf(driver: str | None, kernel: str, dmabuf: bool | None) -> None:
    """GPU memory can be exported as dma-buf by NVIDIA's open kernel modules on Linux 5.12 and later."""
    entries: dict[str, Entry] = {"/proc/sys/kernel/osrelease": kernel.encode()}
    if driver is not None:
        entries["/proc/driver/nvidia/version"] = driver.encode()
    assert read(entries).dmabuf is dmabuf


def test_a_refused_file_is_counted_and_named() -> None:
    """What may not be read is unknown, counted, and makes the source partial."""
    facts = platform.collect(Tree(METAL | {"/proc/uptime": Refusal("denied", "EACCES")}), CONTEXT)
    assert facts.platform is not None
    assert facts.platform.uptime_seconds == Unknown("denied", "/proc/uptime")
    assert facts.source.status == PARTIAL
    assert facts.unread == {"denied: /proc/uptime": 1}


@pytest.mark.parametrize("folder", ["/sys/devices/system/node", "/sys/module"])
def test_a_refused_folder_is_counted_and_named(folder: str) -> None:
    """A null of the report has its reason, whatever it was read from."""
    tree = Tree(METAL | {folder: Refusal("denied", "EACCES")})
    facts = platform.collect(tree, CONTEXT)
    assert facts.source.status == PARTIAL
    assert folder in facts.source.detail


def test_an_empty_tree_is_absent() -> None:
    """A recording without /proc and /sys says nothing of the machine."""
    facts = platform.collect(Tree({}), CONTEXT)
    assert facts.source.status == ABSENT


def test_this_machine_agrees_with_the_operating_system() -> None:
    """Kernel, host name and architecture are what the operating system itself says."""
    if not os.path.exists("/proc/sys/kernel/osrelease"):
        pytest.skip("no /proc on this machine")
    facts = platform.collect(Live("/"), CONTEXT)
    assert facts.platform is not None
    assert (facts.platform.kernel, facts.platform.hostname) == (witness.release(), witness.node())
    assert facts.platform.arch in (witness.machine(), None)
