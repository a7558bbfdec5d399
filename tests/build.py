"""Small builders of facts and nodes for tests. Additive: everyone's tests use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_topo.model.address import sort_key
from gpu_topo.model.facts import OK, SourceStatus
from gpu_topo.model.finding import LINK_PARTNERS, Acceptance, Finding, Report, Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, Fabric, NvLink
from gpu_topo.model.host import BARE_METAL, BlockDevice, NumaNode, Platform, Port
from gpu_topo.model.node import BRIDGE, GPU, NIC, NVSWITCH, STORAGE, Device, Gpu, Link, Node, Part, Switch
from gpu_topo.model.pci import DOWNSTREAM_PORT, ENDPOINT, ROOT_PORT, UPSTREAM_PORT, Function
from gpu_topo.model.reading import EMPTY, NOT_RECORDED, Unknown
from gpu_topo.model.units import pcie_gbs

H100 = Part(
    "NVIDIA H100 SXM5 80GB", "Hopper", "SXM5", "datacenter", 32.0, 16, "verified", "nvlink", 18, 25.0, "nvswitch"
)


def link(
    speed_gts: float | None = 32.0,
    width: int | None = 16,
    *,
    port: str | None = None,
    max_speed_gts: float | None = 32.0,
    max_width: int | None = 16,
) -> Link:
    """A link whose two ends can do the same; a lower speed or width than the maximum is a degraded link."""
    return Link(
        port,
        speed_gts,
        width,
        max_speed_gts,
        max_width,
        max_speed_gts,
        max_width,
        max_speed_gts,
        max_width,
        pcie_gbs(speed_gts, width),
        pcie_gbs(max_speed_gts, max_width),
    )


def device(
    address: str,
    kind: str,
    name: str = "",
    *,
    above: Iterable[str] = (),
    link: Link | None = None,
    switch: str | None = None,
    part: Part | None = None,
    bottleneck: str | None = None,
    integrated: bool = False,
    **function: Any,
) -> Device:
    """A device below the bridges `above` (root first); further keywords go to its Function."""
    path = (*above, address)
    # A recording that has names in place of addresses (topo -m alone) does not say what hangs where.
    nowhere = None if ":" in address else Unknown(NOT_RECORDED, "the bridge above")
    parent = path[-2] if len(path) > 1 else nowhere
    port_type = function.pop("port_type", ENDPOINT if kind != BRIDGE else ROOT_PORT)
    details = Function(address, parent=parent, bridge=kind == BRIDGE, port_type=port_type, **function)
    return Device(address, kind, name or kind, details, part, link, path, switch, bottleneck, integrated)


def nvlinks(active: int, total: int = 18, *, remote_kind: str = "nvswitch", version: int = 4) -> tuple[NvLink, ...]:
    """NVLinks of which the first `active` are up, at H100's line rate."""
    return tuple(
        NvLink(number, ACTIVE if number < active else INACTIVE, version, remote_kind, gbs=26.562)
        for number in range(total)
    )


def node(devices: Iterable[Device] = (), **fields: Any) -> Node:
    """A Node of these devices in address order; further keywords are its other fields."""
    ordered = sorted(devices, key=lambda device: sort_key(device.address))
    fields.setdefault("platform", Platform(kind=BARE_METAL, numa_count=1))
    fields.setdefault("sources", (SourceStatus("pcie", OK, "", 0.005),))
    return Node(devices={device.address: device for device in ordered}, **fields)


def eight_gpus(
    *,
    first_bus: int = 0x10,
    gpu_links: Mapping[int, Link] = EMPTY,
    nvlinks_active: Mapping[int, int] = EMPTY,
    without_gpu: int | None = None,
    nic_rate_gbps: float = 400.0,
    serial: str = "0",
) -> Node:
    """An HGX-class node: 2 sockets, 4 PCIe switches with 2 GPUs, 2 NICs and an NVMe each, 4 NVSwitches, 18 links a GPU.

    gpu_links and nvlinks_active degrade the GPU of that index; first_bus and serial change what must not matter.
    """
    devices: list[Device] = []
    gpus: list[Gpu] = []
    ports: list[Port] = []
    blocks: list[BlockDevice] = []
    switches: dict[str, Switch] = {}
    for group in range(4):
        numa, bus = group // 2, first_bus + group * 0x20
        host = f"pci0000:{bus:02x}"
        root, top = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
        place: dict[str, Any] = {"numa_node": numa, "host_bridge": host}
        uplink = link(port=root)
        devices.append(device(root, BRIDGE, "Root Port", link=link(), **place))
        devices.append(
            device(top, BRIDGE, "PEX890xx", above=(root,), link=uplink, switch=top, port_type=UPSTREAM_PORT, **place)
        )
        kinds = (GPU, GPU, NIC, NIC, STORAGE)
        downs, ends = [], []
        for position, kind in enumerate(kinds):
            down, end = f"0000:{bus + 2:02x}:{position:02x}.0", f"0000:{bus + 3 + position:02x}:00.0"
            index = group * 2 + position % 2
            if kind == GPU and index == without_gpu:
                continue
            own = link(port=down)
            if kind == GPU and index in gpu_links:
                own = gpu_links[index]._replace(port=down)
            if kind == STORAGE:
                own = link(16.0, 4, port=down, max_speed_gts=16.0, max_width=4)
            above = (root, top, down)
            downs.append(down)
            ends.append(end)
            devices.append(
                device(
                    down,
                    BRIDGE,
                    "PEX890xx",
                    above=above[:2],
                    link=own._replace(port=None),
                    switch=top,
                    port_type=DOWNSTREAM_PORT,
                    **place,
                )
            )
            ids = {GPU: (0x10DE, 0x2330), NIC: (0x15B3, 0x1021), STORAGE: (0x144D, 0xA80A)}[kind]
            name = {GPU: H100.name, NIC: "ConnectX-7", STORAGE: "PM9A3 NVMe SSD"}[kind]
            card = Part("ConnectX-7", port_max_gbps=400.0) if kind == NIC else None
            devices.append(
                device(
                    end,
                    kind,
                    name,
                    above=above,
                    link=own,
                    switch=top,
                    part=H100 if kind == GPU else card,
                    vendor_id=ids[0],
                    device_id=ids[1],
                    slot=f"{group}-{position}",
                    **place,
                )
            )
            if kind == GPU:
                gpus.append(
                    Gpu(
                        end,
                        index,
                        f"GPU-{serial}-{index}",
                        "NVIDIA H100 80GB HBM3",
                        "Hopper",
                        0,
                        97,
                        True,
                        mig=False,
                        nvlinks=nvlinks(nvlinks_active.get(index, 18)),
                        fabric=Fabric("Completed", "Success"),
                        replays=0,
                        listed=True,
                        part=H100,
                        vendor_id=0x10DE,
                    )
                )
            elif kind == NIC:
                ports.append(
                    Port(
                        f"mlx5_{index}",
                        1,
                        end,
                        f"ibs{index}",
                        "InfiniBand",
                        "infiniband",
                        "ACTIVE",
                        "LinkUp",
                        nic_rate_gbps,
                        4,
                        "NDR",
                        firmware="28.40.1000",
                        board_id="MT_0000000838",
                    )
                )
            else:
                blocks.append(BlockDevice(f"nvme{group}", end, "PM9A3", mounts=(f"/scratch{group}",)))
        below = 2 * 63.0 + 2 * 63.0 + 7.88
        switches[top] = Switch(top, "PEX890xx", (top, *downs), uplink, tuple(ends), below, round(below / 63.0, 2))
    for number in range(4):
        address = f"0000:{first_bus + 0x80 + number:02x}:00.0"
        devices.append(
            device(address, NVSWITCH, "NVSwitch", link=link(5.0, 2, max_speed_gts=5.0, max_width=2), numa_node=0)
        )
    platform = Platform(
        "node7",
        BARE_METAL,
        numa=(NumaNode(0, "0-55,112-167"), NumaNode(1, "56-111,168-223")),
        numa_count=2,
        kernel="6.8.0",
    )
    sources = tuple(SourceStatus(name, OK, "", 0.01) for name in ("pcie", "nvml", "rdma"))
    return node(
        devices,
        gpus=tuple(gpus),
        ports=tuple(ports),
        blocks=tuple(blocks),
        switches=switches,
        platform=platform,
        sources=sources,
    )


def finding(
    code: str = "pcie-width-degraded", severity: str = "critical", subject: str = "0000:13:00.0", **fields: Any
) -> Finding:
    """A finding with plausible words; keywords replace any of its fields."""
    words: dict[str, Any] = {
        "summary": "runs at x8, both ends can do x16",
        "basis": LINK_PARTNERS,
        "impact": "Copies between host and GPU take twice as long.",
        "remedy": ("Reseat the card.", "Try another slot."),
        "verify": f"lspci -vvs {subject} | grep LnkSta:",
    }
    return Finding(code, severity, subject, **{**words, **fields})


def report(
    node: Node, findings: Iterable[Finding] = (), unassessed: Iterable[Unassessed] = (), **fields: Any
) -> Report:
    """A report of that node at a fixed moment; the verdict is that of its worst finding that is not accepted."""
    findings = tuple(findings)
    severities = {finding.severity for finding in findings if finding.accepted is None}
    verdict = next((severity for severity in ("critical", "warning") if severity in severities), "ok")
    fields.setdefault("verdict", verdict)
    return Report(
        node,
        findings,
        tuple(unassessed),
        generated_at="2026-08-01T03:00:00Z",
        version="0.1.0",
        **fields,
    )


HOSTILE = "\x1b[31mred\x1b[0m\r\n\x07<script>alert(1)</script>\u202e`|&\"'\x9b2J]]>"


def faulty_report() -> Report:
    """A report with something in each of its parts: three faults, notes, unassessed and accepted findings."""
    faulty = eight_gpus(
        gpu_links={0: link(32.0, 8), 5: link(8.0, 16)},
        nvlinks_active={3: 17},
    )
    gpus = [gpu.address for gpu in faulty.gpus]
    findings = [
        finding(
            subject=gpus[0],
            summary="GPU0 runs at Gen5 x8, both ends can do Gen5 x16",
            observed={"width": 8, "speed_gts": 32.0},
            expected={"width": 16, "speed_gts": 32.0},
            lost_gbs=31.5,
        ),
        finding(
            "pcie-speed-degraded",
            "warning",
            gpus[5],
            summary="runs at Gen3 while busy, both ends can do Gen5",
            observed={"speed_gts": 8.0, "utilization": 97},
            expected={"speed_gts": 32.0},
            lost_gbs=47.3,
        ),
        finding(
            "nvlink-inactive",
            "critical",
            gpus[3],
            summary="17 of 18 NVLinks are active",
            observed={"links_active": 17},
            expected={"links_active": 18},
            lost_gbs=25.0,
            basis="peers",
            impact="All-reduce over 8 GPUs runs at the speed of its slowest member.",
            remedy=("Drain the node, then reset the GPU.", "Run the vendor's field diagnostics."),
            verify="nvidia-smi nvlink -s -i 3",
        ),
        *[
            finding(
                "pcie-uplink-oversubscribed",
                "info",
                switch.id,
                summary=f"2.1:1 on {switch.name}",
                impact="",
                remedy=(),
                verify="lspci -tv",
            )
            for switch in faulty.switches.values()
        ],
        finding(
            "port-down",
            "info",
            "mlx5_7/1",
            summary="the port is down",
            accepted=Acceptance("ops", "not cabled", "2027-01-01"),
        ),
    ]
    reason = "AER counters are not readable here"
    unassessed = [Unassessed("pcie-errors", address, reason, "not-recorded") for address in gpus]
    unassessed.append(Unassessed("acs-blocks-p2p", "node", "ACS is readable for root only", "denied"))
    return report(faulty, findings, unassessed)


def hostile_report() -> Report:
    """A report whose every string tries to act on a terminal, a ticket or a browser."""
    evil = device("0000:01:00.0", GPU, HOSTILE, slot=HOSTILE, driver=HOSTILE, link=link(8.0, 4))
    gpus = (Gpu(evil.address, 0, HOSTILE, HOSTILE, HOSTILE), Gpu(HOSTILE, 1))
    port = Port(HOSTILE, 1, evil.address, HOSTILE, HOSTILE, None, HOSTILE, HOSTILE, 100.0, 4, HOSTILE, firmware=HOSTILE)
    words: dict[str, Any] = {
        "summary": HOSTILE,
        "impact": HOSTILE,
        "remedy": (HOSTILE,),
        "verify": HOSTILE,
        "basis": HOSTILE,
        "observed": {HOSTILE: HOSTILE},
    }
    subjects = ("0000:01:00.0", HOSTILE, f"{HOSTILE}/1", "node")
    findings = [finding(HOSTILE, severity, s, **words) for s in subjects for severity in ("critical", "info")]
    findings.append(finding(subject=HOSTILE, accepted=Acceptance(HOSTILE, HOSTILE, HOSTILE)))
    machine = node(
        [evil],
        gpus=gpus,
        ports=(port,),
        platform=Platform(HOSTILE, kernel=HOSTILE, product=HOSTILE),
        sources=(SourceStatus(HOSTILE, "failed", HOSTILE),),
    )
    return report(machine, findings, [Unassessed(HOSTILE, HOSTILE, HOSTILE, "denied")], notes=(HOSTILE,))


def changed(machine: Node, index: int, **fields: Any) -> Node:
    """The machine with one port changed."""
    ports = list(machine.ports)
    ports[index] = ports[index]._replace(**fields)
    return machine._replace(ports=tuple(ports))


def only(machine: Node, *indexes: int) -> Node:
    """The machine with the adapters of those ports only."""
    ports = tuple(port for n, port in enumerate(machine.ports) if n in indexes)
    gone = {port.address for port in machine.ports} - {port.address for port in ports}
    return machine._replace(ports=ports, devices={a: d for a, d in machine.devices.items() if a not in gone})
