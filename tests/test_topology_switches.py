"""Physical switches: which bridges are one chip, what hangs below it, and what its uplink carries."""

from __future__ import annotations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.classifier import classify
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.pci import DOWNSTREAM_PORT, PCIE_TO_PCI, ROOT_PORT, UPSTREAM_PORT, Function, LinkEnd
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.paths import path
from tests import trees
from tests.trees import CHIPSET_DOWN, CHIPSET_UP, GEN3, GEN4, GEN5, PEX880, PEX890, PLX8747, Ids, Machine

ROOT_ACCESS = pytest.mark.parametrize("config", [False, True], ids=["without root", "as root"])


@ROOT_ACCESS
def test_one_chip(config: bool) -> None:
    """The upstream port and all downstream ports of a chip are one switch; its topmost port names it."""
    machine = Machine(config=config)
    up = machine.switch(machine.root_port(machine.host()), PLX8747)
    downs = [machine.down(up) for _ in range(3)]
    gpus = [machine.gpu(down) for down in downs]
    node = machine.node()
    assert list(node.switches) == [up]
    switch = node.switches[up]
    assert switch.ports == (up, *downs)
    assert set(switch.downstream) == set(gpus)
    assert {node.devices[gpu].switch for gpu in gpus} == {up}


@ROOT_ACCESS
@pytest.mark.parametrize(
    ("ids", "outer", "inner"),
    [(PEX890, 0x0004, 0x100B), (PEX890, 0x0000, 0x1002), (PEX880, 0xA024, 0xA024), (PEX880, 0xA096, 0xA1C0)],
)
def test_cascaded_virtual_bridges(config: bool, ids: Ids, outer: int, inner: int) -> None:
    """Broadcom's chips show their inner virtual bridges: a switch below a switch that is one piece of silicon."""
    machine = Machine(config=config)
    chip = machine.switch(machine.root_port(machine.host()), ids, subsystem=(0x1000, outer))
    gpus = []
    for _ in range(2):
        virtual = machine.switch(machine.down(chip, subsystem=(0x1000, outer)), ids, subsystem=(0x1000, inner))
        gpus += [machine.gpu(machine.down(virtual, subsystem=(0x1000, inner))) for _ in range(2)]
    node = machine.node()
    assert list(node.switches) == [chip]
    assert len(node.switches[chip].ports) == 1 + 2 * (1 + 1 + 2)
    assert set(node.switches[chip].downstream) == set(gpus)
    # As `nvidia-smi topo -m` has it: one chip, and yet more bridges than one between its halves.
    assert (path(node, gpus[0], gpus[1]).kind, path(node, gpus[0], gpus[2]).kind) == ("PIX", "PXB")


@ROOT_ACCESS
def test_daisy_chained_chips(config: bool) -> None:
    """Two PLX chips one behind the other are two: the inner one's uplink is a real link."""
    machine = Machine(config=config)
    outer = machine.switch(machine.root_port(machine.host()), PLX8747)
    inner = machine.switch(machine.down(outer), PLX8747, (GEN3, 16))
    near, far = machine.gpu(machine.down(outer)), machine.gpu(machine.down(inner))
    node = machine.node()
    assert set(node.switches) == {outer, inner}
    assert (node.devices[near].switch, node.devices[far].switch) == (outer, inner)
    assert set(node.switches[inner].downstream) == {far}
    assert near in node.switches[outer].downstream
    assert far not in node.switches[outer].downstream


@ROOT_ACCESS
def test_chips_of_two_level_family_behind_each_other(config: bool) -> None:
    """Two chips of a family that cascades inside: a chip whose ports have no inner numbers is a chip of its own."""
    machine = Machine(config=config)
    outer = machine.switch(machine.root_port(machine.host()), PEX890, subsystem=(0x1000, 0x0004))
    inner = machine.switch(machine.down(outer, subsystem=(0x1000, 0x0004)), PEX890, subsystem=(0x15D9, 0x1C5E))
    gpu = machine.gpu(machine.down(inner))
    assert machine.node().devices[gpu].switch == inner


@ROOT_ACCESS
def test_chipset_is_no_switch(config: bool) -> None:
    """AMD's chipset looks like a switch on PCI, and nobody can plug a device into another of its kind."""
    machine = Machine(config=config)
    up = machine.bridge(machine.root_port(machine.host()), CHIPSET_UP, UPSTREAM_PORT, (GEN4, 4))
    gpu = machine.gpu(machine.bridge(up, CHIPSET_DOWN, DOWNSTREAM_PORT, (GEN4, 4)), link=(GEN4, 4))
    node = machine.node()
    assert node.switches == {}
    assert node.devices[gpu].switch is None


@ROOT_ACCESS
@pytest.mark.parametrize(
    "bridge", [(0x15B3, 0x1974), (0x15B3, 0x1978), (0x15B3, 0x197B)], ids=["ConnectX-5", "BlueField-2", "BlueField-3"]
)
def test_bridges_inside_cards_are_no_switch(config: bool, bridge: Ids) -> None:
    """A NIC's or DPU's own bridges are part of the card, and so are an AMD card's."""
    machine = Machine(config=config)
    host = machine.host()
    up = machine.bridge(machine.root_port(host), bridge, UPSTREAM_PORT, (GEN5, 16))
    nic = machine.nic(machine.bridge(up, bridge, DOWNSTREAM_PORT, (GEN5, 16)))
    gpu = trees.navi(machine, machine.root_port(host))
    node = machine.node()
    assert node.switches == {}
    assert (node.devices[nic].switch, node.devices[gpu].switch) == (None, None)


@ROOT_ACCESS
def test_cards_with_bridges_below_a_switch(config: bool) -> None:
    """Cards that bring bridges of their own hang from the switch that they are plugged into."""
    machine = Machine(config=config)
    switch = machine.switch(machine.root_port(machine.host()), PLX8747)
    gpu = trees.navi(machine, machine.down(switch))
    node = machine.node()
    assert list(node.switches) == [switch]
    assert node.devices[gpu].switch == switch
    assert node.switches[switch].downstream_gbs == pytest.approx(31.5, rel=0.01)


def test_unlisted_switch() -> None:
    """A chip that the catalogue does not know is a switch by its place and its port types."""
    machine = Machine(config=True)
    up = machine.switch(machine.root_port(machine.host()), (0xABCD, 0x0001))
    gpu = machine.gpu(machine.down(up))
    assert machine.node().devices[gpu].switch == up


@ROOT_ACCESS
def test_bridge_to_conventional_pci_is_no_switch(config: bool) -> None:
    """A management display behind its bridge to conventional PCI hangs from no switch."""
    machine = Machine(config=config)
    display = trees.display(machine, machine.host())
    node = machine.node()
    assert node.switches == {}
    assert node.devices[display].switch is None


def test_oversubscription() -> None:
    """Downstream is the sum of what the links below can carry, each once, over the uplink."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()), most=(GEN4, 16))
    for _ in range(4):
        machine.gpu(machine.down(switch, (GEN4, 16)), most=(GEN4, 16))
    found = machine.node().switches[switch]
    assert found.downstream_gbs == pytest.approx(4 * 31.5, rel=0.01)
    assert found.oversubscription == 4.0
    assert found.uplink is not None
    assert found.uplink.gbs == pytest.approx(31.5, rel=0.01)


def test_functions_of_one_device_count_once() -> None:
    """A dual-port NIC has one link, whatever number of functions; virtual functions have none."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()))
    down = machine.down(switch)
    nic = machine.nic(down)
    machine.nic(down, same_device=nic)
    machine.virtual(nic, number=2)
    found = machine.node().switches[switch]
    assert found.downstream_gbs == pytest.approx(63.0, rel=0.01)
    assert found.oversubscription == 1.0


def test_idle_devices_count_with_what_they_can_carry() -> None:
    """An idle GPU's slow link does not make a switch less shared, nor does an idle uplink make it more."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()), PLX8747, (GEN3, 16), most=(GEN5, 16))
    for _ in range(2):
        machine.gpu(machine.down(switch), link=(2.5, 16), most=(GEN5, 16))
    assert machine.node().switches[switch].oversubscription == 2.0


def test_a_card_with_inner_bridges_counts_with_its_slot() -> None:
    """A DPU or an AMD GPU in a x4 slot of a switch can carry x4, and the two devices of one card share its slot."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()))
    trees.navi(machine, machine.down(switch, (GEN4, 4)), (GEN4, 4))
    assert machine.node().switches[switch].downstream_gbs == pytest.approx(7.877)
    up = machine.bridge(machine.down(switch), trees.BLUEFIELD_BRIDGE, "upstream-port", (GEN4, 16))
    for _ in range(2):
        machine.nic(machine.bridge(up, trees.BLUEFIELD_BRIDGE, "downstream-port", (GEN4, 16)), most=(GEN4, 16))
    assert machine.node().switches[switch].downstream_gbs == pytest.approx(7.877 + 31.508)


def test_management_function_of_a_switch_carries_nothing() -> None:
    """The management endpoint inside a Broadcom switch is no storage and no load."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host()))
    machine.gpu(machine.down(switch))
    endpoint = machine.function(machine.down(switch), (0x1000, 0x00B2), 0x010700, link=(GEN4, 1))
    node = machine.node()
    assert node.devices[endpoint].kind == "other"
    assert node.switches[switch].downstream_gbs == pytest.approx(63.0, rel=0.01)


@ROOT_ACCESS
@pytest.mark.parametrize("damage", ["itself", "each other"])
def test_loops_end(config: bool, damage: str) -> None:
    """A damaged or hostile recording whose bridges are above each other is judged like any other."""
    machine = Machine(config=config)
    switch = machine.switch(machine.root_port(machine.host()))
    gpu = machine.gpu(machine.down(switch))
    facts = machine.facts()
    down = next(f.parent for f in facts.functions if f.address == gpu)
    looped = tuple(
        f._replace(parent=down if damage == "each other" else switch) if f.address == switch else f
        for f in facts.functions
    )
    node = machine.node(more=[facts._replace(functions=looped)])
    assert gpu in node.devices
    classify(node)


@ROOT_ACCESS
@pytest.mark.parametrize("ids", [PEX890, PLX8747], ids=["two-level", "plain"])
def test_thousands_of_levels_end(config: bool, ids: Ids) -> None:
    """No tower of bridges, in whatever order its addresses are, is too high."""
    levels = 3000
    functions = [
        Function(
            f"{levels - level:08x}:00:00.0",
            *ids,
            trees.BRIDGE_CLASS,
            parent=f"{levels - level + 1:08x}:00:00.0" if level else None,
            bridge=True,
            port_type=(UPSTREAM_PORT if level % 2 else DOWNSTREAM_PORT) if config else None,
            link=LinkEnd(16.0, 16, 16.0, 16),
        )
        for level in range(levels)
    ]
    node = assemble([Facts(SourceStatus("pcie", OK), functions=tuple(functions))])
    assert len(node.devices) == levels
    classify(node)


def test_port_types_by_place() -> None:
    """Without root the place of a bridge tells its type; what its capability says goes before."""
    machine, told = Machine(), Machine(config=True)
    for m in (machine, told):
        host = m.host()
        m.gpu(m.down(m.switch(m.root_port(host))))
        trees.display(m, host)
    by_place, by_register = lookup(machine.node()), lookup(told.node())
    for address, function in by_register.functions.items():
        if function.bridge and function.port_type in (ROOT_PORT, UPSTREAM_PORT, DOWNSTREAM_PORT):
            assert by_place.port_type(address) == by_register.port_type(address) == function.port_type
        elif function.port_type == PCIE_TO_PCI:
            assert by_register.port_type(address) == PCIE_TO_PCI
