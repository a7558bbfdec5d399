"""Configuration space: against lspci itself on every recorded dump, and against bytes that nobody meant well."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors import config_space
from gpu_topo.collectors.config_space import ConfigSpace, decode
from gpu_topo.collectors.registers import Layouts, registers, registers_in
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import DENIED, LOST, NO_DATA, NOT_RECORDED, Unknown, known

DEVICE = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ")
ROW = re.compile(r"[0-9a-f]{2,3}: [0-9a-f]{2} ")
TITLES = {
    "Endpoint": "endpoint",
    "Legacy Endpoint": "legacy-endpoint",
    "Root Port": "root-port",
    "Upstream Port": "upstream-port",
    "Downstream Port": "downstream-port",
    "PCI-Express to PCI/PCI-X Bridge": "pcie-to-pci-bridge",
    "PCI/PCI-X to PCI-Express Bridge": "pci-to-pcie-bridge",
    "Root Complex Integrated Endpoint": "integrated-endpoint",
    "Root Complex Event Collector": "event-collector",
}


def dumps(corpus: Path) -> Iterator[tuple[Path, str]]:
    """Every recording with hex in it, and its first lines and rows in the form that `lspci -F` takes."""
    for path in sorted([*corpus.glob("m*/lspci*"), *corpus.glob("d*/*.lspci")]):
        lines = path.read_text(errors="replace").splitlines()
        if any(ROW.match(line) for line in lines):
            kept = (line[:60] for line in lines if DEVICE.match(line) or ROW.match(line) or not line)
            yield path, "\n".join(kept) + "\n"


def bytes_of(dump: str) -> dict[str, bytes]:
    """Address as the dump has it -> its bytes."""
    found: dict[str, bytearray] = {}
    current = bytearray()
    for line in dump.splitlines():
        if DEVICE.match(line):
            current = found.setdefault(line.split()[0], bytearray())
        elif ROW.match(line):
            current += bytes.fromhex(line.split(":", 1)[1])
    return {address: bytes(data) for address, data in found.items()}


def told_by_lspci(dump: Path) -> dict[str, str]:
    """What lspci prints of each device of a dump."""
    run = subprocess.run(["lspci", "-F", str(dump), "-vvv", "-nn"], capture_output=True, text=True, check=True)
    blocks: dict[str, str] = {}
    for block in run.stdout.split("\n\n"):
        if block.strip():
            blocks[block.split()[0]] = block
    return blocks


def agrees(space: ConfigSpace, text: str) -> list[str]:
    """Where the decoder and lspci's text differ, each in words."""
    wrong: list[str] = []

    def same(what: str, mine: object, pattern: str) -> None:
        found = re.search(pattern, text)
        theirs = found[1] if found else None
        if (None if isinstance(mine, Unknown) or mine is None else str(mine)) != theirs:
            wrong.append(f"{what}: {mine} here, {theirs} there")

    def gts(value: object) -> str | None:
        return f"{value:g}" if isinstance(value, float) else None

    link = space.link or LinkEnd()
    same("max speed", gts(link.max_speed_gts), r"LnkCap:\t.*?Speed ([\d.]+)GT/s")
    same("max width", link.max_width, r"LnkCap:\t.*?Width x([1-9]\d*)")
    same("speed", gts(link.speed_gts), r"LnkSta:\tSpeed ([\d.]+)GT/s")
    same("width", link.width, r"LnkSta:\t.*?Width x([1-9]\d*)")
    same("payload", space.payload_bytes, r"DevCtl:\t.*\n.*\n\t\t\tMaxPayload (\d+)")
    same("secondary bus", _hex(space.secondary_bus), r"Bus: primary=.., secondary=(..)")
    same("subordinate bus", _hex(space.subordinate_bus), r"Bus: primary=.., secondary=.., subordinate=(..)")
    same("power", space.power, r"Status: (D\d)" if space.power != "D3hot" else r"Status: (D3).*")
    express = re.search(r"Express (?:\(v\d\) )?([^(,\n]+?)(?: \(Slot.\))?, ", text)
    if (TITLES[express[1]] if express else None) != space.port_type:
        wrong.append(f"port type: {space.port_type} here, {express and express[1]} there")
    control = re.search(r"ACSCtl:\t(.*)", text)
    theirs = frozenset(re.findall(r"(\w+)\+", control[1])) if control else None
    if known(space.acs) != theirs:
        wrong.append(f"ACS: {space.acs} here, {theirs} there")
    errors = re.search(r"CESta:\t(.*)", text)
    if (set(re.findall(r"(\w+)\+", errors[1])) if errors else None) != (
        set(known(space.aer.correctable) or ()) if space.aer and known(space.aer.correctable) is not None else None
    ):
        wrong.append(f"correctable errors: {space.aer} here, {errors and errors[1]} there")
    return [line for line in wrong if "D3hot here, D3 there" not in line]


def _hex(number: int | None) -> str | None:
    return None if number is None else f"{number:02x}"


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_agrees_with_lspci_on_every_recorded_function(corpus: Path, tmp_path: Path) -> None:
    """Link, payload, buses, port type, ACS, power and error status of every dump are what lspci says they are."""
    compared = 0
    for path, dump in dumps(corpus):
        copy = tmp_path / "dump"
        copy.write_text(dump)
        texts = told_by_lspci(copy)
        short = {address.removeprefix("0000:"): data for address, data in bytes_of(dump).items()}
        for address, text in texts.items():
            space = decode(short[address.removeprefix("0000:")])
            if space.answers:
                compared += 1
                assert agrees(space, text) == [], f"{path.parent.name} {address}"
    assert compared > 700


def test_single_double_words_give_what_the_whole_gives(corpus: Path) -> None:
    """The walk over a live function's registers ends at the same port type, payload, target speed and ACS."""
    reads = functions = 0
    layouts = Layouts()
    for path, dump in dumps(corpus):
        for address, data in bytes_of(dump).items():

            def read(offset: int, size: int, data: bytes = data) -> bytes:
                nonlocal reads
                reads += 1
                return data[offset : offset + size]

            whole, part = decode(data), registers(read)
            functions += 1
            assert part is not None
            assert part == registers_in(data)
            assert part == registers_in(data, (data[:4], data[9:12]), layouts), (
                "what others of its kind taught misleads"
            )
            where = f"{path.parent.name} {address}"
            assert part.answers == whole.answers, where
            assert known(part.port_type) == known(whole.port_type), where
            assert known(part.payload_bytes) == known(whole.payload_bytes), where
            if len(data) == 4096 and whole.header_type == 1:
                assert part.acs == whole.acs, where
            if whole.link is not None and whole.answers:
                assert part.target_speed_gts == whole.link.target_speed_gts, where
    assert reads / functions < 30


def test_where_others_have_it_is_only_looked_at_first() -> None:
    """A bridge whose capabilities lie elsewhere than those of the one before is read as rightly, and one alike with a
    third of the reads."""

    def bridge(express_at: int, acs_at: int) -> bytes:
        data = bytearray(4096)
        data[0x06], data[0x0E], data[0x34] = 0x10, 1, express_at
        data[express_at : express_at + 4] = bytes((0x10, 0, 0x62, 0x01))  # a downstream port
        data[express_at + 8 : express_at + 10] = bytes((0x20, 0x00))  # 256 bytes
        chain = [*range(0x100, acs_at, 0x40), acs_at]
        for here, after in zip(chain, [*chain[1:], 0], strict=True):
            kind = 0x000D if here == acs_at else 0x0003
            data[here : here + 4] = (kind | 1 << 16 | after << 20).to_bytes(4, "little")
        data[acs_at + 6] = 0x1D
        return bytes(data)

    asked: list[int] = []
    layouts = Layouts()
    for data in (bridge(0x60, 0x200), bridge(0x60, 0x200), bridge(0x80, 0x180), bridge(0x60, 0x200)):
        offsets: list[int] = []

        def read(offset: int, size: int, data: bytes = data, offsets: list[int] = offsets) -> bytes:
            offsets.append(offset)
            return data[offset : offset + size]

        found = registers(read, "one kind", layouts)
        assert found is not None
        assert found == registers_in(data)
        assert known(found.payload_bytes) == 256
        assert known(found.acs) == frozenset({"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"})
        asked.append(len(offsets))
    assert asked[1] < asked[0]
    assert asked[1] == 6


def test_without_root_what_is_beyond_the_header_is_denied() -> None:
    """The kernel shows 64 bytes to non-root: capabilities are denied, not absent."""
    header = bytes_of_header()
    part = registers(lambda offset, size: header[offset : offset + size])
    assert part is not None
    assert isinstance(part.port_type, Unknown)
    assert part.port_type.why == DENIED
    assert isinstance(part.acs, Unknown)


@pytest.mark.parametrize("size", [16, 30, 52])
def test_what_ends_within_the_header_was_cut(size: int) -> None:
    """Everybody may read the header: a copy that ends before says nothing of rights."""
    part = registers_in(bytes_of_header()[:size])
    assert part is not None
    assert isinstance(part.port_type, Unknown)
    assert part.port_type.why == NOT_RECORDED


def test_a_failing_read_is_no_answer() -> None:
    """Where not even the header can be read there is nothing to say."""
    assert registers(lambda offset, size: None) is None


def bytes_of_header(pointer: int = 0x40, kind: int = 0) -> bytes:
    """64 bytes of a 3D controller that has capabilities."""
    data = bytearray(64)
    data[0:4] = bytes.fromhex("de103023")
    data[6] = 0x10
    data[8:12] = bytes.fromhex("a1000203")
    data[0x0E] = kind
    data[0x34] = pointer
    return bytes(data)


def test_all_ones_is_a_device_that_does_not_answer() -> None:
    """Nothing is read out of ff: no x63, no class, every reading lost."""
    space = decode(b"\xff" * 256)
    assert space.answers is False
    assert space.vendor_id is None
    assert space.class_code is None
    assert space.link is not None
    assert isinstance(space.link.width, Unknown)
    assert space.link.width.why == LOST


def test_a_virtual_function_answers_without_ids() -> None:
    """A virtual function's own ids read as ffff: that is no dead device."""
    data = bytearray(bytes_of_header())
    data[0:4] = b"\xff\xff\xff\xff"
    space = decode(bytes(data))
    assert space.answers is True
    assert (space.vendor_id, space.device_id) == (None, None)
    assert space.class_code == 0x030200


@pytest.mark.parametrize("following", [0x40, 0x44, 0xFF, 0x00, 0x20])
def test_a_chain_that_loops_or_leads_nowhere_ends(following: int) -> None:
    """Broken next pointers end the walk."""
    data = bytearray(256)
    data[:64] = bytes_of_header()
    data[0x40:0x42] = bytes([0x05, following])
    data[0x44:0x46] = bytes([0x09, 0x40])
    assert len(decode(bytes(data)).capabilities) <= 2


def test_an_extended_chain_that_loops_ends() -> None:
    """Extended capabilities that point at themselves or at each other end the walk."""
    data = bytearray(4096)
    data[:64] = bytes_of_header()
    data[0x40:0x44] = (0x10 | 0x0002 << 16).to_bytes(4, "little")
    data[0x100:0x104] = (0x0003 | 1 << 16 | 0x200 << 20).to_bytes(4, "little")
    data[0x200:0x204] = (0x000D | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    space = decode(bytes(data))
    assert space.acs == frozenset()


def express(lnkcap: int = 0, lnksta: int = 0, kind: int = 0, slot: int = 0, sltsta: int = 0) -> bytes:
    """256 bytes with one PCI Express capability, version 2."""
    data = bytearray(256)
    data[:64] = bytes_of_header()
    for offset, value in {
        0x40: 0x10 | (0x0002 | kind << 4 | slot << 8) << 16,
        0x4C: lnkcap,
        0x50: lnksta << 16,
        0x54: 7 << 19,
        0x58: sltsta << 16,
    }.items():
        data[offset : offset + 4] = value.to_bytes(4, "little")
    return bytes(data)


def test_a_width_of_zero_or_sixty_three_is_unknown() -> None:
    """Widths that the specification does not have, and no link at all, are no numbers."""
    for lanes in (0, 63, 3):
        link = decode(express(lnkcap=0x104, lnksta=lanes << 4 | 4)).link
        assert link is not None
        assert link.width == Unknown(NO_DATA, "LnkSta: Width")
        assert link.max_width == 16


def test_gen_7_is_a_speed_and_code_9_is_not() -> None:
    """Speed codes are decoded up to 128 GT/s; reserved ones are unknown."""
    link = decode(express(lnkcap=0x107, lnksta=0x109)).link
    assert link is not None
    assert link.max_speed_gts == 128.0
    assert isinstance(link.speed_gts, Unknown)


def test_the_slot_of_a_root_port_tells_whether_it_is_empty() -> None:
    """Slot number and presence detect count only where a slot is implemented."""
    empty = decode(express(kind=4, slot=1, sltsta=0))
    assert (empty.slot_number, empty.present) == (7, False)
    assert decode(express(kind=4, slot=1, sltsta=0x40)).present is True
    assert decode(express(kind=4, slot=0)).present is None


def test_a_dump_of_256_bytes_does_not_know_acs() -> None:
    """Extended capabilities that were not dumped are not recorded, which is not the same as absent."""
    space = decode(express())
    assert isinstance(space.acs, Unknown)
    assert space.acs.why == NOT_RECORDED
    conventional = bytearray(256)
    conventional[:64] = bytes_of_header(pointer=0)
    assert decode(bytes(conventional)).acs is None


def test_error_bits_are_told_apart_by_severity() -> None:
    """A status bit is fatal where the severity register says so."""
    data = bytearray(4096)
    data[:256] = express()
    data[0x100:0x104] = (0x0001 | 2 << 16).to_bytes(4, "little")
    data[0x104:0x108] = (1 << 4 | 1 << 14).to_bytes(4, "little")
    data[0x10C:0x110] = (1 << 4).to_bytes(4, "little")
    data[0x110:0x114] = (1 << 0 | 1 << 13).to_bytes(4, "little")
    aer = decode(bytes(data)).aer
    assert aer is not None
    assert aer.fatal == {"DLP": 1}
    assert aer.nonfatal == {"CmpltTO": 1}
    assert aer.correctable == {"RxErr": 1, "AdvNonFatalErr": 1}
    assert aer.sticky


def test_sriov_says_where_the_virtual_functions_are() -> None:
    """Offset, stride and number count while the capability is enabled."""
    data = bytearray(4096)
    data[:256] = express()
    data[0x100:0x104] = (0x0010 | 1 << 16).to_bytes(4, "little")
    data[0x108] = 1
    data[0x110] = 4
    data[0x114:0x118] = (2 | 1 << 16).to_bytes(4, "little")
    data[0x118:0x11C] = (0x101E << 16).to_bytes(4, "little")
    assert decode(bytes(data)).sriov == config_space.Sriov(4, 2, 1)
    data[0x108] = 0
    assert decode(bytes(data)).sriov is None


@given(st.binary(max_size=4200))
def test_any_bytes_decode(data: bytes) -> None:
    """Random bytes of any length are decoded without an exception, whole or by the double word."""
    decode(data)
    registers(lambda offset, size: data[offset : offset + size])


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=200), st.integers(0, 4096))
def test_any_damage_decodes(changes: list[tuple[int, int]], length: int) -> None:
    """A dump with changed bytes and cut off anywhere is decoded without an exception, and never to odd numbers."""
    data = bytearray(4096)
    data[:256] = express(lnkcap=0x104, lnksta=0x104)
    data[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
    for offset, value in changes:
        data[offset] = value
    space = decode(bytes(data[:length]))
    link = space.link or LinkEnd()
    assert known(link.width) in (None, 1, 2, 4, 8, 12, 16, 32)
    assert known(space.payload_bytes) in (None, 128, 256, 512, 1024, 2048, 4096)
