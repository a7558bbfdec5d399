"""nvidia-smi -q -x: recordings of thirteen drivers, broken and hostile documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_xml import READER, read
from gpu_topo.model.gpu import DriverGpu, Fabric

RECORDINGS = "n*/nvidia-smi-qx.xml"


def documents(corpus: Path) -> list[Path]:
    found = sorted(corpus.glob(RECORDINGS))
    assert len(found) > 10
    return found


def parsed(path: Path) -> tuple[str, tuple[DriverGpu, ...]]:
    text = path.read_text(encoding="utf-8")
    (sample,) = read([clean(line) for line in text.splitlines()], path.parent.name)
    assert sample.source.status == "ok"
    return text, sample.gpus


def values(text: str, tag: str) -> list[str]:
    """Every value of a tag, found without the reader."""
    return [value.strip() for value in re.findall(rf"<{tag}>([^<]*)</{tag}>", text)]


def test_recordings(corpus: Path) -> None:
    """Models, P-states, UUIDs, widths and generations are those that a search of the document finds."""
    for path in documents(corpus):
        text, gpus = parsed(path)
        gts = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0, "6": 64.0}
        assert [gpu.model for gpu in gpus] == values(text, "product_name")
        assert [f"P{gpu.pstate}" for gpu in gpus] == values(text, "performance_state")
        assert [gpu.link.width for gpu in gpus if gpu.link] == [
            int(width.rstrip("x")) for width in values(text, "current_link_width")
        ]
        assert [gpu.link.speed_gts for gpu in gpus if gpu.link] == [
            gts[gen] for gen in values(text, "current_link_gen")
        ]
        assert [gpu.replays for gpu in gpus if gpu.replays is not None] == [
            int(n) for n in values(text, "replay_counter")
        ]
        device_ids = [int(packed[-8:-4], 16) for packed in values(text, "pci_device_id")]
        assert [gpu.device_id for gpu in gpus if gpu.device_id] == device_ids
        assert all(not gpu.lost and not gpu.unknowns for gpu in gpus)


def test_expectations(corpus: Path) -> None:
    """What the corpus expects of each GPU holds of the facts."""
    checked = 0
    for path in documents(corpus):
        _, gpus = parsed(path)
        by_key = {gpu.address: gpu for gpu in gpus} | {str(gpu.ordinal): gpu for gpu in gpus}
        for case in json.loads((corpus / "expect" / f"{path.parent.name}.json").read_text(encoding="utf-8")):
            for key, wanted in case.get("gpus", {}).items():
                gpu = by_key[key]
                fabric = gpu.fabric if isinstance(gpu.fabric, Fabric) else Fabric()
                found = {
                    "model": gpu.model,
                    "architecture": gpu.architecture,
                    "pstate": f"P{gpu.pstate}",
                    "fabric.state": fabric.state,
                    "fabric.status": fabric.status,
                    "fabric.clique": fabric.clique,
                    "partitions": gpu.partitions,
                }
                for name in wanted.keys() & found.keys():
                    options = wanted[name] if isinstance(wanted[name], list) else [wanted[name]]
                    assert found[name] in options or options == ["*"], (path, key, name)
                    checked += 1
    assert checked > 10


def test_gb200(corpus: Path) -> None:
    """A Grace Blackwell tray: coherent link, a GPU that could do Gen6, fabric with its health."""
    _, gpus = parsed(corpus / "n01-gb200" / "nvidia-smi-qx.xml")
    assert len(gpus) == 4
    for gpu in gpus:
        assert gpu.c2c is True
        assert gpu.gpu_max_speed_gts == 64.0
        assert gpu.link
        assert gpu.link.max_speed_gts == 32.0
        assert isinstance(gpu.fabric, Fabric)
        assert gpu.fabric.clique == 2
        assert gpu.fabric.health["summary"] == "Healthy"
        assert gpu.fabric.health["route_unhealthy"] == "False"
        assert "incorrect_configuration" not in gpu.fabric.health


def test_mig(corpus: Path) -> None:
    """MIG devices are counted as the document counts them."""
    for name in ("n02-telegraf-a100-sxm4-v12", "n03-netdata-a100-sxm4-mig"):
        text, (gpu,) = parsed(corpus / name / "nvidia-smi-qx.xml")
        assert gpu.mig is True
        assert gpu.partitions == text.count("<mig_device>")
        assert gpu.utilization is None


def test_document_type_is_accepted() -> None:
    """The document type that nvidia-smi prints is neither refused nor followed."""
    text = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    (sample,) = read((text + '<gpu id="00000000:01:00.0"/>\n</nvidia_smi_log>').splitlines(), "test")
    assert [gpu.address for gpu in sample.gpus] == ["0000:01:00.0"]
    assert READER.begins("<nvidia_smi_log>")


def test_entities_are_refused() -> None:
    """A document that defines entities is refused and read no further."""
    text = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    (sample,) = read([text], "test")
    assert sample.source.status == "failed"
    assert sample.gpus == ()


def test_cut_off(corpus: Path) -> None:
    """Of a document that was cut off the complete GPUs are there, and the source is partial."""
    lines = (corpus / "n01-h100" / "nvidia-smi-qx.xml").read_text(encoding="utf-8").splitlines()
    (sample,) = read(lines[: len(lines) // 2], "test")
    assert 0 < len(sample.gpus) < 8
    assert sample.source.status == "partial"
    assert sample.driver
    assert not sample.driver.lists_all
    assert all(gpu.ordinal is None for gpu in sample.gpus)


def test_several_documents(corpus: Path) -> None:
    """Two documents are two samples, oldest first."""
    lines = (corpus / "n01-t4" / "nvidia-smi-qx.xml").read_text(encoding="utf-8").splitlines()
    first, second = read([*lines, "", *lines], "test")
    assert first == second


def test_process_names() -> None:
    """nvidia-smi prints process names unescaped; an ampersand does not break the document."""
    process = "<processes><process_info><process_name>a&b</process_name></process_info></processes>"
    text = f'<nvidia_smi_log><gpu id="00000000:01:00.0"><performance_state>P0</performance_state>{process}</gpu>'
    (sample,) = read([text + "</nvidia_smi_log>"], "test")
    assert sample.source.status == "ok"
    assert sample.gpus[0].pstate == 0


def test_lost() -> None:
    """A GPU that is lost while it is asked."""
    text = '<nvidia_smi_log><gpu id="00000000:01:00.0"><performance_state>GPU is lost</performance_state></gpu>'
    (sample,) = read([text + "</nvidia_smi_log>"], "test")
    assert sample.gpus[0].lost
    assert sample.source.detail == "1 of 1 GPUs lost"


@pytest.mark.parametrize("text", ["<nvidia_smi_log>" * 50_000, "<nvidia_smi_log>" + "<a>" * 200_000])
def test_nested_deep(text: str) -> None:
    """A document nested without end is given up."""
    (sample,) = read([text], "test")
    assert sample.source.status == "failed"


@given(st.text(max_size=300), st.integers(0, 300))
def test_any_text(noise: str, at: int) -> None:
    """Noise in a document makes a broken document, never an exception."""
    text = '<nvidia_smi_log><gpu id="00000000:01:00.0"><pci><pci_bus_id>N/A</pci_bus_id></pci></gpu></nvidia_smi_log>'
    read((text[:at] + noise + text[at:]).splitlines(), "test")
    read(noise.splitlines(), "test")
    READER.begins(noise)
