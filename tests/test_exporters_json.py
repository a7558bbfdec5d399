"""exporters/json.py: the JSON report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_topo import exporters
from gpu_topo.exporters import json as exporter
from gpu_topo.model.finding import CAUSE_LOAD, Acceptance, Report, Unassessed
from gpu_topo.model.gpu import AcceleratorLink, NvLink
from gpu_topo.model.host import Port
from gpu_topo.model.node import BRIDGE, GPU, NIC, OTHER, Gpu, Node, Part
from gpu_topo.model.reading import DENIED, Unknown
from tests import build
from tests.test_nics import forgotten

UNKNOWN = Unknown(DENIED, "somewhere")


def parsed(report: Report) -> dict[str, Any]:
    """The rendered report, held against the shipped schema."""
    folder = Path(exporters.__file__).parent
    schema = json.loads((folder / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document: dict[str, Any] = json.loads(exporter.render(report))
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def test_whole_node_fits_the_schema() -> None:
    """A healthy eight-GPU node gives every list of the interface, and they fit the schema."""
    document = parsed(build.report(build.eight_gpus()))
    kinds = [device["kind"] for device in document["devices"]]
    assert (kinds.count(GPU), kinds.count(NIC), kinds.count("storage"), kinds.count("nvswitch")) == (8, 8, 4, 4)
    assert len(document["gpus"]) == 8
    assert len(document["ports"]) == 8
    assert len(document["switches"]) == 4


def test_a_nearest_adapter_that_is_not_known_is_null() -> None:
    """A list would say that there is none, or a farther one: the schema allows null."""
    node = build.eight_gpus()
    node = forgotten(node, *[a for a, d in node.devices.items() if d.kind in (GPU, NIC)])
    rows = parsed(build.report(node))["placement"]
    assert {str(row["nics"]) for row in rows} == {"None"}
    assert all(parsed(build.report(build.eight_gpus()))["placement"][0][what] for what in ("nics", "storage"))


@pytest.mark.parametrize(("part", "total"), [(build.H100, None), (Part("L40S", fabric="none"), 0), (None, 0)])
def test_a_list_without_nvlinks(part: Part | None, total: int | None) -> None:
    """Of a GPU that has NVLinks, "all links are inactive" does not tell how many there are: none is up of a number that
    is not known. Of one that has none they are none."""
    gpu = Gpu("0000:01:00.0", nvlinks=(), part=part)
    (row,) = parsed(build.report(build.node([build.device("0000:01:00.0", GPU)], gpus=(gpu,))))["gpus"]
    assert (row["nvlink"]["links_total"], row["nvlink"]["links_active"], row["nvlink"]["gbs"]) == (total, 0, 0)


def test_peer_to_peer_of_a_pair() -> None:
    """A path tells what the driver says of peer-to-peer, whichever GPU comes first, and null where it says nothing."""
    node = build.eight_gpus()
    a, b = node.gpus[0].address, node.gpus[1].address
    rows = parsed(build.report(node._replace(p2p={(a, b): {"read": "OK", "nvlink": "NS"}})))["paths"]
    assert {frozenset((row["a"], row["b"])) for row in rows if row["p2p"]} == {frozenset((a, b))}
    assert [row["p2p"] for row in rows if row["p2p"]] == [{"read": "OK", "nvlink": "NS"}]
    assert all(row["p2p"] is None for row in parsed(build.report(node))["paths"])


def test_nameless_device_fits_the_schema() -> None:
    """What a recording does not name, and no list does, has null for a name."""
    device = build.device("0000:01:00.0", GPU)._replace(name="")
    document = parsed(build.report(Node(devices={device.address: device})))
    assert [row["name"] for row in document["devices"]] == [None]


def test_empty_node_fits_the_schema() -> None:
    """A node of which nothing is known is a report of nulls and empty lists."""
    document = parsed(build.report(Node(), verdict="unknown"))
    assert document["devices"] == document["gpus"] == document["ports"] == []
    assert document["node"]["hostname"] is None


def test_link_figures() -> None:
    """Gen4 x16 is 31.508 GB/s a direction, rounded to three decimals; expected stands beside it."""
    node = build.eight_gpus(gpu_links={2: build.link(16.0, 16)})
    device = next(d for d in parsed(build.report(node))["devices"] if d["address"] == node.gpus[2].address)
    assert device["link"]["gbs"] == 31.508
    assert device["link"]["expected_gbs"] == 63.015
    assert device["path"][-1] == device["address"]
    assert device["parent"] == device["path"][-2]
    assert (device["vendor_id"], device["device_id"]) == ("10de", "2330")


def test_unknown_never_leaks() -> None:
    """Whatever is Unknown is null in the report, in evidence too."""
    gpu = Gpu(
        "0000:01:00.0",
        uuid=UNKNOWN,
        model=UNKNOWN,
        pstate=UNKNOWN,
        utilization=UNKNOWN,
        mig=UNKNOWN,
        nvlinks=UNKNOWN,
        fabric=UNKNOWN,
        replays=UNKNOWN,
    )
    link = build.link()._replace(speed_gts=UNKNOWN, width=UNKNOWN, port_max_width=UNKNOWN, gbs=None)
    device = build.device("0000:01:00.0", GPU, link=link, driver=UNKNOWN, numa_node=UNKNOWN)
    port = Port("mlx5_0", 1, UNKNOWN, UNKNOWN, UNKNOWN, state=UNKNOWN, rate_gbps=UNKNOWN, lanes=UNKNOWN, speed=UNKNOWN)
    xgmi = AcceleratorLink("xGMI", "0000:01:00.0", "0000:02:00.0", UNKNOWN, gbs=UNKNOWN)
    finding = build.finding(
        observed={"width": 8, "speed": UNKNOWN, "bits": frozenset({"b", "a"}), "list": (1.23456, UNKNOWN)}
    )
    node = build.node([device], gpus=(gpu,), ports=(port,), accelerator_links=(xgmi,))
    document = parsed(build.report(node, [finding]))
    assert DENIED not in json.dumps(document)
    assert document["devices"][0]["link"]["width"] is None
    assert document["findings"][0]["observed"] == {"width": 8, "speed": None, "bits": ["a", "b"], "list": [1.235, None]}
    assert document["findings"][0]["accepted"] is None


def test_accepted_and_unassessed() -> None:
    """An accepted finding says who and why; what could not be judged carries its cause."""
    finding = build.finding(accepted=Acceptance("ops", "riser", "2027-01-01"))
    unassessed = Unassessed("pcie-speed-degraded", "0000:01:00.0", "no load known", CAUSE_LOAD)
    document = parsed(build.report(build.eight_gpus(), [finding], [unassessed]))
    assert document["verdict"] == "ok"
    assert document["findings"][0]["accepted"] == {"by": "ops", "reason": "riser", "until": "2027-01-01"}
    assert document["unassessed"] == [
        {"code": "pcie-speed-degraded", "subject": "0000:01:00.0", "reason": "no load known", "cause": CAUSE_LOAD}
    ]


def test_only_what_stands_above_an_endpoint() -> None:
    """Bridges without an endpoint below and other functions come with --all only."""
    devices = [
        build.device("0000:00:01.0", BRIDGE),
        build.device("0000:00:02.0", BRIDGE),
        build.device("0000:01:00.0", GPU, above=("0000:00:01.0",)),
        build.device("0000:00:1f.0", OTHER),
    ]
    node = build.node(devices)
    assert [d["address"] for d in parsed(build.report(node))["devices"]] == ["0000:00:01.0", "0000:01:00.0"]
    assert len(parsed(build.report(node, all_functions=True))["devices"]) == 4


def test_virtual_functions() -> None:
    """A virtual function beside its physical function adds nothing; one that is alone in a guest is listed, marked."""
    physical = build.device("0000:01:00.0", NIC)
    beside = build.device("0000:01:00.1", NIC, virtual_function=True, physical_function="0000:01:00.0")
    alone = build.device("0000:02:00.1", NIC, virtual_function=True)
    rows = parsed(build.report(build.node([physical, beside, alone])))["devices"]
    assert [(row["address"], row["virtual_function"]) for row in rows] == [
        ("0000:01:00.0", False),
        ("0000:02:00.1", True),
    ]


@pytest.mark.parametrize(
    ("part", "version", "reported", "per_link"),
    [
        (build.H100, 4, 26.562, 25.0),
        (None, 4, 26.562, 25.0),
        (None, 2, 25.781, 25.0),
        (None, 1, None, 20.0),
        (None, 5, 53.125, 50.0),
        (None, 3, 14.0625, 14.0625),
        (Part("RTX A6000", fabric="nvlink", fabric_gbs_per_link=14.0625), 3, None, 14.0625),
        (build.H100, 4, 12.5, 12.5),
        (None, None, None, None),
        (None, None, 26.562, 25.0),
    ],
)
def test_nvlink_bandwidth_is_nominal(
    part: Part | None, version: int | None, reported: float | None, per_link: float | None
) -> None:
    """Line rates count as the nominal rate of their version; a slower board counts as it reports."""
    links = tuple(NvLink(number, "active", version, gbs=reported) for number in range(4))
    links += (NvLink(4, "inactive", version),)
    gpu = Gpu("0000:01:00.0", nvlinks=links, part=part)
    nvlink = parsed(build.report(build.node([build.device("0000:01:00.0", GPU)], gpus=(gpu,))))["gpus"][0]["nvlink"]
    assert (nvlink["links_total"], nvlink["links_active"]) == (5, 4)
    assert nvlink["gbs"] == (None if per_link is None else pytest.approx(4 * per_link))
    assert nvlink["links"][4] == {"index": 4, "state": "inactive", "remote_kind": "unknown", "remote": None}


def test_one_row_a_line() -> None:
    """Each row of a list stands on a line of its own, and control characters are escaped."""
    node = build.node([build.device("0000:01:00.0", GPU, "evil\x1b[31m\nname")])
    text = exporter.render(build.report(node))
    assert sum(line.startswith('  {"address": "0000:01:00.0"') for line in text.splitlines()) == 1
    assert "\x1b" not in text


def test_in_pieces_it_is_the_same() -> None:
    """Written piece by piece, however many rows a list has: none, one, a piece full, one more."""
    for count in (0, 1, 64, 65, 200):
        notes = [
            Unassessed("acs-blocks-p2p", f"0000:{bus:02x}:00.0", "not recorded", CAUSE_LOAD) for bus in range(count)
        ]
        report = build.report(build.node())._replace(unassessed=tuple(notes))
        text = "".join(exporter.pieces(report))
        assert text == exporter.render(report)
        assert [row["subject"] for row in json.loads(text)["unassessed"]] == [note.subject for note in notes]
        assert len(text.splitlines()) == len(exporter.render(report._replace(unassessed=())).splitlines()) + (
            count + 1 if count else 0
        )
