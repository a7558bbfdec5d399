"""Parents by bus numbers: what proves a root bus, what does not, and random trees against their own construction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.model.pci import DOWNSTREAM_PORT, ENDPOINT, INTEGRATED_ENDPOINT, ROOT_PORT, Function
from gpu_topo.model.reading import Unknown
from gpu_topo.topology.buses import place


def placed(*functions: Function) -> dict[str, Function]:
    return {function.address: function for function in place(functions)}


def port(address: str, secondary: int, subordinate: int, kind: str = ROOT_PORT) -> Function:
    return Function(
        address, bridge=True, class_code=0x060400, port_type=kind, secondary_bus=secondary, subordinate_bus=subordinate
    )


def test_a_function_hangs_below_the_bridge_that_leads_to_its_bus() -> None:
    """Within its own domain."""
    found = placed(port("0000:00:01.0", 1, 1), port("0001:00:01.0", 1, 1), Function("0001:01:00.0"))
    assert found["0001:01:00.0"].parent == "0001:00:01.0"
    assert found["0001:01:00.0"].host_bridge == "pci0001:00"
    assert found["0000:00:01.0"].parent is None


def test_a_missing_bridge_leaves_the_parent_unknown() -> None:
    """A bus within a port's range that no recorded bridge leads to is below a bridge that was not pasted."""
    found = placed(port("0000:00:01.0", 1, 5), Function("0000:03:00.0", port_type=ENDPOINT))
    assert isinstance(found["0000:03:00.0"].parent, Unknown)
    assert found["0000:03:00.0"].host_bridge is None


def test_neighbours_prove_a_root_bus() -> None:
    """Root ports, integrated endpoints and host bridges sit on root buses only, so everything beside them does."""
    uncore = Function("0000:17:05.0")
    assert isinstance(placed(uncore)["0000:17:05.0"].parent, Unknown)
    assert placed(uncore, port("0000:17:02.0", 0x18, 0x18))["0000:17:05.0"].parent is None
    assert placed(uncore, Function("0000:17:0a.0", port_type=INTEGRATED_ENDPOINT))["0000:17:05.0"].parent is None
    assert placed(uncore, Function("0000:17:00.0", class_code=0x060000))["0000:17:05.0"].parent is None


def test_a_listing_of_the_whole_machine_proves_a_root_bus() -> None:
    """A guest's GPUs on a root bus of their own: nothing leads there, and every bridge is known."""
    gpu = Function("0000:10:1c.0", port_type=ENDPOINT, class_code=0x030200)
    first = Function("0000:00:00.0", class_code=0x060000)
    assert placed(gpu, first)["0000:10:1c.0"].parent is None
    assert isinstance(placed(gpu)["0000:10:1c.0"].parent, Unknown)
    unknown_buses = Function("0000:00:01.0", class_code=0x060400, bridge=True)
    assert isinstance(placed(gpu, first, unknown_buses)["0000:10:1c.0"].parent, Unknown)


def test_known_parents_stay() -> None:
    """What a source states is not replaced."""
    function = Function("0000:01:00.0", parent="0000:00:1c.0")
    assert placed(port("0000:00:01.0", 1, 1), function)["0000:01:00.0"].parent == "0000:00:1c.0"


def test_bridges_that_nobody_has_set_up_lead_nowhere() -> None:
    """Numbers of zero, backwards or pointing at themselves make no parents and no loops."""
    found = placed(
        port("0000:00:01.0", 0, 0),
        port("0000:02:00.0", 1, 9, DOWNSTREAM_PORT),
        port("0000:01:00.0", 2, 2, DOWNSTREAM_PORT),
        port("0000:03:00.0", 3, 3, DOWNSTREAM_PORT),
    )
    assert found["0000:02:00.0"].parent == "0000:01:00.0"
    assert isinstance(found["0000:01:00.0"].parent, Unknown)
    assert isinstance(found["0000:03:00.0"].parent, Unknown)


def test_a_virtual_function_shares_the_port_of_its_physical_one() -> None:
    """Routing ids run over the end of the bus into the next one, which no bridge leads to directly."""
    found = placed(
        port("0000:00:01.0", 1, 2),
        Function("0000:01:00.0"),
        Function("0000:02:00.1", virtual_function=True, physical_function="0000:01:00.0"),
    )
    assert found["0000:02:00.1"].parent == "0000:00:01.0"


def test_something_below_an_empty_slot_makes_it_full() -> None:
    """Boards without wired presence detect."""
    slot = port("0000:00:01.0", 1, 1)._replace(hotplug_empty=True)
    assert placed(slot)["0000:00:01.0"].hotplug_empty
    assert not placed(slot, Function("0000:01:00.0"))["0000:00:01.0"].hotplug_empty


def test_names_that_are_no_addresses_are_left_alone() -> None:
    """topo -m knows GPUs by name only."""
    assert isinstance(placed(Function("GPU0"))["GPU0"].parent, Unknown)


@st.composite
def machines(draw: st.DrawFn) -> dict[str, str | None]:
    """Address -> parent of a random machine, its buses numbered depth first as firmware does."""
    parents: dict[str, str | None] = {}
    next_bus = draw(st.integers(0, 40))

    def fill(bus: int, bridge: str | None, depth: int) -> None:
        nonlocal next_bus
        for device in range(draw(st.integers(1, 3))):
            address = f"0000:{bus:02x}:{device:02x}.0"
            parents[address] = bridge
            if depth and draw(st.booleans()) and next_bus < 250:
                next_bus += 1
                fill(next_bus, address, depth - 1)

    fill(next_bus, None, 4)
    return parents


@given(machines())
def test_random_trees_are_found_again(parents: dict[str, str | None]) -> None:
    """Buses of a random tree lead back to exactly its parents."""
    below: dict[str, list[int]] = {}
    for address, parent in parents.items():
        above = parent
        while above is not None:
            below.setdefault(above, []).append(int(address[5:7], 16))
            above = parents[above]
    functions = [
        port(address, min(below[address]), max(below[address]), ROOT_PORT if parent is None else DOWNSTREAM_PORT)
        if address in below
        else Function(address, port_type=INTEGRATED_ENDPOINT if parent is None else ENDPOINT)
        for address, parent in parents.items()
    ]
    assert {function.address: function.parent for function in place(functions)} == parents
