"""Fill the generated parts of README.md: real output of real commands, and the tables of rules and configuration keys.

usage: tools/readme.py [--check]    run from a checkout, with gpu-topo installed beside this Python

Each part stands between <!-- NAME --> and <!-- /NAME -->.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpu_topo.agent.cli import help_text
from gpu_topo.agent.config import reference
from gpu_topo.agent.errors import UNUSABLE
from gpu_topo.classifier import RULES

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "example.svg"


def output(*arguments: str) -> str:
    """What gpu-topo prints, 100 columns wide and without colour."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_topo.agent", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "100", "PYTHONUTF8": "1", "LANG": "C.UTF-8"},
    )
    if done.returncode == UNUSABLE:  # a README without its report is worse than an old one
        raise SystemExit(done.stderr)
    return done.stdout.rstrip()


def command(*arguments: str) -> str:
    """A command and what it prints, as a block."""
    return "```console\n$ gpu-topo " + " ".join(arguments) + "\n" + output(*arguments) + "\n```"


def first_lines(block: str, count: int) -> str:
    """The block with what comes after `count` lines of output cut off, and said so."""
    lines = block.splitlines()
    if len(lines) <= count + 3:
        return block
    return "\n".join([*lines[: count + 2], "[...]", "```"])


def parts() -> dict[str, str]:
    """Every generated part by its name."""
    rules = "\n".join(
        f'| <a id="{rule.code}"></a>`{rule.code}` | {", ".join(rule.severities)} | {rule.title} |' for rule in RULES
    )
    commands = help_text().split("commands:\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.split(None, 1) for line in commands.splitlines()]
    return {
        "report": first_lines(command("inspect", "--example", "--only", "pcie-width-degraded"), 45),
        "matrix": first_lines(command("matrix", "--example"), 16),
        "rule": command("rules", "pcie-slot-limited"),
        "rules": f"| rule | severity | what it says |\n|---|---|---|\n{rules}",
        "commands": "| command | what it does |\n|---|---|\n"
        + "\n".join(f"| `gpu-topo {name}` | {text} |" for name, text in rows),
        "configuration": reference().rstrip(),
    }


def filled(text: str) -> str:
    """The README with every generated part made anew."""
    for name, part in parts().items():
        text, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda found, part=part: f"{found[1]}{part}\n{found[2]}",  # type: ignore[misc]
            text,
            flags=re.S,
        )
        if count != 1:
            raise SystemExit(f"README.md has {count} parts named {name}")
    return text


def main() -> int:
    """Rewrite README.md, or with --check say whether it would change."""
    picture = output("inspect", "--example", "--format", "svg") + "\n"
    before = README.read_text()
    after = filled(before)
    if "--check" in sys.argv[1:]:
        return 0 if before == after and picture == PICTURE.read_text() else 1
    README.write_text(after)
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
