"""A tar archive of a file tree becomes a Tree in memory: what hwloc-gather-topology and people make of sys/ and proc/.

Nothing is extracted to disk. Names are only keys of that tree: absolute ones, `..` and links stay inside it, and
device nodes, FIFOs and sockets are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from gpu_topo.collectors.unpack import Unreadable
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import MAX_READ, Entry, Tree

if TYPE_CHECKING:
    import tarfile

MAX_MEMBERS = 400_000  # 10,000 functions have about a quarter of a million files
MAX_TOTAL = 128 << 20  # bytes of content that are kept
MAX_PATH = 1024
MAX_DEPTH = 64  # components; sysfs's deepest PCI paths have about 30
_MAX_HEADER = 1 << 16  # of an extended header: it holds one long name

# What tells a machine's sys/ from any folder of that name.
_SYS_CHILDREN = frozenset(
    {"bus", "class", "devices", "kernel", "module", "firmware", "block", "fs", "hypervisor", "power"}
)

# Where a scan reads; a bundle of everything that a machine has need not be kept.
_READ = ("/sys/", "/proc/", "/run/", "/etc/", "/dev/")

# Binary attributes, whose zeros are data. In any other one a run of zeros at the end is tar's padding: the kernel
# states 4096 bytes for an attribute of seven, and tar fills up what it could not read.
_BINARY = frozenset({"config", "vpd", "rom", "edid", "revision_id"})


class Archive(NamedTuple):
    """What an archive holds: the tree, and how many members were left out, by reason."""

    tree: Tree
    skipped: dict[str, int]


def is_tar(head: bytes) -> bool:
    """Whether the first 512 bytes are a tar header (POSIX, GNU, or the old format by its checksum)."""
    if len(head) < 512:
        return False
    if head[257:262] == b"ustar":
        return True
    digits = head[148:156].strip(b" \0")
    if not head[0] or not 4 <= len(digits) <= 7 or digits.strip(b"01234567"):
        return False
    return sum(head[:148]) + 8 * 32 + sum(head[156:512]) == int(digits, 8)


def read_tree(stream: IO[bytes]) -> Archive:
    """The tree in an archive; raises Unreadable where there is none, it is damaged, or it is too much."""
    import tarfile

    skipped: dict[str, int] = {}
    entries: dict[str, Entry] = {}
    folders: list[str] = []
    kept = members = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_member_class(), errorlevel=0) as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it remembers every member that it has seen
                members += 1
                if members > MAX_MEMBERS:
                    raise Unreadable(f"is an archive of more than {MAX_MEMBERS:,} members, which no machine's tree has")
                path = _inside(info.name)
                if path is None:
                    _count(skipped, "name too long or too deep")
                elif not path:
                    continue  # "./", the top of most archives
                elif info.isdir():
                    folders.append(path)
                elif info.issym():
                    entries[path] = info.linkname[:MAX_PATH]
                elif info.islnk():
                    target = _inside(info.linkname)
                    if target is not None and target in entries:
                        entries[path] = entries[target]
                    else:
                        _count(skipped, "hard link to nothing")
                elif info.isreg():
                    if not any(folder in path for folder in _READ):
                        continue
                    content = tar.extractfile(info)
                    data = content.read(MAX_READ) if content else b""
                    if path.rpartition("/")[2] not in _BINARY:
                        data = data.rstrip(b"\0")
                    kept += len(data)
                    if kept > MAX_TOTAL:
                        raise Unreadable(f"is an archive that holds more than {MAX_TOTAL >> 20} MiB")
                    entries[path] = data
                else:
                    _count(skipped, "device node, FIFO or socket")
    except tarfile.TarError as error:
        raise Unreadable(f"is a damaged or cut off tar archive ({error})") from error
    except (ValueError, OverflowError, EOFError) as error:
        raise Unreadable(f"is a damaged tar archive ({error})") from error
    try:
        prefix = _prefix([*entries, *folders])
    except Unreadable as error:
        raise Unreadable(f"{error}; {left_out(skipped)}" if skipped else str(error)) from None
    cut = len(prefix)
    tree = Tree(
        {path[cut:]: entry for path, entry in entries.items() if path.startswith(prefix + "/")},
        folders=[path[cut:] for path in folders if path.startswith(prefix + "/")],
    )
    return Archive(tree, skipped)


def _member_class() -> type[tarfile.TarInfo]:
    """A TarInfo that refuses an extended header of many megabytes, which tarfile would read into memory."""
    import tarfile

    extended = (b"x", b"g", b"X", b"L", b"K")

    class Member(tarfile.TarInfo):
        """One member, checked before its extended header is read."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            info = super().frombuf(buf, encoding, errors)
            if info.type in extended and not 0 <= info.size <= _MAX_HEADER:
                raise Unreadable("is a damaged tar archive (an extended header of absurd size)")
            if info.size < 0:
                raise Unreadable("is a damaged tar archive (a member of negative size)")
            return info

    return Member


def left_out(skipped: dict[str, int]) -> str:
    """What was left out of an archive, for messages."""
    return "members of the archive left out: " + ", ".join(f"{n} ({why})" for why, n in sorted(skipped.items()))


def _count(skipped: dict[str, int], reason: str) -> None:
    skipped[reason] = skipped.get(reason, 0) + 1


def _inside(name: str) -> str | None:
    """A member's name as an absolute path of the tree, `..` resolved without leaving it; "" for its top, None where
    it is absurd."""
    if len(name) > MAX_PATH:
        return None
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "".join(f"/{part}" for part in parts) if len(parts) <= MAX_DEPTH else None


def _prefix(paths: Iterable[str]) -> str:
    """What stands before /sys in the archive ("" where sys/ is at its top); raises Unreadable without sys/."""
    found: dict[str, int] = {}
    for path in paths:
        head, sep, rest = f"{path}/".partition("/sys/")
        if sep and rest.partition("/")[0] in _SYS_CHILDREN:
            found[head] = found.get(head, 0) + 1
    if "" in found:
        return ""
    tops = [head for head in found if not any(above in found for above in _above(head))]
    if not tops:
        raise Unreadable("is a tar archive without sys/bus, sys/class or sys/devices in it")
    if len(tops) > 1:
        names = ", ".join(sorted(tops)[:4])
        raise Unreadable(f"is an archive of several machines ({names}): unpack it and use --root on one of them")
    return tops[0]


def _above(path: str) -> Iterator[str]:
    """Every folder that a path lies in, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path
