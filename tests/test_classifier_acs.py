"""acs-blocks-p2p: which bits, on which bridges, between which peers, on which machines."""

from __future__ import annotations

import pytest

from gpu_topo.model.host import BARE_METAL, Platform
from tests import trees
from tests.nvlinks import GUEST
from tests.trees import PLX8747, Machine, conclusions, findings, unassessed

ACS = "acs-blocks-p2p"
REDIRECTS = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


def two_below_switch(
    bits: tuple[str, ...], kinds: str = "gpu gpu", ids: trees.Ids = trees.H100, **more: object
) -> tuple[Machine, str, list[str]]:
    """Two devices below one switch whose downstream ports have these bits; returns the switch and its ports."""
    machine = Machine(config=True, **more)  # type: ignore[arg-type]
    switch = machine.switch(machine.root_port(machine.host(0x10), acs=()), PLX8747)
    downs = []
    for kind in kinds.split():
        down = machine.down(switch, acs=bits)
        downs.append(down)
        if kind == "gpu":
            machine.gpu(down, ids)
        elif kind == "nic":
            machine.nic(down)
        elif kind == "ethernet":
            machine.nic(down, trees.I350, gbps=1, infiniband=False)
        else:
            machine.nvme(down)
    return machine, switch, downs


@pytest.mark.parametrize(
    ("bits", "fires"),
    [
        (("ReqRedir",), True),
        (("CmpltRedir",), True),
        (REDIRECTS, True),
        (("SrcValid",), False),
        (("UpstreamFwd",), False),
        (("SrcValid", "UpstreamFwd"), False),
        (("TransBlk", "EgressCtrl", "DirectTrans"), False),
        ((), False),
    ],
)
def test_bits(bits: tuple[str, ...], fires: bool) -> None:
    """Redirect bits alone block peer-to-peer: source validation and upstream forwarding are set on healthy switches."""
    machine, _, _ = two_below_switch(bits)
    found, questions = conclusions(machine.node(), ACS)
    assert [f.severity for f in found] == (["warning"] if fires else [])
    assert questions == []


def test_one_finding_a_chip() -> None:
    """All ports of a chip are one finding, with the bridges, the users and the bits."""
    machine, switch, downs = two_below_switch(REDIRECTS)
    (found,) = findings(machine.node(), ACS)
    assert found.subject == switch
    assert set(downs) <= set(found.related)
    assert found.observed["acs"] == ["CmpltRedir", "ReqRedir"]


@pytest.mark.parametrize(
    ("kinds", "fires"),
    [("gpu gpu", True), ("gpu nic", True), ("nic nic", False), ("gpu nvme", False), ("gpu ethernet", False)],
)
def test_peers(kinds: str, fires: bool) -> None:
    """Two GPUs, or a GPU and an RDMA NIC, are peers; others do no peer-to-peer that is judged."""
    machine, _, _ = two_below_switch(REDIRECTS, kinds)
    assert bool(findings(machine.node(), ACS)) == fires


@pytest.mark.parametrize("ids", [trees.RTX_4090, trees.RTX_3090])
def test_geforce(ids: trees.Ids) -> None:
    """GeForce cards have no peer-to-peer over PCIe, so nothing blocks it."""
    machine, _, _ = two_below_switch(REDIRECTS, ids=ids)
    assert findings(machine.node(), ACS) == []


@pytest.mark.parametrize(
    ("ids", "status", "fires"),
    [
        (trees.RTX_4090, "OK", True),
        (trees.RTX_4090, "CNS", False),
        (trees.H100, "GNS", False),
        (trees.H100, "TNS", True),
        (trees.H100, "U", True),
    ],
)
def test_what_the_driver_says(ids: trees.Ids, status: str, fires: bool) -> None:
    """Drivers that are made to do peer-to-peer do it with GeForce cards too, and some GPUs do none; what a driver says
    of the chipset tells nothing of the GPU."""
    machine, _, _ = two_below_switch(REDIRECTS, ids=ids)
    node = machine.node()
    a, b = (gpu.address for gpu in node.gpus)
    assert bool(findings(node._replace(p2p={(a, b): {"read": status}}), ACS)) == fires


def test_amd_gpus() -> None:
    """AMD's accelerators do peer-to-peer."""
    machine, _, _ = two_below_switch(REDIRECTS, ids=trees.MI300X)
    assert findings(machine.node(), ACS) != []


def test_root_ports_of_one_host_bridge() -> None:
    """Redirection on root ports between two peers below one host bridge counts too."""
    machine = Machine(config=True)
    host = machine.host(0x10)
    ports = [machine.root_port(host, acs=("ReqRedir",)) for _ in range(2)]
    for port in ports:
        machine.gpu(port)
    assert {f.subject for f in findings(machine.node(), ACS)} == set(ports)


def test_different_host_bridges() -> None:
    """Between host bridges the processor forwards anyway: nothing is blocked there."""
    machine = Machine(config=True)
    for bus in (0x10, 0x80):
        machine.gpu(machine.root_port(machine.host(bus), acs=REDIRECTS))
    assert findings(machine.node(), ACS) == []


def test_bridges_off_the_path() -> None:
    """A bridge that no two peers have between them may do what it likes: above their switch, or beside it."""
    machine = Machine(config=True)
    switch = machine.switch(machine.root_port(machine.host(0x10), acs=REDIRECTS), PLX8747)
    for _ in range(2):
        machine.gpu(machine.down(switch, acs=()))
    machine.nvme(machine.down(switch, acs=REDIRECTS))
    assert conclusions(machine.node(), ACS) == ([], [])


def test_a_single_gpu() -> None:
    """One GPU has no peer, and there is nothing to ask."""
    machine, _, _ = two_below_switch(REDIRECTS, "gpu nvme")
    assert conclusions(machine.node(), ACS) == ([], [])


# --- unassessed ------------------------------------------------------------------------------------------------


def test_virtual_machine() -> None:
    """In a guest the host's access control is hidden."""
    machine, _, _ = two_below_switch(REDIRECTS, platform=GUEST)
    found, (question,) = conclusions(machine.node(), ACS)
    assert found == []
    assert question.cause == "virtual-machine"


@pytest.mark.parametrize("arch", ["aarch64", "ppc64le"])
def test_other_processors(arch: str) -> None:
    """Some platforms need the bits: only x86 is judged."""
    machine, _, _ = two_below_switch(REDIRECTS, platform=Platform(kind=BARE_METAL, arch=arch, numa_count=1))
    found, (question,) = conclusions(machine.node(), ACS)
    assert found == []
    assert question.cause == "not-applicable"


@pytest.mark.parametrize(("vendor", "judged"), [(0x8086, True), (0x1022, True), (0x10DE, False), (0x19E5, False)])
def test_processor_by_its_root_ports(vendor: int, judged: bool) -> None:
    """A recording that does not name the processor shows it by its root ports."""
    machine = Machine(config=True, platform=Platform(kind=BARE_METAL, numa_count=1))
    host = machine.host(0x10, bridge=False)
    switch = machine.switch(machine.root_port(host, ids=(vendor, 0x1234)), PLX8747)
    for _ in range(2):
        machine.gpu(machine.down(switch, acs=REDIRECTS))
    assert bool(findings(machine.node(), ACS)) == judged


def test_without_root() -> None:
    """Without root the bits cannot be read: an open question that says what root would add, and no finding."""
    machine, _, _ = two_below_switch(REDIRECTS)
    for address, part in machine.parts.items():
        machine.files(address, config=trees.config_of(part)[:64])
    found, (question,) = conclusions(machine.node(), ACS)
    assert found == []
    assert question.cause == "denied"
    assert "root" in question.reason


def test_not_recorded() -> None:
    """A recording without configuration space does not tell, root or not."""
    machine, _, _ = two_below_switch(REDIRECTS)
    machine.config = False
    assert [u.cause for u in unassessed(machine.node(), ACS)] == ["not-recorded"]


def test_passed_through() -> None:
    """A GPU that is passed to a guest needs the isolation."""
    machine, _, _ = two_below_switch(REDIRECTS)
    gpu = next(a for a, part in machine.parts.items() if part.class_code == trees.GPU_CLASS)
    machine.parts[gpu].driver = "vfio-pci"
    found, questions = conclusions(machine.node(), ACS)
    assert found == []
    assert [(u.subject, u.cause) for u in questions] == [(gpu, "passthrough")]


def test_bridges_without_access_control() -> None:
    """A switch that has no access control at all redirects nothing, and leaves no question."""
    machine, _, downs = two_below_switch(())
    for down in downs:
        machine.parts[down].acs = None
    assert conclusions(machine.node(), ACS) == ([], [])


def test_the_remedy_names_every_port() -> None:
    """A port that is left out redirects on."""
    machine, _, downs = two_below_switch(("ReqRedir",))
    (found,) = findings(machine.node(), ACS)
    for text in (*found.remedy[1:], found.verify):
        assert all(port in text for port in downs), text
    assert "ADDRESS" not in " ".join(found.remedy)


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"power__runtime_status": b"suspended\n"}, "asleep"),
        ({"config": b"\xff" * 4096}, "unreadable"),
        ({"config": None}, "not-recorded"),
    ],
)
def test_why_it_could_not_be_read(files: dict[str, bytes | None], cause: str) -> None:
    """A bridge that sleeps, no longer answers, or whose registers were not recorded."""
    machine, _, downs = two_below_switch(())
    machine.files(downs[0], **files)
    assert [u.cause for u in unassessed(machine.node(), ACS) if u.subject == "node"] == [cause]


@pytest.mark.parametrize("size", [256, 260])
def test_cut_before_the_capability(size: int) -> None:
    """A copy of configuration space that ends before access control is no bridge without it."""
    machine, switch, downs = two_below_switch(("ReqRedir",))
    for address in (switch, *downs):
        machine.files(address, config=trees.config_of(machine.parts[address])[:size])
    found, left = conclusions(machine.node(), ACS)
    assert (found, [u.cause for u in left]) == ([], ["not-recorded"])


def test_one_that_is_denied_hides_no_other() -> None:
    """Where one file of configuration space may not be read, the others are all the same."""
    machine, switch, downs = two_below_switch(("ReqRedir",))
    for address in sorted(machine.parts):
        if address <= switch:
            machine.files(address, config=trees.refused())
    found, _ = conclusions(machine.node(), ACS)
    assert [set(f.related) >= set(downs) for f in found] == [True]
