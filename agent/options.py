"""Plain usage read without argparse, which takes a tenth of an audit to load.

A command declares its arguments once, to whatever has argparse's `add_argument`. Quick understands long flags that are
spelled out, each with a good value, and files beside them. Everything else (help, a mistake, an abbreviation, `--`) it
leaves to argparse, whose word counts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

CONFIG_FILE = "/etc/gpu-topo/gpu-topo.toml"  # where there is one and no other is named

_VALUE, _APPEND, _CONST = "store", "append", "store_const"


def path(text: str) -> str:
    """The path of a file or folder, for argparse: an empty one is a shell variable that is not set."""
    if not text:
        raise ValueError(text)
    return text


def add_config_file(parser: Any) -> None:
    """The flag that names the configuration, in args as "config.file"."""
    words = f"configuration (default {CONFIG_FILE}, where it exists)"
    parser.add_argument("--config.file", type=path, metavar="FILE", default=None, help=words)


class NotPlain(Exception):
    """Usage, or a declaration, that argparse has to read."""


class Options:
    """What a command line says, by the name of each option: argparse's Namespace to whoever reads it."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class Quick:
    """Collects declarations as an argparse parser does, then reads plain usage."""

    def __init__(self) -> None:
        self._flags: dict[str, dict[str, Any]] = {}
        self._defaults: dict[str, Any] = {}
        self._files = ""  # the name of the one list of positional arguments

    def add_argument(self, name: str, **how: Any) -> None:
        """Declare a long flag, or a positional argument that takes any number."""
        if name.startswith("--"):
            action = how.get("action", _VALUE)
            if action == "store_true":
                how.update(const=True, default=False)
            elif action not in (_VALUE, _APPEND, _CONST):
                raise NotPlain(name)
            how["dest"] = how.get("dest") or name[2:].replace("-", "_")
            self._flags[name] = how
        elif how.get("nargs") == "*" and not self._files:
            self._files = how["dest"] = name
            how["default"] = []
        else:
            raise NotPlain(name)
        self._defaults.setdefault(how["dest"], how.get("default"))

    def parse(self, words: Sequence[str]) -> Options:
        """The options as argparse would give them; raises NotPlain where it has to be asked."""
        given = dict(self._defaults)
        files: list[str] = []
        closed = False  # argparse takes positional arguments that follow each other
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word == "-":
                if closed or not self._files:
                    raise NotPlain(word)
                files.append(word)
                continue
            closed = bool(files)
            name, mark, value = word.partition("=")
            how = self._flags.get(name)
            if how is None:
                raise NotPlain(word)
            if how.get("action", _VALUE) in (_VALUE, _APPEND):
                text = value if mark else next(rest, "-?")
                if not mark and text.startswith("-") and text != "-":
                    raise NotPlain(word)
                read = _read(text, how.get("type"), how.get("choices"))
                append = how.get("action") == _APPEND
                given[how["dest"]] = [*(given[how["dest"]] or ()), read] if append else read
            elif mark:
                raise NotPlain(word)
            else:
                given[how["dest"]] = how["const"]
        if self._files:
            given[self._files] = files
        return Options(**given)


def _read(text: str, convert: Callable[[str], Any] | None, choices: Sequence[str] | None) -> Any:
    if choices is not None and text not in choices:
        raise NotPlain(text)
    try:
        return text if convert is None else convert(text)
    except (TypeError, ValueError):
        raise NotPlain(text) from None
