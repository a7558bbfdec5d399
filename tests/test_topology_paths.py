"""Path kinds and bottlenecks, against a brute-force answer on random machines and against lstopo on trees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as File
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_topo.assemble import assemble
from gpu_topo.model.host import VIRTUAL_MACHINE, Platform
from gpu_topo.model.node import GPU, NIC, STORAGE, Node
from gpu_topo.model.reading import Unknown
from gpu_topo.source import Live
from gpu_topo.topology.capacity import card_carries
from gpu_topo.topology.counted import endpoints
from gpu_topo.topology.lookup import Lookup, lookup
from gpu_topo.topology.paths import all_paths, path
from tests import trees
from tests.nvlinks import drivers
from tests.trees import GEN1, GEN3, GEN4, GEN5, UNLISTED_GPU, Ids, Machine

needs_lstopo = pytest.mark.skipif(shutil.which("lstopo") is None, reason="lstopo (hwloc) is not installed")

LANE = {gts: gts * 128 / 130 / 8 for gts in (GEN3, GEN4, GEN5)}  # GB/s
ENDS = {
    GPU: (trees.H100, trees.GPU_CLASS),
    NIC: (trees.CONNECTX7, trees.IB_CLASS),
    STORAGE: (trees.NVME, trees.NVME_CLASS),
}
UNLISTED_SWITCH: Ids = (0x11F8, 0x4FFF)

# --- random machines -------------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """An endpoint with its link; functions: how many of one device."""

    kind: str
    speed: float
    width: int
    functions: int = 1


class Chip(NamedTuple):
    """A switch with its uplink and what hangs from its ports."""

    ids: Ids
    speed: float
    width: int
    below: tuple[Leaf | Chip, ...]


class Root(NamedTuple):
    """A host bridge with what hangs from its root ports."""

    numa: int | None
    below: tuple[Leaf | Chip, ...]


speeds, widths = st.sampled_from(sorted(LANE)), st.sampled_from((1, 2, 4, 8, 16))
leaves = st.builds(Leaf, st.sampled_from((GPU, NIC, STORAGE)), speeds, widths, st.sampled_from((1, 1, 1, 2)))
chips = st.sampled_from((UNLISTED_SWITCH, trees.PLX8747, trees.PEX890))
ports = st.recursive(
    leaves,
    lambda inner: st.builds(Chip, chips, speeds, widths, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    max_leaves=6,
)
roots = st.builds(Root, st.sampled_from((0, 0, 1, None)), st.lists(ports, min_size=1, max_size=3).map(tuple))
machines = st.lists(roots, min_size=1, max_size=3).map(tuple)


class Place(NamedTuple):
    """Where an endpoint hangs: every step from the host bridge down, by name, with the GB/s of the link above it."""

    leaf: Leaf
    numa: int | None
    steps: tuple[tuple[str, float], ...]  # ("host0", inf), ("host0/1", inf), ("host0/1/switch", GB/s), ...


def build(description: tuple[Root, ...], config: bool) -> tuple[Node, dict[str, Place]]:
    """The machine as a Node, and where each of its endpoints is, in the test's own words."""
    count = len({root.numa for root in description if root.numa is not None}) or 1
    machine = Machine(config=config, numa=count)
    places: dict[str, Place] = {}

    def hang(item: Leaf | Chip, above: str, numa: int | None, steps: tuple[tuple[str, float], ...]) -> None:
        link, gbs = (item.speed, item.width), LANE[item.speed] * item.width
        name = steps[-1][0]
        if isinstance(item, Chip):
            up = machine.switch(above, item.ids, link, most=(GEN5, 16))
            here = (*steps, (f"{name}/switch", gbs))
            for number, child in enumerate(item.below):
                port = machine.down(up)
                hang(child, port, numa, (*here, (f"{name}/switch/{number}", float("inf"))))
            return
        here = (*steps, (f"{name}/device", gbs))
        first = None
        for number in range(item.functions):
            ids, code = ENDS[item.kind]
            address = machine.function(above, ids, code, link=link, most=(GEN5, 16), same_device=first)
            first = first or address
            places[address] = Place(item, numa, (*here, (f"{name}/device/{number}", float("inf"))))

    for number, root in enumerate(description):
        host = machine.host(number * 0x40, numa=root.numa)
        for position, item in enumerate(root.below):
            steps = ((f"host{number}", float("inf")), (f"host{number}/{position}", float("inf")))
            hang(item, machine.root_port(host), root.numa, steps)
    return machine.node(), places


def kind_of(a: Place, b: Place, numa_nodes: int) -> str:
    """The path kind by INTERFACE's words: count what is between two endpoints."""
    names_a, names_b = [name for name, _ in a.steps], [name for name, _ in b.steps]
    common = [name for name in names_a if name in names_b]
    if not common:
        if a.numa is None or b.numa is None:
            return "NODE" if numa_nodes == 1 else "UNKNOWN"
        return "NODE" if a.numa == b.numa else "SYS"
    if len(common) == 1:
        return "PHB"
    switches = {name for name in (*names_a, *names_b) if name.endswith("/switch") and name not in common}
    # Nothing but the ports of the chip that both have in common is between them: one enumerated switch.
    return "PXB" if switches else "PIX"


def narrowest(a: Place, b: Place) -> float | None:
    """The slowest link that is not shared; None between two functions of one device."""
    shared = {name for name, _ in a.steps} & {name for name, _ in b.steps}
    links = [gbs for place in (a, b) for name, gbs in place.steps if name not in shared and gbs != float("inf")]
    return min(links) if links else None


@pytest.mark.parametrize("config", [False, True], ids=["without root", "as root"])
@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(description=machines)
def test_random_machines(config: bool, description: tuple[Root, ...]) -> None:
    """Path kind, GB/s and bottleneck of every pair are what counting bridges by hand gives."""
    node, places = build(description, config)
    numas = {root.numa for root in description if root.numa is not None}
    assert {device.address for device in endpoints(node)} == set(places)
    for a, place_a in places.items():
        own = place_a.steps[-2][1]
        tighter = [gbs for _, gbs in place_a.steps[:-2] if gbs < own - 1e-6]
        bottleneck = node.devices[a].bottleneck
        assert (bottleneck is not None) == bool(tighter), a
        if bottleneck is not None:
            link = node.devices[bottleneck].link
            assert link is not None
            assert link.gbs == pytest.approx(min(tighter), rel=1e-4)
        for b, place_b in places.items():
            if a == b:
                continue
            found = path(node, a, b)
            assert found.kind == kind_of(place_a, place_b, len(numas) or 1), (a, b)
            assert found.gbs == (pytest.approx(narrowest(place_a, place_b), rel=1e-4) if found.gbs else None)
            assert (found.gbs is None) == (narrowest(place_a, place_b) is None), (a, b)
            assert path(node, b, a).via == tuple(reversed(found.via))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(description=machines)
def test_no_root_bus_no_verdict(description: tuple[Root, ...]) -> None:
    """In a guest nothing but a real switch says where two devices are to each other."""
    node, places = build(description, False)
    node = node._replace(platform=node.platform._replace(kind=VIRTUAL_MACHINE))
    for a in places:
        for b in places:
            if a < b:
                kind = path(node, a, b).kind
                assert kind in ("UNKNOWN", "PIX", "PXB")


# --- what is listed --------------------------------------------------------------------------------------------


def test_pairs_that_are_listed() -> None:
    """GPU-GPU, GPU-NIC, GPU-storage and NIC-storage are listed once; NIC-NIC and storage-storage are not."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()))
    kinds = {machine.gpu(machine.down(switch)): GPU for _ in range(2)}
    kinds |= {machine.nic(machine.down(switch)): NIC for _ in range(2)}
    kinds |= {machine.nvme(machine.down(switch)): STORAGE for _ in range(2)}
    pairs = [(kinds[p.a], kinds[p.b]) for p in all_paths(machine.node())]
    assert len(pairs) == 1 + 4 + 4 + 4
    assert (NIC, NIC) not in pairs
    assert (STORAGE, STORAGE) not in pairs


def test_many_endpoints() -> None:
    """Beyond 64 endpoints only pairs below one host bridge are listed, unless all are asked for."""
    machine = Machine()
    for bus in (0, 0x60):
        host = machine.host(bus)
        for _ in range(33):
            machine.gpu(machine.root_port(host, number=None))
    node = machine.node()
    near = all_paths(node)
    assert len(near) == 2 * 33 * 32 / 2
    assert {p.kind for p in near} == {"PHB"}
    assert len(all_paths(node, everything=True)) == 66 * 65 / 2


def test_virtual_functions_are_no_endpoints() -> None:
    """A virtual function beside its physical function is not counted."""
    machine = Machine()
    nic = machine.nic(machine.root_port(machine.host()))
    machine.virtual(nic, number=1)
    assert [d.address for d in endpoints(machine.node())] == [nic]


# --- bridges that are part of a card ---------------------------------------------------------------------------


@pytest.mark.parametrize("config", [False, True])
def test_bridges_inside_cards_are_no_step(config: bool) -> None:
    """Two AMD cards below one switch are one switch apart, whatever bridges the cards have inside."""
    machine = Machine(config=config)
    switch = machine.switch(machine.root_port(machine.host()), trees.PLX8747)
    a, b = (trees.navi(machine, machine.down(switch)) for _ in range(2))
    found = path(machine.node(), a, b)
    assert found.kind == "PIX"
    assert found.via == (machine.parts[a].above.above.above.address, switch, machine.parts[b].above.above.above.address)  # type: ignore[union-attr]


def test_slot_behind_inner_bridges() -> None:
    """The narrow slot two bridges above an AMD GPU is its bottleneck, and the rate of its paths at full speed."""
    machine = Machine()
    host = machine.host()
    narrow, wide = trees.navi(machine, machine.root_port(host), (GEN3, 4)), trees.navi(machine, machine.root_port(host))
    node = machine.node()
    assert node.devices[narrow].bottleneck == machine.parts[narrow].above.above.address  # type: ignore[union-attr]
    assert node.devices[wide].bottleneck is None
    found = path(node, narrow, wide)
    assert found.kind == "PHB"
    assert found.gbs == pytest.approx(7.88, rel=0.01)  # x4 at the Gen4 that both ends can do: its load is not known


def test_numa_node_of_the_bridge_above() -> None:
    """A device whose own NUMA node is not known has that of the nearest bridge that knows."""
    machine = Machine(numa=2)
    gpus = []
    for bus, numa in ((0, 0), (0x40, 1)):
        gpu = machine.gpu(machine.root_port(machine.host(bus, numa=numa)))
        machine.files(gpu, numa_node=b"-1\n")
        gpus.append(gpu)
    assert path(machine.node(), *gpus).kind == "SYS"


@pytest.mark.parametrize(("count", "kind"), [(1, "NODE"), (2, "UNKNOWN"), (None, "UNKNOWN")])
def test_numa_not_known(count: int | None, kind: str) -> None:
    """Without NUMA nodes, different host bridges are in one node only where the machine has only one."""
    machine = Machine(platform=Platform(kind="bare-metal", numa_count=count))
    a, b = (machine.gpu(machine.root_port(machine.host(bus, numa=None))) for bus in (0, 0x40))
    assert path(machine.node(), a, b).kind == kind


def test_unknown_link_is_no_rate() -> None:
    """Where an end's link is not known, neither is the rate of its paths: never the other end's."""
    machine = Machine()
    host = machine.host()
    a, b = (machine.gpu(machine.root_port(host)) for _ in range(2))
    machine.files(a, current_link_speed=b"Unknown\n")
    assert path(machine.node(), a, b).gbs is None


@pytest.mark.parametrize(("ids", "c2c"), [((0x10DE, 0x2941), None), (trees.GH200, None), (UNLISTED_GPU, True)])
def test_chip_to_chip_is_no_pcie(ids: Ids, c2c: bool | None) -> None:
    """What PCIe shows of a GPU on a chip-to-chip link limits nothing: the way to a NIC carries what the NIC's link
    does, and between two such GPUs nothing tells."""
    machine = Machine()
    first, second = (
        machine.gpu(machine.root_port(machine.host(0x10, domain=n), (GEN4, 1)), ids, (GEN4, 1), (GEN4, 1))
        for n in (8, 9)
    )
    nic = machine.nic(machine.root_port(machine.host(0x10), (GEN5, 16)))
    node = machine.node(drivers([first, second], c2c=c2c))
    assert path(node, first, nic).gbs == pytest.approx(16 * LANE[GEN5])
    assert path(node, first, second).gbs is None
    assert card_carries(node, node.devices[first]) is None
    # Where the other end is not known, neither is the way.
    machine.files(nic, current_link_width=b"Unknown\n", current_link_speed=b"Unknown\n")
    assert path(machine.node(drivers([first, second], c2c=c2c)), first, nic).gbs is None


def test_unknown_uplink_is_no_rate() -> None:
    """A link between that is not known may be the narrowest: then the rate is not known."""
    machine = Machine()
    host = machine.host()
    switch = machine.switch(machine.root_port(host))
    a, b = machine.gpu(machine.down(switch)), machine.gpu(machine.root_port(host))
    machine.files(switch, current_link_width=b"0\n")
    assert path(machine.node(), a, b).gbs is None


# --- lstopo as a witness ---------------------------------------------------------------------------------------


def lstopo(root: File) -> dict[str, tuple[tuple[str, ...], float]]:
    """Address -> bridges above, root first, and GB/s of the own link (0 where unknown), as lstopo has them."""
    environment = {**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_COMPONENTS": "-pci,-opencl,-gl,-x86"}
    command = ["lstopo", "--of", "xml", "--whole-io"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    document = ElementTree.fromstring(run.stdout[run.stdout.index("<topology") :])
    found = {}

    def visit(element: ElementTree.Element, above: tuple[str, ...]) -> None:
        address = element.get("pci_busid")
        if address is not None:
            found[address] = (above, float(element.get("pci_link_speed", "0")))
            above = (*above, address)
        for child in element:
            visit(child, above)

    visit(document, ())
    return found


def _is_bridge(config: File) -> bool:
    """Whether a recorded configuration space says that it is a bridge's (some were mangled by text tools)."""
    header = config.read_bytes()[:64] if config.exists() else b""
    return len(header) == 64 and header[0x0E] & 0x7F == 1


def differences(root: File) -> Iterator[str]:
    """Where our tree and lstopo's differ; first how many functions were compared."""
    node = assemble([trees.collect(Live(str(root)))])
    said = lstopo(root)
    yield f"{len(said)} functions"
    for address, (above, gbs) in said.items():
        device = node.devices.get(address)
        if device is None:
            yield f"{root.name} {address} is not there"
            continue
        complete = not isinstance(node.devices[device.path[0]].function.parent, Unknown)
        # lstopo learns from configuration space which bus is below a bridge, and we from the links of sysfs.
        readable = all(_is_bridge(root / trees.DEVICES[1:] / step / "config") for step in device.path[:-1])
        if complete and readable and device.path[:-1] != above:
            yield f"{root.name} {address} is below {device.path[:-1]}, lstopo says {above}"
        ours = device.link.gbs if device.link is not None else None
        # hwloc 2.9 knows the 8b/10b encoding of "5 GT/s" and not that of "5.0 GT/s".
        spellings = (gbs, gbs * 0.8 * 130 / 128)
        if gbs and ours is not None and not any(ours == pytest.approx(spelled, rel=0.01) for spelled in spellings):
            yield f"{root.name} {address} carries {ours:.3f}, lstopo says {gbs:.3f}"


@needs_lstopo
def test_lstopo_agrees_on_a_synthetic_node(tmp_path: File) -> None:
    """lstopo finds the same bridges above every function, and the same GB/s."""
    machine = Machine(config=True, numa=2)
    for bus, numa in ((0x00, 0), (0x80, 1)):
        host = machine.host(bus, numa=numa)
        switch = machine.switch(machine.root_port(host))
        machine.gpu(machine.down(switch), link=(GEN1, 8))
        inner = machine.switch(machine.down(switch))
        machine.nic(machine.down(inner))
        machine.nvme(machine.down(inner), link=(GEN4, 2))
        trees.navi(machine, machine.root_port(host))
        trees.display(machine, host)
    root = machine.write(tmp_path)
    trees.add_processor(root)
    compared, *differ = differences(root)
    assert differ == []
    assert compared == f"{len(machine.parts)} functions"


@needs_lstopo
@pytest.mark.slow
def test_lstopo_agrees_on_recorded_trees(corpus: File, tmp_path: File) -> None:
    """On every recorded tree that lstopo can read, structure and GB/s are the same."""
    compared, differ, begun = 0, [], time.monotonic()
    for archive in sorted((*corpus.glob("*/tree.tar.gz"), *corpus.glob("*/sysfs-rebuilt.tar.gz"))):
        root = tmp_path / archive.parent.name
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="tar")
        trees.add_processor(root)
        first, *rest = differences(root)
        compared += int(first.split()[0])
        differ += rest
    assert "\n".join(differ) == ""
    assert compared > 500
    assert time.monotonic() - begun < 300


def test_a_guest_has_no_figures_of_emulated_links() -> None:
    """The link registers of a guest are made up, and QEMU's switch (TI XIO3130) is no switch of the host."""
    machine = Machine(platform=Platform(kind=VIRTUAL_MACHINE, arch="x86_64", numa_count=1))
    top = machine.switch(machine.root_port(machine.host()), (0x104C, 0x8232))
    a, b = (machine.gpu(machine.down(top)) for _ in range(2))
    found = path(machine.node(), a, b)
    assert (found.kind, found.gbs) == ("UNKNOWN", None)


def test_threads_share_what_is_worked_out() -> None:
    """Two threads that ask a fresh Node the same get the same answer, however they take turns."""
    machine = Machine()
    host = machine.host()
    for _ in range(40):
        machine.gpu(machine.root_port(host))
    node = machine.node()
    whole = {address: len(lookup(node).below(address)) for address in node.devices}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(50):
                index = Lookup(node)
                asked = pool.map(lambda _, index=index: {a: len(index.below(a)) for a in whole}, range(4))
                assert all(answer == whole for answer in asked)
    finally:
        sys.setswitchinterval(before)
