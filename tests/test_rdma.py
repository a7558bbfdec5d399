"""RDMA ports from /sys/class/infiniband: every spelling, every refusal, and what must not be opened."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.classifier.port_counters import CEILINGS, LINK_DOWNED
from gpu_topo.collectors import rdma
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.model.reading import DENIED, FAILED, MALFORMED, NO_DATA, Unknown
from gpu_topo.source import Entry, Live, Recording, Refusal, Replay, Tree, TreeDir

PCI = "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0"


def now() -> Context:
    return Context(time.monotonic() + 10)


def card(
    name: str = "mlx5_0",
    function: str = PCI,
    ports: tuple[int, ...] = (1,),
    driver: str = "mlx5_core",
    device: dict[str, str] | None = None,
    port: dict[str, str] | None = None,
) -> dict[str, Entry]:
    """The files of one RDMA device with its PCI function, as sysfs lays them out."""
    address = function.rsplit("/", 1)[1]
    base = f"{function}/infiniband/{name}"
    files: dict[str, Entry] = {
        f"/sys/class/infiniband/{name}": f"../..{base[4:]}",
        f"/sys/bus/pci/devices/{address}": f"../../..{function[4:]}",
        f"{base}/device": "../..",
        f"{function}/driver": f"../../../bus/pci/drivers/{driver}",
    }
    identity = {"fw_ver": "28.41.1000", "board_id": "MT_0000000838", "hca_type": "MT4129", "node_type": "1: CA"}
    for key, value in (identity | (device or {})).items():
        files[f"{base}/{key}"] = f"{value}\n".encode()
    state = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "gids/0": "fe80:0000:0000:0001:0c42:a103:001d:d12a",
        "counters/symbol_error": "0",
        "counters/link_downed": "3",
    }
    for number in ports:
        for key, value in (state | (port or {})).items():
            files[f"{base}/ports/{number}/{key}"] = f"{value}\n".encode()
    return files


def collect(files: dict[str, Entry], context: Context | None = None) -> Facts:
    return rdma.collect(Tree(files), context or now())


def test_an_ndr_port_is_read_whole() -> None:
    """State, rate, identity, subnet and counters of an InfiniBand port, and the function and driver behind it."""
    files = card() | {f"{PCI}/net/ib0/dev_port": b"0\n"}
    (port,) = collect(files).ports
    assert (port.device, port.port, port.address) == ("mlx5_0", 1, "0000:18:00.0")
    assert (port.state, port.phys_state, port.rate_gbps, port.lanes, port.speed) == ("ACTIVE", "LinkUp", 400, 4, "NDR")
    assert (port.link_layer, port.transport, port.netdev) == ("InfiniBand", "infiniband", "ib0")
    assert port.subnet_prefix == "fe80:0000:0000:0001"
    assert (port.firmware, port.board_id) == ("28.41.1000", "MT_0000000838")
    assert port.counters == {"symbol_error": 0, "link_downed": 3}
    assert not port.software
    assert not port.management


def test_no_infiniband_class_is_absent_not_failed() -> None:
    """A machine without RDMA has no such source; that is nothing to worry about."""
    facts = collect({"/sys/class/net/eth0/mtu": b"1500\n"})
    assert facts.source.status == "absent"
    assert facts.ports == ()


def test_a_class_that_may_not_be_read_is_denied() -> None:
    """A sandbox that hides the class is told apart from a machine without RDMA."""
    assert collect({"/sys/class/infiniband": Refusal("denied", "EACCES")}).source.status == "denied"


@pytest.mark.parametrize(
    ("rate", "gbps", "lanes", "speed"),
    [
        ("2.5 Gb/sec (1X SDR)", 2.5, 1, "SDR"),
        ("100 Gb/sec (2X HDR)", 100, 2, "HDR"),
        ("800 Gb/sec (4X XDR)", 800, 4, "XDR"),
        ("10 Gb/sec (4X)", 10, 4, None),
    ],
)
def test_every_spelling_of_a_rate(rate: str, gbps: float, lanes: int, speed: str | None) -> None:
    """Lanes and speed come from the text itself, never from a closed list."""
    (port,) = collect(card(port={"rate": rate})).ports
    assert (port.rate_gbps, port.lanes, port.speed) == (gbps, lanes, speed)


def test_nonsense_is_unknown_and_counted() -> None:
    """A rate or a state that makes no sense is unknown with a reason; the rest of the port still comes."""
    facts = collect(card(port={"rate": "fast", "state": "0: <unknown>", "counters/link_downed": "many"}))
    (port,) = facts.ports
    assert port.rate_gbps == Unknown(MALFORMED, "rate")
    assert port.state == Unknown(NO_DATA, "state")
    assert port.counters["link_downed"] == Unknown(MALFORMED, "link_downed")
    assert port.phys_state == "LinkUp"
    assert facts.source.status == "partial"
    assert facts.unread["malformed: link_downed"] == 1


@pytest.mark.parametrize("name", rdma.COUNTERS + rdma.HW_COUNTERS)
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Refusal("failed", "EINVAL"), FAILED),
        (Refusal("denied", "EACCES"), DENIED),
        (b"N/A (no PMA)\n", NO_DATA),
        (b"\xff\xfe\n", MALFORMED),
    ],
)
def test_each_counter_may_be_refused_and_the_others_still_come(name: str, answer: Entry, why: str) -> None:
    """A driver that refuses one counter file costs that counter and nothing else."""
    base = f"{PCI}/infiniband/mlx5_0/ports/1"
    files = card()
    for folder, names in (("counters", rdma.COUNTERS), ("hw_counters", rdma.HW_COUNTERS)):
        for counter in names:
            files[f"{base}/{folder}/{counter}"] = answer if counter == name else b"18446744073709551615\n"
    (port,) = collect(files).ports
    assert port.counters[name] == Unknown(why, name)
    others = {key: value for key, value in port.counters.items() if key != name}
    assert set(others.values()) == {2**64 - 1}
    assert len(others) == len(rdma.COUNTERS) + len(rdma.HW_COUNTERS) - 1
    assert port.rate_gbps == 400


def test_a_counter_that_does_not_exist_is_left_out() -> None:
    """Soft-RoCE has no counters folder: absent is neither zero nor unknown."""
    (port,) = collect(card()).ports
    assert "port_rcv_errors" not in port.counters


class Watched(Tree):
    """A tree that remembers which files were opened."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        super().__init__(entries)
        self.read_paths: list[str] = []

    def read(self, path: str) -> bytes | Refusal:
        self.read_paths.append(path)
        return super().read(path)


def with_virtual_functions(count: int) -> dict[str, Entry]:
    files = card()
    for number in range(count):
        function = f"/sys/devices/pci0000:17/0000:17:01.0/0000:{0x40 + number // 256:02x}:{number // 8 % 32:02x}"
        function = f"{function}.{number % 8}"
        files |= card(f"mlx5_{number + 1}", function) | {f"{function}/physfn": "../0000:18:00.0"}
    return files


def test_virtual_functions_beside_their_physical_function_are_not_opened() -> None:
    """A thousand virtual functions are told by their links: nothing of theirs is read, nothing is reported."""
    tree = Watched(with_virtual_functions(1000))
    facts = rdma.collect(tree, now())
    assert [port.device for port in facts.ports] == ["mlx5_0"]
    assert all("mlx5_0" in path or "0000:18:00.0" in path for path in tree.read_paths)


def test_a_scalable_function_shares_the_port_of_its_function() -> None:
    """mlx5_core.sf.2 below a function is no second port."""
    files = card()
    files["/sys/class/infiniband/mlx5_9"] = f"../..{PCI[4:]}/mlx5_core.sf.2/infiniband/mlx5_9"
    assert [port.device for port in collect(files).ports] == ["mlx5_0"]


def test_a_guest_that_sees_only_the_virtual_function_reads_it() -> None:
    """Without a visible physical function, the virtual one serves as the device."""
    assert len(collect(card(driver="mlx5_core", device={"hca_type": "MT4124"})).ports) == 1


def test_excluded_devices_are_not_opened() -> None:
    """Exclusions by name, by port and by address are applied before anything is read."""
    files = card() | card("mlx5_1", "/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0", ports=(1, 2))
    for excluded, left in (
        ("mlx5_0", ["mlx5_1/1", "mlx5_1/2"]),
        ("0000:19:00.0", ["mlx5_0/1"]),
        ("mlx5_1/2", ["mlx5_0/1", "mlx5_1/1"]),
    ):
        tree = Watched(files)
        facts = rdma.collect(tree, Context(time.monotonic() + 10, frozenset({excluded})))
        assert [f"{port.device}/{port.port}" for port in facts.ports] == left
        if "/" not in excluded:
            assert not any(excluded in path for path in tree.read_paths)


def test_a_port_that_waits_for_its_subnet_manager_tells_whose() -> None:
    """The manager's LID shows whether one was ever there; a port that is active is not asked."""
    (port,) = collect(card(port={"state": "2: INIT", "sm_lid": "0x1"})).ports
    assert (port.state, port.sm_lid) == ("INIT", 1)
    (port,) = collect(card(port={"state": "2: INIT", "sm_lid": "lid"})).ports
    assert port.sm_lid == Unknown(MALFORMED, "sm_lid")
    assert collect(card()).ports[0].sm_lid is None


def test_a_roce_port_is_in_no_subnet() -> None:
    """Its GIDs are addresses of an Ethernet network."""
    facts = collect(card(port={"link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)"}))
    (port,) = facts.ports
    assert (port.transport, port.subnet_prefix) == ("roce", None)
    assert facts.source.status == "ok"


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        ("InfiniBand", {*rdma.COUNTERS[:6]}),
        ("Ethernet", {*rdma.COUNTERS[:6], "rx_icrc_encapsulated"}),
    ],
)
def test_one_look_reads_the_counters_that_a_rule_looks_at(layer: str, names: set[str]) -> None:
    """Each counter is a firmware command: those that only metrics show are not asked for where nobody keeps any."""
    files = card(port={"link_layer": layer})
    for folder, every in (("counters", rdma.COUNTERS), ("hw_counters", rdma.HW_COUNTERS)):
        files |= {f"{PCI}/infiniband/mlx5_0/ports/1/{folder}/{name}": b"0\n" for name in every}
    recording = Recording(Tree(files))
    (port,) = rdma.collect(recording, now()._replace(counters=False)).ports
    assert set(port.counters) == names == {path.rpartition("/")[2] for path in recording.answers if "counters" in path}
    assert names >= {*CEILINGS, LINK_DOWNED} - {"rx_icrc_encapsulated"}
    assert set(collect(files).ports[0].counters) == {*rdma.COUNTERS, *rdma.HW_COUNTERS}


def test_metrics_show_every_counter(tmp_path: Path) -> None:
    """Whoever asks for metrics gets the counters that no rule looks at too."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, text in (("state", "4: ACTIVE"), ("counters/port_xmit_discards", "7"), ("counters/symbol_error", "0")):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(f"{text}\n")
    line = 'gputopo_port_errors_total{device="mlx5_0",kind="port_xmit_discards",port="1"} 7.0'
    metrics = tmp_path / "gpu-topo.prom"
    for command in (["inspect", "--format", "prometheus"], ["textfile"]):
        main([*command, "--root", str(tmp_path), "--output", str(metrics)])
        assert line in metrics.read_text().splitlines()
        metrics.unlink()


def test_two_ports_of_one_function_have_their_own_interfaces() -> None:
    """dev_port tells the interfaces of a two-port function apart where the GID table does not."""
    files = card(ports=(1, 2))
    files |= {f"{PCI}/net/ib0/dev_port": b"0\n", f"{PCI}/net/ib1/dev_port": b"1\n"}
    assert [port.netdev for port in collect(files).ports] == ["ib0", "ib1"]


def test_representors_are_not_the_port() -> None:
    """In switchdev mode a function has many interfaces; the GID table names the port's own."""
    files = card(port={"link_layer": "Ethernet", "gid_attrs/ndevs/0": "enp24s0f0np0"})
    for name in ("enp24s0f0np0", "enp24s0f0npf0vf0", "enp24s0f0npf0vf1"):
        files[f"{PCI}/net/{name}/mtu"] = b"1500\n"
    assert collect(files).ports[0].netdev == "enp24s0f0np0"


def test_a_bond_is_named() -> None:
    """The interface's master, or a bond device's own name where the interface is not recorded."""
    files = card("mlx5_bond_0", port={"link_layer": "Ethernet"})
    assert collect(files).ports[0].bond == "mlx5_bond_0"
    files |= {f"{PCI}/net/eth0/mtu": b"9000\n", f"{PCI}/net/eth0/master": "../../../virtual/net/bond1"}
    assert collect(files).ports[0].bond == "bond1"


@pytest.mark.parametrize(
    ("name", "driver", "node", "layer", "transport"),
    [
        ("rocep24s0", "mlx5_core", "1: CA", "Ethernet", "roce"),
        ("bnxt_re0", "bnxt_en", "1: CA", "Ethernet", "roce"),
        ("rocep1s0", "ice", "1: CA", "Ethernet", "roce"),
        ("iwp1s0", "ice", "4: RNIC", "Ethernet", "iwarp"),
        ("rdmap0s6", "efa", "7: unspecified", "Unknown", "efa"),
        ("mana_0", "mana", "1: CA", "Ethernet", "roce"),
        ("hfi1_0", "hfi1", "1: CA", "InfiniBand", "infiniband"),
        ("i40iw0", "i40e", "4: RNIC", "InfiniBand", "iwarp"),
    ],
)
def test_the_transport_of_other_makers(name: str, driver: str, node: str, layer: str, transport: str) -> None:
    """The class holds more than InfiniBand: each port says what it speaks."""
    facts = collect(card(name, driver=driver, device={"node_type": node, "hca_type": ""}, port={"link_layer": layer}))
    assert facts.ports[0].transport == transport
    assert facts.source.status == "ok"


def test_soft_roce_is_software_without_a_function() -> None:
    """rxe has no PCI function; its parent attribute names the interface that it stands on."""
    base = "/sys/devices/virtual/infiniband/rxe0"
    files: dict[str, Entry] = {
        "/sys/class/infiniband/rxe0": f"../..{base[4:]}",
        f"{base}/parent": b"eth0\n",
        f"{base}/fw_ver": b"\n",
        f"{base}/node_type": b"1: CA\n",
        f"{base}/ports/1/state": b"1: DOWN\n",
        f"{base}/ports/1/phys_state": b"2: Polling\n",
        f"{base}/ports/1/rate": b"100 Gb/sec (4X EDR)\n",
        f"{base}/ports/1/link_layer": b"Ethernet\n",
    }
    (port,) = collect(files).ports
    assert (port.software, port.transport, port.address, port.netdev) == (True, "software", None, "eth0")
    assert (port.state, port.firmware) == ("DOWN", None)


def manager(mark: bytes) -> dict[str, Entry]:
    files = card(device={"board_id": "NVD0000000054"})
    files[f"{PCI}/vpd"] = b"\x82\x0b\x00ConnectX-7 " + mark
    files["/sys/bus/pci/drivers/nvidia/0000:1b:00.0"] = "../../../../devices/x"
    return files


def test_product_data_tells_an_nvswitch_manager() -> None:
    """SMDL=SW_MNG marks the ConnectX-7 bridges of HGX B200 boards; other boards of the same chip are NICs."""
    assert collect(manager(b"MODL=CX7:SMDL=SW_MNG")).ports[0].management
    assert not collect(manager(b"MODL=CX75310AAS")).ports[0].management


def test_product_data_is_left_alone_where_nvswitches_are_on_pci() -> None:
    """Reading it is slow, so machines that cannot have such managers are not asked."""
    files = manager(b"SMDL=SW_MNG")
    files["/sys/bus/pci/drivers/nvidia-nvswitch/0000:07:00.0"] = "../../../../devices/y"
    assert not collect(files).ports[0].management


def test_refused_product_data_is_counted() -> None:
    """Without root the question stays open, and the report can say so."""
    facts = collect(manager(b"") | {f"{PCI}/vpd": Refusal("denied", "EACCES")})
    assert facts.unread == {"denied: vpd": 1}


def test_a_late_scan_says_so() -> None:
    """Past the deadline nothing more is read, and the status is timeout."""
    assert collect(card(), Context(time.monotonic() - 1)).source.status == "timeout"


def test_a_replay_gives_the_same_facts() -> None:
    """What was recorded of a scan replays to the same ports without a path that nobody recorded."""
    recording = Recording(Tree(card() | {f"{PCI}/net/ib0/dev_port": b"0\n"}))
    first = rdma.collect(recording, now())
    again = rdma.collect(Replay(recording.answers, {}), now())
    assert again.ports == first.ports


class Vanishing(Tree):
    """A tree whose device goes between listing and reading."""

    def dir(self, path: str) -> TreeDir | Refusal:
        return Refusal("absent", "ENOENT") if path.endswith("/mlx5_0") else super().dir(path)


def test_a_device_that_goes_while_it_is_read_costs_only_itself() -> None:
    """Hot-unplug between listing and reading: the others still come."""
    files = card() | card("mlx5_1", "/sys/devices/pci0000:17/0000:17:02.0/0000:19:00.0")
    facts = rdma.collect(Vanishing(files), now())
    assert [port.device for port in facts.ports] == ["mlx5_1"]


def test_two_hundred_ports_take_linear_work() -> None:
    """Files opened per port do not depend on how many ports there are."""

    def opened(count: int) -> int:
        files: dict[str, Entry] = {}
        for number in range(count):
            files |= card(f"mlx5_{number}", f"/sys/devices/pci0000:17/0000:17:01.0/0000:{number:02x}:00.0")
        tree = Watched(files)
        assert len(rdma.collect(tree, now()).ports) == count
        return len(tree.read_paths)

    assert opened(200) == 10 * opened(20)


@pytest.mark.parametrize(
    ("recording", "ports"),
    [("f01-node-exporter-fixture", 3), ("t12-h100-ib-class-400g", 9), ("t13-dgx-a100-partial-healthy", 8)],
)
def test_recorded_machines(corpus: Path, tmp_path: Path, recording: str, ports: int) -> None:
    """Every port of real trees, found on disk and in memory alike."""
    with tarfile.open(corpus / recording / "tree.tar.gz") as archive:
        archive.extractall(tmp_path, filter="tar")
    facts = rdma.collect(Live(str(tmp_path)), now())
    assert len(facts.ports) == ports
    for port in facts.ports:
        number = f"{tmp_path}/sys/class/infiniband/{port.device}/ports/{port.port}"
        assert str(port.state) in Path(f"{number}/state").read_text()
        assert Path(f"{number}/rate").read_text().startswith(f"{port.rate_gbps:g} Gb")


def test_a_real_sysfs_error_is_a_reading(tmp_path: Path) -> None:
    """A directory where a file should be answers EISDIR on read: unknown, and nothing raises."""
    base = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (base / "counters/link_downed").mkdir(parents=True)
    (base / "state").write_text("4: ACTIVE\n")
    (port,) = rdma.collect(Live(str(tmp_path)), now()).ports
    assert port.counters["link_downed"] == Unknown(FAILED, "link_downed")


def test_devices_come_in_natural_order() -> None:
    """mlx5_2 before mlx5_10, as people number them."""
    files: dict[str, Entry] = {}
    for number in (10, 2, 1):
        files |= card(f"mlx5_{number}", f"/sys/devices/pci0000:17/0000:17:01.0/0000:{number:02x}:00.0")
    assert [port.device for port in collect(files).ports] == ["mlx5_1", "mlx5_2", "mlx5_10"]
