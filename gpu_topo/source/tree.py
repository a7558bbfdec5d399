"""A file tree in memory: an unpacked archive, or what a test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Union

from gpu_topo.model.reading import FAILED
from gpu_topo.source.base import NOT_THERE, Answer, Names, Refusal, Target

Entry = Union[bytes, str, Refusal]  # file content, link target, or why it could not be read
_MAX_LINKS = 40  # as the kernel: more is a loop


class TreeDir:
    """A directory of a Tree. path is as it was asked for, which a link may have led elsewhere."""

    def __init__(self, tree: Tree, path: str, real: str) -> None:
        self.path = path
        self._tree = tree
        self.real = real

    def read(self, name: str) -> Answer:
        return self._tree.read_below(self.real, name)

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        data = self._tree.read_below(self.real, name)
        return data if isinstance(data, Refusal) else data[offset : offset + size]

    def list(self, name: str = ".") -> Names:
        return self._tree.list(self.real if name == "." else f"{self.real}/{name}")

    def link(self, name: str) -> Target:
        return self._tree.link(f"{self.real}/{name}")

    def has(self, name: str) -> bool:
        return self.link(name) != NOT_THERE

    def dir(self, name: str, near: bool = False) -> TreeDir | Refusal:
        found = self._tree.dir(f"{self.real}/{name}")
        return found if isinstance(found, Refusal) else TreeDir(self._tree, f"{self.path}/{name}", found.real)

    def close(self) -> None:
        pass

    def __enter__(self) -> TreeDir:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Tree:
    """A file tree in memory. Links are followed inside it, and nowhere else."""

    live = False

    def __init__(
        self,
        entries: Mapping[str, Entry],
        transcripts: Mapping[str, tuple[str, ...]] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        """entries: absolute path without trailing slash -> content (bytes), link target (str) or Refusal.

        folders: paths of directories that may be empty; those above an entry need not be named.
        """
        self._entries = dict(entries)
        self._transcripts = dict(transcripts or {})
        children: dict[str, set[str]] = {"": set()}
        for folder in folders:
            children.setdefault(folder, set())
            _add_to_parents(children, folder)
        for path in self._entries:
            _add_to_parents(children, path)
        self._children = {path: tuple(sorted(names)) for path, names in children.items()}

    def real(self, path: str) -> Target:
        resolved: list[str] = []
        pending = [part for part in reversed(path.split("/")) if part]
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                if resolved:
                    resolved.pop()
                continue
            resolved.append(part)
            entry = self._entries.get("/" + "/".join(resolved))
            if isinstance(entry, str):
                links += 1
                if links > _MAX_LINKS:
                    return Refusal(FAILED, "ELOOP")
                resolved.pop()
                if entry.startswith("/"):
                    resolved = []
                pending.extend(part for part in reversed(entry.split("/")) if part)
        return "/" + "/".join(resolved)

    def read(self, path: str) -> Answer:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        entry = self._entries.get(real)
        if isinstance(entry, (bytes, Refusal)):
            return entry
        return Refusal(FAILED, "EISDIR") if real.rstrip("/") in self._children else NOT_THERE

    def read_below(self, folder: str, name: str) -> Answer:
        """A file relative to a directory whose path has no link in it: most are found without resolving anything."""
        entry = self._entries.get(f"{folder}/{name}")
        return entry if isinstance(entry, bytes) else self.read(f"{folder}/{name}")

    def dir(self, path: str) -> TreeDir | Refusal:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        if real.rstrip("/") in self._children:
            return TreeDir(self, path, real.rstrip("/"))
        return self._no_folder(real)

    def list(self, path: str) -> Names:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        names = self._children.get(real.rstrip("/"))
        return self._no_folder(real) if names is None else names

    def _no_folder(self, real: str) -> Refusal:
        entry = self._entries.get(real)
        if isinstance(entry, Refusal):
            return entry
        return Refusal(NOT_THERE.why, "ENOTDIR") if isinstance(entry, bytes) else NOT_THERE

    def link(self, path: str) -> Target:
        parent, _, name = path.rpartition("/")
        real = self.real(parent or "/")
        if isinstance(real, Refusal):
            return real
        inside = f"{real.rstrip('/')}/{name}"
        entry = self._entries.get(inside)
        if isinstance(entry, (str, Refusal)):
            return entry
        # The kernel's answer where there is something that is no link.
        return Refusal(FAILED, "EINVAL") if entry is not None or inside in self._children else NOT_THERE

    def ask(self, name: str) -> Iterator[str] | None:
        return iter(self._transcripts.get(name, ()))

    def heard(self, name: str, line: str) -> None:
        pass


def _add_to_parents(children: dict[str, set[str]], path: str) -> None:
    """Every directory above `path` learns of the one below it."""
    while path:
        parent, _, name = path.rpartition("/")
        known = parent in children
        children.setdefault(parent, set()).add(name)
        if known:
            return
        path = parent
