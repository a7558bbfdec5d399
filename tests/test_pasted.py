"""What people paste, as they paste it: tables that lost a tab, lists cut short, machines without addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.model.structure import PIX, SYS

Report = dict[str, Any]


class Paste:
    """Audits a pasted text and returns the JSON report; text() is the report for a person."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "paste.txt"
        self._capsys = capsys

    def report(self, pasted: str) -> Report:
        """The JSON report; empty where nothing was understood."""
        self._file.write_text(pasted, "utf-8")
        if main(["inspect", "--json", str(self._file)]) == 3:
            return {}
        found: Report = json.loads(self._capsys.readouterr().out)
        return found

    def text(self, pasted: str) -> str:
        """The report for a person, on one line."""
        self._file.write_text(pasted, "utf-8")
        main(["inspect", "--all", "--color", "never", str(self._file)])
        return " ".join(self._capsys.readouterr().out.split())


@pytest.fixture
def paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Paste:
    """An audit of pasted text."""
    return Paste(tmp_path, capsys)


def codes(report: Report, part: str = "findings") -> dict[str, list[str]]:
    """The subjects of each code among findings or unassessed."""
    found: dict[str, list[str]] = {}
    for row in report[part]:
        found.setdefault(row["code"], []).append(row["subject"])
    return found


def kind(report: Report, a: str, b: str) -> str:
    """The kind of the path between two devices."""
    (path,) = [p for p in report["paths"] if {p["a"], p["b"]} == {a, b}]
    return str(path["kind"])


def matrix(rows: dict[str, str], behind: dict[str, str], columns: str = "CPU Affinity    NUMA Affinity") -> str:
    """`nvidia-smi topo -m` with those rows."""
    lines = ["        " + "    ".join(rows) + f"    {columns}"]
    lines += [f"{name}    {cells}    {behind.get(name, '')}" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def links(gpu: int, states: list[str], model: str = "NVIDIA H100 80GB HBM3") -> str:
    """One GPU of `nvidia-smi nvlink -s`."""
    lines = [f"GPU {gpu}: {model} (UUID: GPU-00000000-0000-0000-0000-{gpu:012d})"]
    return "\n".join(lines + [f"\t Link {n}: {state}" for n, state in enumerate(states)]) + "\n"


UP = "26.562 GB/s"


def test_cells_that_ran_together(paste: Paste) -> None:
    """A tab that got lost shifts nothing: the cell behind NODENODE is that of the next device, the CPUs are CPUs."""
    rows = {
        "GPU0": " X  NV18 PIX NODENODE SYS",
        "GPU1": "NV18  X  NODE NODEPIX SYS",
        "NIC0": "PIX NODE  X  NODENODE SYS",
        "NIC1": "NODE NODE NODE  X NODE SYS",
        "NIC2": "NODE PIX NODE NODE X  SYS",
        "NIC3": "SYS SYS SYS SYSSYS  X ",
    }
    report = paste.report(matrix(rows, {"GPU0": "0-55 0", "GPU1": "0-55 0"}))
    assert kind(report, "GPU0", "NIC3") == kind(report, "GPU1", "NIC3") == SYS
    assert kind(report, "GPU1", "NIC2") == PIX
    assert [row["numa_node"] for row in report["placement"]] == [0, 0]


def test_a_matrix_without_names_or_addresses_reads_well(paste: Paste) -> None:
    """Sentences name the GPU once and no empty name, and there is no tree of devices whose place is not known."""
    rows = {
        "GPU0": "X NV18 NODE PIX",
        "GPU1": "NV18 X NODE NODE",
        "GPU2": "NODE NODE X NODE",
        "NIC0": "PIX NODE NODE X",
    }
    text = paste.text(matrix(rows | {"GPU1": "NV18 X NODE SYS"}, {f"GPU{n}": "0-55 0" for n in range(3)}))
    assert "the nearest fabric adapter of GPU1 hangs from another NUMA node" in text
    assert "GPU1 has no fabric adapter below its switch" in text
    assert "Where it sits" not in text


def test_every_path_across_on_chip_to_chip_machines(paste: Paste) -> None:
    """Drivers call each path of a Grace machine SYS: which adapter is near is unassessed, not far."""
    rows = {
        "GPU0": "X NV18 SYS SYS",
        "GPU1": "NV18 X SYS SYS",
        "NIC0": "SYS SYS X NODE",
        "NIC1": "SYS SYS NODE X",
    }
    grace = matrix(
        rows, {"GPU0": "0-71 0,3-9 2", "GPU1": "72-143 1,19-25 10"}, "CPU Affinity NUMA Affinity GPU NUMA ID"
    )
    report = paste.report(grace)
    assert "cross-numa-nic" not in codes(report)
    assert codes(report, "unassessed")["cross-numa-nic"] == ["node"]
    other = paste.report(matrix(rows, {"GPU0": "0-71 0", "GPU1": "72-143 1"}))
    assert codes(other)["cross-numa-nic"] == ["GPU0", "GPU1"]


def test_ports_of_a_matrix_are_not_checked(paste: Paste) -> None:
    """The matrix names RDMA devices and says nothing of their state: no report may count them as looked at."""
    rows = {"GPU0": "X NV18 PIX SYS", "GPU1": "NV18 X SYS PIX", "mlx5_0": "PIX SYS X SYS", "mlx5_1": "SYS PIX SYS X"}
    text = paste.text(matrix(rows, {"GPU0": "0-55 0", "GPU1": "56-112 1"}))
    assert "OK this machine: 2 GPUs and 2 NICs found" in text


@pytest.mark.parametrize("mark", ["...", "\t ...", "[...]", "<snip>", "…"])
def test_a_list_of_links_with_an_ellipsis(paste: Paste, mark: str) -> None:
    """Links that whoever pasted it left out are unknown, not down."""
    report = paste.report(links(0, [UP, UP]) + mark + "\n" + links(1, [UP] * 18))
    assert not report["findings"]
    assert codes(report, "unassessed")["nvlink-inactive"] == ["GPU0"]
    assert report["gpus"][0]["nvlink"]["links_active"] is None


def test_a_recording_that_ends_within_a_list_of_links(paste: Paste) -> None:
    """A paste that stops early tells nothing of the links behind; one that goes on or says inactive does."""
    cut = paste.report(links(0, [UP] * 18) + links(1, [UP] * 7))
    assert not cut["findings"]
    assert codes(cut, "unassessed")["nvlink-inactive"] == ["GPU1"]
    down = paste.report(links(0, [UP] * 18) + links(1, [UP] * 7 + ["<inactive>"] * 11))
    assert codes(down)["nvlink-inactive"] == ["GPU1"]
    fewer = paste.report(links(0, [UP] * 7) + links(1, [UP] * 18))
    assert codes(fewer)["nvlink-inactive"] == ["GPU0"]


def test_links_whose_state_is_not_told(paste: Paste) -> None:
    """A link that the driver says nothing of is not a link that is down."""
    remote = "Remote Device 00000000:07:00.0: Link 4"
    report = paste.report(links(0, [remote] * 18) + links(1, [remote] + ["Remote Device Not Supported"] * 17))
    assert not report["findings"]
    assert codes(report, "unassessed")["nvlink-inactive"] == ["GPU1"]


def test_nothing_to_list_reads_as_none(paste: Paste) -> None:
    """A matrix does not number the links that are down: the evidence says none, not a blank."""
    rows = {
        f"GPU{n}": " ".join("X" if n == m else "SYS" if 2 in (n, m) else "NV18" for m in range(4)) for n in range(4)
    }
    text = paste.text(matrix(rows, {}))
    assert "GPU2 has 0 of 18 NVLinks up" in text
    assert "links down none" in text


def test_one_is_no_plural(paste: Paste) -> None:
    """One GPU, one adapter; one equal GPU has one."""
    assert "1 fabric adapter for 1 GPU," in paste.text(matrix({"GPU0": "X PIX", "NIC0": "PIX X"}, {}))
    rows = {"GPU0": "X SYS PIX", "GPU1": "SYS X NODE", "NIC0": "PIX NODE X"}
    assert "1 equal GPU has one" in paste.text(matrix(rows, {}))


WIDE = {
    "GPU0": "X NV18 PIX SYS SYS",
    "GPU1": "NV18 X SYS PIX SYS",
    "NIC0": "PIX SYS X SYS SYS",
    "NIC1": "SYS PIX SYS X NODE",
    "NIC2": "SYS SYS SYS NODE X",
}


@pytest.mark.parametrize("mark", ["> ", ">", ">> ", "> > ", "| "])
def test_a_matrix_quoted_in_a_mail(paste: Paste, mark: str) -> None:
    """A quoted row is no prompt: the whole matrix is read, and so is what is quoted behind it."""
    text = matrix(WIDE, {}) + "\n" + links(0, [UP, "<inactive>"])
    report = paste.report("".join(f"{mark}{line}\n" for line in text.splitlines()))
    assert kind(report, "GPU1", "NIC1") == PIX
    assert report["gpus"][0]["nvlink"]["links_active"] == 1


def test_the_source_of_a_web_page(paste: Paste) -> None:
    """&lt;inactive&gt; is <inactive>, and the quotation marks of a word processor are plain ones."""
    report = paste.report(links(0, [UP, "&lt;inactive&gt;"]).replace(" ", "\u00a0"))
    assert [link["state"] for link in report["gpus"][0]["nvlink"]["links"]] == ["active", "inactive"]
    report = paste.report("CA \u2018mlx5_0\u2019\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n")
    assert [(port["device"], port["rate_gbps"]) for port in report["ports"]] == [("mlx5_0", 200)]
    escaped = (
        "&lt;nvidia_smi_log&gt;\n&lt;gpu id=&quot;00000000:3B:00.0&quot;&gt;\n&lt;/gpu&gt;\n&lt;/nvidia_smi_log&gt;\n"
    )
    assert [gpu["address"] for gpu in paste.report(escaped)["gpus"]] == ["0000:3b:00.0"]


@pytest.mark.parametrize("width", range(30, 60))
def test_a_matrix_wrapped_anywhere(paste: Paste, width: int) -> None:
    """Lines cut at any column give the right kinds or none, never those of another pair."""
    text = matrix(WIDE, {"GPU0": "0-55 0", "GPU1": "56-112 1"})
    whole = paste.report(text)
    right = {frozenset((path["a"], path["b"])): path["kind"] for path in whole["paths"]}
    cut = "\n".join(line[at : at + width] for line in text.splitlines() for at in range(0, len(line), width))
    for path in paste.report(cut).get("paths", []):
        assert path["kind"] in (right.get(frozenset((path["a"], path["b"]))), "UNKNOWN")


def hca(name: str, guid: str, of_system: str, state: str) -> str:
    """One device of `ibv_devinfo`."""
    return f"""hca_id: {name}
        transport:                      InfiniBand (0)
        fw_ver:                         28.39.1002
        node_guid:                      {guid}
        sys_image_guid:                 {of_system}
        vendor_id:                      0x02c9
        vendor_part_id:                 4129
        board_id:                       MT_0000000834
        phys_port_cnt:                  1
                port:   1
                        state:                  {state}
                        link_layer:             InfiniBand

"""


UP_STATE, DOWN_STATE = "PORT_ACTIVE (4)", "PORT_DOWN (1)"


def test_the_second_port_of_a_card_is_no_twin(paste: Paste) -> None:
    """A card with two functions and one cable is usual: only the same function of other cards tells."""
    a, b = "1070:fd03:001e:21a6", "1070:fd03:001e:31a6"
    a1, b1 = "1070:fd03:001e:21a7", "1070:fd03:001e:31a7"
    one = hca("mlx5_0", a, a, UP_STATE) + hca("mlx5_1", a1, a, DOWN_STATE)
    assert [row["severity"] for row in paste.report(one)["findings"]] == ["info"]
    alike = paste.report(one + hca("mlx5_2", b, b, UP_STATE) + hca("mlx5_3", b1, b, DOWN_STATE))
    assert {row["severity"] for row in alike["findings"]} == {"info"}
    odd = paste.report(one + hca("mlx5_2", b, b, UP_STATE) + hca("mlx5_3", b1, b, UP_STATE))
    assert [(row["severity"], row["subject"]) for row in odd["findings"]] == [("warning", "mlx5_1/1")]


def test_guids_that_were_replaced_make_no_card(paste: Paste) -> None:
    """Whoever writes the same GUID everywhere has still several cards: the one that is down is seen."""
    guid = "0000:0000:0000:0001"
    text = "".join(hca(f"mlx5_{n}", guid, guid, DOWN_STATE if n == 2 else UP_STATE) for n in range(4))
    assert codes(paste.report(text))["port-down"] == ["mlx5_2/1"]


def test_what_a_finding_rests_on(paste: Paste) -> None:
    """A rule that compares nothing names no twins: a GPU is lost because its driver says so."""
    text = paste.text("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n")
    assert "judged by what the driver says" in text
    dead = "17:00.0 3D controller: NVIDIA Corporation GA102GL [A40] (rev a1)\n"
    dead += "65:00.0 3D controller: NVIDIA Corporation GA102GL [A40] (rev ff)\n"
    assert "judged by what the device answers" in paste.text(dead)


@pytest.mark.parametrize("mark", ["# ", "% "])
def test_an_output_in_a_comment(paste: Paste, mark: str) -> None:
    """People keep outputs as comments of a script."""
    report = paste.report("".join(f"{mark}{line}\n" for line in matrix(WIDE, {}).splitlines()))
    assert kind(report, "GPU1", "NIC1") == PIX


def test_lines_that_a_mail_program_broke(paste: Paste) -> None:
    """At 76 columns the UUIDs and long names are on lines of their own: the GPUs are still one each."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    query = f"""==============NVSMI LOG==============
Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              :
{uuid}
    PCI
        GPU Link Info
            Link Width
                Max                       : 16x
                Current                   : 8x
"""
    listed = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID:\n{uuid})\n\t Link 0: {UP}\n\t Link 1: <inactive>\n"
    (gpu,) = paste.report(query + "\n" + listed)["gpus"]
    assert (gpu["address"], gpu["uuid"], gpu["model"]) == ("0000:3b:00.0", uuid, "NVIDIA H100 80GB HBM3")
    assert gpu["nvlink"]["links_active"] == 1
    broken = "65:00.0 3D controller: NVIDIA Corporation GA102GL [RTX 6000 Ada\nGeneration] (rev\nff)\n"
    (device,) = paste.report(broken.replace("(rev\nff", "(rev ff"))["devices"]
    assert "RTX 6000 Ada Generation" in device["name"]
    dead = paste.report("65:00.0 3D controller: NVIDIA Corporation GA102GL [A40] (rev\nff)\n")
    assert codes(dead)["pcie-device-lost"] == ["0000:65:00.0"]


@pytest.mark.parametrize("blank", ["", " "])
def test_a_query_without_its_indentation(paste: Paste, blank: str) -> None:
    """What a browser copies has one blank or none before each line: the headings still tell what belongs to what."""
    lines = """Product Name : NVIDIA H100 80GB HBM3
PCI
GPU Link Info
PCIe Generation
Max : 5
Current : 3
Device Max : 5
Link Width
Max : 16x
Current : 8x
Clocks
SM : 1980 MHz"""
    text = "GPU 00000000:3B:00.0\n" + "".join(f"{blank}{line}\n" for line in lines.split("\n"))
    (device,) = paste.report(text)["devices"]
    assert (device["link"]["width"], device["link"]["max_width"]) == (8, 16)
    assert (device["link"]["speed_gts"], device["link"]["max_speed_gts"]) == (8.0, 32.0)


def test_a_tree_without_its_indentation(paste: Paste) -> None:
    """Its blanks are what a drawing says: without them it is not understood, and never a machine without GPUs."""
    tree = """-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           +-01.0-[01]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |           +-02.0-[02]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |           +-03.0  Intel Corporation Device 0998
 |           \\-04.0  Intel Corporation Device 0998
"""
    assert [d["kind"] for d in paste.report(tree)["devices"]].count("gpu") == 2
    assert paste.report("\n".join(" ".join(line.split()) for line in tree.splitlines())) == {}
