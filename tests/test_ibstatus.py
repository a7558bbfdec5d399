"""ibstatus: the kernel's own words for every port."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.readers.ibstatus import READER, read

ONE = """Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0001
\tbase lid:\t 0x96
\tsm lid:\t\t 0x11c
\tstate:\t\t 2: INIT
\tphys state:\t 5: LinkUp
\trate:\t\t 800 Gb/sec (4X XDR)
\tlink_layer:\t InfiniBand
"""


def test_recording(corpus: Path) -> None:
    """Two renamed devices of a guest, as the corpus expects them."""
    lines = (corpus / "i03-azure-ibstatus" / "ibstatus.txt").read_text(encoding="utf-8").splitlines()
    (sample,) = read(lines, "i03")
    named = {f"{port.device}/{port.port}": port._asdict() for port in sample.ports}
    for case in json.loads((corpus / "expect" / "i03-azure-ibstatus.json").read_text(encoding="utf-8")):
        for name, wanted in case.get("ports", {}).items():
            for field, value in wanted.items():
                assert named[name][field] == value
    assert len(named) == 2


def test_fields() -> None:
    """Numbers are hexadecimal, states lose their number, the subnet's half of the GID is kept."""
    (sample,) = read(ONE.splitlines(), "test")
    (port,) = sample.ports
    assert (port.state, port.phys_state) == ("INIT", "LinkUp")
    assert port.sm_lid == 0x11C
    assert (port.rate_gbps, port.lanes, port.speed) == (800, 4, "XDR")
    assert port.subnet_prefix == "fe80:0000:0000:0000"
    assert READER.begins(ONE.splitlines()[0])


@given(st.text(alphabet="Infiniband device 'a' port 1 status:\n\trate: 0xXDR()", max_size=300))
def test_any_text(text: str) -> None:
    """No text makes the reader raise."""
    read((ONE + text).splitlines(), "test")
    read(text.splitlines(), "test")
    READER.begins(text)
