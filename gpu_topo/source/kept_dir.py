"""A directory whose files stay open between scans, so that reading one again costs a sixth of opening it.

What cannot change while its device is there is read once. The daemon keeps one of these for each directory of sysfs.
"""

from __future__ import annotations

import errno
import os

from gpu_topo.source.base import ABSENT, NOT_THERE, Answer, Names, Refusal, Target, refusal
from gpu_topo.source.live_dir import LiveDir, rest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_topo.source.kept import Journal, Kept

_PAGE = 4096

# Attributes that stay as they are while their device is there: Documentation/ABI/testing/sysfs-bus-pci,
# sysfs-class-net and stable/sysfs-class-infiniband. Everything else is read at every scan.
_STATIC = frozenset(
    {
        # PCI functions, slots
        "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "config", "vpd",
        "max_link_speed", "max_link_width", "numa_node", "local_cpulist", "address",
        # RDMA devices and their ports
        "node_type", "fw_ver", "board_id", "hca_type", "link_layer",
        # network interfaces
        "dev_port",
        # the machine
        "cpulist", "sys_vendor", "product_name", "board_vendor", "bios_vendor", "chassis_type",
    }
)  # fmt: skip
_CHANGING_LINKS = frozenset({"master"})  # of a network interface: bonds are made and unmade without a trace elsewhere


class KeptDir(LiveDir):
    """A directory whose files stay open. Closing it does nothing: `release` does."""

    def __init__(self, owner: Kept, path: str, fd: int) -> None:
        super().__init__(owner, path, fd)
        self._owner: Kept = owner
        self._files: dict[str, int] = {}
        self._known: dict[str, Answer] = {}
        self._links: dict[str, Target] = {}
        self._words: dict[tuple[str, int, int], Answer] = {}
        self._event: Answer | None = None
        self.generation = 0  # how often its descriptors were given back
        self.memory: dict[str, object] = {}  # what a collector made of what cannot change, by the collector's name
        self._stamp = self._look()

    @property
    def copied(self) -> bool:
        return False  # what is kept of configuration space is kept by the double word, of a copy too

    def _look(self) -> tuple[int, int]:
        """What shows that a copied tree's folder was changed: a file in it was replaced, added or removed."""
        if self._owner.live:
            return 0, 1  # sysfs tells by its attributes instead
        state = os.fstat(self._fd)
        return state.st_mtime_ns, state.st_nlink

    def fresh(self) -> bool:
        """Whether it is still the same folder."""
        return self._fd >= 0 and self._look() == self._stamp

    def usable(self) -> bool:
        """The same; one that is not is given back, to be opened anew."""
        if self.fresh():
            return True
        self.release()
        return False

    def look_into(self) -> Names:
        """The names in this directory now."""
        return super().list()

    def look_at(self, name: str) -> Target:
        """Where a link points now."""
        return super().link(name)

    def has(self, name: str) -> bool:
        return self.link(name) != NOT_THERE

    def dir(self, name: str, near: bool = False) -> LiveDir | Refusal:
        return self._owner.dir(f"{self.path}/{name}")

    def close(self) -> None:
        """Stays open, but for configuration space, which is read once."""
        self._close_words()

    def release(self) -> None:
        """Give the descriptors back."""
        files, self._files = self._files, {}
        for fd in files.values():
            os.close(fd)
        self.generation += 1
        self._owner.left += len(files) + (self._fd >= 0)
        super().close()
        self._forget()

    def read(self, name: str) -> Answer:
        fd = self._files.get(name)
        if fd is None:
            answer = self._known.get(name)
            if answer is not None:
                return answer
            answer = self._first(name)
        else:
            try:
                answer = os.pread(fd, _PAGE, 0)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENXIO):
                    return self._reopened().read(name)
                answer = refusal(error)
            else:
                if len(answer) == _PAGE:
                    answer = rest(fd, answer)  # no attribute, but a file of a copy
        journal = self._owner.noted()
        if journal is not None:
            self._note(journal, name, answer)
        if name == "uevent" and answer != self._event:
            if self._event is not None:
                self._forget()  # another driver: attributes come and go with it
            self._event = answer
        return answer

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        key = (name, offset, size)
        answer = self._words.get(key)
        if answer is None:
            answer = self._words[key] = super().read_at(name, offset, size)
        return answer

    def link(self, name: str) -> Target:
        target = self._links.get(name)
        if target is None:
            target = super().link(name)
            if name.rpartition("/")[2] not in _CHANGING_LINKS:
                self._links[name] = target
            elif (journal := self._owner.noted()) is not None:
                journal.links.append((self, name, target))
        return target

    def list(self, name: str = ".") -> Names:
        names = super().list(name)
        journal = self._owner.noted()
        if journal is not None:
            journal.lists.append((self.path if name == "." else f"{self.path}/{name}", names))
        return names

    def _note(self, journal: Journal, name: str, answer: Answer) -> None:
        fd = self._files.get(name)
        if fd is not None and isinstance(answer, bytes) and len(answer) < _PAGE:
            journal.files.append((fd, answer))
        elif name not in self._known:
            journal.texts.append((f"{self.path}/{name}", answer))

    def _first(self, name: str) -> Answer:
        try:
            fd = os.open(name, self._flags, dir_fd=self._fd)
        except OSError as error:
            answer = refusal(error)
            if answer.why == ABSENT:
                self._known[name] = answer
            return answer
        try:
            data = os.pread(fd, _PAGE, 0)
            if len(data) == _PAGE:
                data = rest(fd, data)
        except OSError as error:
            os.close(fd)
            return refusal(error)
        if name.rpartition("/")[2] in _STATIC:
            os.close(fd)
            self._known[name] = data
        elif self._owner.left > 0:
            self._owner.left -= 1
            self._files[name] = fd
        else:
            os.close(fd)
        return data

    def _reopened(self) -> LiveDir:
        """This directory once more, by its path: the device behind it is another one now, or gone."""
        self.release()
        fd = self._owner.open_dir(self.path)
        if isinstance(fd, Refusal):
            return _Gone(self._owner, self.path, fd)
        self._fd = fd
        self._stamp = self._look()
        self._owner.left -= 1
        return self

    def _forget(self) -> None:
        self._known = {}
        self._links = {}
        self._words = {}
        self._event = None
        self.memory = {}


class _Gone(LiveDir):
    """A directory that was there a moment ago."""

    def __init__(self, owner: Kept, path: str, why: Refusal) -> None:
        super().__init__(owner, path, -1)
        self._why = why

    def read(self, name: str) -> Answer:
        return self._why
