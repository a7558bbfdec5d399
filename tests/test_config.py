"""The configuration is whole or refused, and what is wrong is named with its line and the nearest right key."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_topo.agent import config
from gpu_topo.agent.config import Config, ConfigError
from gpu_topo.agent.config_values import SWITCH, Accepted, Listen
from gpu_topo.agent.policy import rules_policy
from gpu_topo.model.finding import Acceptance
from tests.commands import Run, gpu_topo
from tests.daemons import start, tree

__all__ = ["gpu_topo", "start", "tree"]  # fixtures

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str) -> str:
        path = tmp_path / "gpu-topo.toml"
        path.write_text(text)
        return str(path)

    return to


def flags(*args: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    config.add_flags(parser)
    return config.flags_of(parser.parse_args(list(args)))


def refused(path: str, **given: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(path, {name.replace("_", "."): value for name, value in given.items()})
    return str(caught.value).replace(path, "FILE")


def test_every_key_is_a_field_and_every_field_a_key() -> None:
    """The table of keys and the typed configuration name the same things."""
    assert [key.field for key in config.KEYS] == [name for name in Config._fields if name not in ("source", "origins")]


def test_every_default_is_a_value_that_its_key_takes(write: Write) -> None:
    """What `show` writes is read back as the same configuration, for every key."""
    shown = config.show(Config())
    assert config.load(write(shown))._replace(source=None, origins={}) == Config(origins={})


@pytest.mark.parametrize(
    "text", ["scan.boot-grace = 12345.25", "scan.boot-grace = 0", "thresholds.flaps-per-hour = 1234567.5"]
)
def test_what_is_shown_is_what_was_set(write: Write, text: str) -> None:
    """Numbers of many digits keep them all in `show`."""
    found = config.load(write(text))
    assert config.load(write(config.show(found)))._replace(origins={}) == found._replace(origins={})


def test_a_full_file_is_read(write: Write) -> None:
    """Tables, dotted keys, durations, lists and accepted findings become typed values."""
    path = write("""
exclude = ["0000:03:00.0", "mlx5_9"]
[scan]
interval = "1m30s"
timeout = 20
[web]
listen-address = [":10119", "unix:/run/gpu-topo.sock", "[::1]:9000"]
config.file = "/etc/web.yml"
[expect]
gpus = 8
[roles]
mlx5_4 = "storage"
[[accept]]
code = "pcie-slot-limited"
subject = "0000:17:00.0"
reason = "riser, known"
until = 2030-01-31
""")
    found = config.load(path)
    assert found.scan_interval == 90
    assert found.scan_timeout == 20
    assert found.web_listen_address == (Listen("", 10119), Listen(path="/run/gpu-topo.sock"), Listen("::1", 9000))
    assert [str(where) for where in found.web_listen_address] == [":10119", "unix:/run/gpu-topo.sock", "[::1]:9000"]
    assert found.web_config_file == "/etc/web.yml"
    assert found.expect == {"gpus": 8}
    assert found.roles == {"mlx5_4": "storage"}
    assert found.exclude == ("0000:03:00.0", "mlx5_9")
    assert found.accept == (Accepted("pcie-slot-limited", "0000:17:00.0", "riser, known", until="2030-01-31"),)


def test_every_key_is_a_flag(write: Write) -> None:
    """Flags win over the file; repeated lists add up; a switch has its negation."""
    path = write('exclude = ["a"]\nscan.events = true\nlog.level = "error"')
    accept = "code=x,subject=y,reason=one, two,by=me"
    given = flags("--exclude", "b,c", "--exclude=d", "--no-scan.events", "--scan.interval", "500ms",
                  "--scan.interval=2s", "--expect", "gpus=8,nics=4", "--accept", accept)  # fmt: skip
    found = config.load(path, given)
    assert found.exclude == ("b", "c", "d")
    assert found.scan_events is False
    assert found.scan_interval == 2
    assert found.log_level == "error"
    assert found.expect == {"gpus": 8, "nics": 4}
    assert found.accept == (Accepted("x", "y", "one, two", "me"),)
    assert found.origins["exclude"] == "--exclude"
    assert found.origins["log.level"] == f"{path}:3"
    parser = argparse.ArgumentParser()
    config.add_flags(parser)
    assert all(key.flag in parser.format_help() for key in config.KEYS)


def test_each_flag_sets_its_own_key() -> None:
    """Every key, given as a flag with its default spelled out, arrives under its own name."""
    for key in config.KEYS:
        given = flags(key.flag if key.kind is SWITCH else f"{key.flag}=1")
        assert list(given) == [key.name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scan]\n\nintervall = 15", "FILE:3: unknown key 'scan.intervall'; did you mean 'scan.interval'?"),
        ("[skan]\ninterval = 15", "FILE:1: unknown key 'skan'"),
        ("\n[scan]\ninterval = '15 parsecs'", "FILE:3: scan.interval takes a duration such as 15s, 500ms or 1h30m"),
        ("scan.interval = '1ms'", 'FILE:1: scan.interval is at least "1s", not "1ms"'),
        ("scan.interval = nan", "FILE:1: scan.interval takes a duration"),
        ("thresholds.flaps-per-hour = nan", "FILE:1: thresholds.flaps-per-hour is at least 0, not nan"),
        ("scan.raise-after = true", "FILE:1: scan.raise-after takes a whole number"),
        ("scan = 3", "FILE:1: unknown key 'scan'"),
        ("exclude = 'x'", "FILE:1: exclude takes a list of texts"),
        ("log.level = 'loud'", "FILE:1: log.level takes one of debug, info, warning, error, not 'loud'"),
        ("web.listen-address = ['10119']", "FILE:1: web.listen-address takes addresses such as"),
        ("web.listen-address = ['h:99999']", "FILE:1: web.listen-address takes addresses such as"),
        ("web.listen-address = ['unix:x']", "FILE:1: web.listen-address takes an absolute path"),
        ("web.listen-address = []", "FILE:1: web.listen-address takes at least one address"),
        ("[expect]\ngpu = 8", "FILE:2: expect knows no 'gpu'; did you mean 'gpus'?"),
        ("[expect]\ngpus = -1", "FILE:2: expect takes a whole number for gpus"),
        ("expect = { gpus = 'eight' }", "FILE:1: expect takes a whole number for gpus"),
        ("expect.nics = 2\nexpect.gpus = 'eight'", "FILE:2: expect takes a whole number for gpus"),
        ("[roles]\nmlx5_0 = 'store'", "FILE:2: roles knows no role 'store' (for mlx5_0); did you mean 'storage'?"),
        ("[[accept]]\ncode='a'\nsubject='b'", "FILE:1: accept needs reason"),
        ('[roles]\n"mlx5_0/1" = "storage"\n"mlx5_1/1" = "store"', "FILE:3: roles knows no role 'store' (for mlx5_1/1)"),
        ("[[accept]]\ncode='a'\nsubject='b'\nreason='c'\n[[accept]]\ncode='a'", "FILE:5: accept needs subject"),
        ("[[accept]]\ncode='a'\nsubject='b'\nreason='c'\nuntill='2030'", "FILE:5: accept knows no 'untill'"),
        ("[[accept]]\ncode='a'\nsubject='b'\nreason='c'\nuntil='soon'", "FILE:5: accept takes until as a date"),
        ("a = [", "FILE:1: not TOML: Invalid value"),
        ("a = 1\na = 2", "FILE:2: not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "FILE: not TOML: nested too deeply"),
        ("a = " + "{a=" * 5000, "FILE: not TOML: nested too deeply"),
        (f"scan.interval = {'9' * 5000}", "FILE:1: not TOML: "),
        (f"scan.interval = {'9' * 400}", "FILE:1: scan.interval takes a duration"),
        (f"scan.boot-grace = '{'9' * 400}s'", "FILE:1: scan.boot-grace takes a duration"),
        ("scan.boot-grace = inf", "FILE:1: scan.boot-grace takes a duration"),
        ("scan.boot-grace = '365d'", 'FILE:1: scan.boot-grace is at most "1d"'),
        (f"thresholds.flaps-per-hour = {'9' * 400}", "FILE:1: thresholds.flaps-per-hour takes a number"),
        ('root = "a\\u0000b"', "FILE:1: root holds a null character"),
        ('exclude = ["a\\u0000b"]', "FILE:1: exclude holds a null character"),
        ('web.listen-address = ["unix:/a\\u0000b"]', "FILE:1: web.listen-address holds a null character"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write: Write, text: str, message: str) -> None:
    """Each mistake is one line with the file, the line and what is right."""
    told = refused(write(text))
    assert told.startswith(message)
    assert "\n" not in told


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    """Two mistakes are two lines, so that a file is mended in one go."""
    assert len(refused(write("x = 1\nscan.interval = 0")).splitlines()) == 2


def test_each_mistake_is_a_line_of_its_own(write: Write, gpu_topo: Run) -> None:
    """The command says them one a line, and what a line quotes cannot break it."""
    ran = gpu_topo("config", "check", "--config.file", write('"x\\ny\\u001b[31m" = 1\nexpect."a\\nb" = 0'))
    assert ran.status == 3
    assert [line.isprintable() for line in ran.err.splitlines()] == [True, True]


def test_a_bad_flag_is_named() -> None:
    """A mistake in a flag names the flag."""
    with pytest.raises(ConfigError, match=r"--expect takes name=value pairs, and 'gpus' is none"):
        config.load(flags=flags("--expect", "gpus"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expect", "gpus=8,gpus=9"), "--expect gives gpus twice: 8 and 9"),
        (("--expect", "gpus=8", "--expect", "gpus=9"), "--expect gives gpus twice: 8 and 9"),
        (("--roles", "mlx5_0=fabric,mlx5_0=storage"), "--roles gives mlx5_0 twice: fabric and storage"),
        (("--accept", "code=a,code=b,subject=c,reason=d"), "--accept gives code twice: a and b"),
        (("--expect", ""), "--expect was given nothing"),
        (("--roles", " , "), "--roles was given nothing"),
        (("--only", ""), "--only was given nothing"),
        (("--exclude=",), "--exclude was given nothing"),
    ],
)
def test_a_flag_that_contradicts_itself_or_says_nothing(words: Sequence[str], message: str) -> None:
    """Two values for one name, and the empty text of a shell variable that is not set, are mistakes."""
    with pytest.raises(ConfigError, match=message):
        config.load(flags=flags(*words))


def test_flags_of_one_table_add_up() -> None:
    """What is said twice and the same, or of another name, is no contradiction."""
    assert config.load(flags=flags("--expect", "gpus=8,gpus=8", "--expect", "nics=4")).expect == {"gpus": 8, "nics": 4}


def test_some_rule_is_left(write: Write) -> None:
    """only and skip that leave no rule are named, in the file as in flags."""
    codes = ("pcie-errors", "port-down")
    path = write("only = ['port-down']\nskip = ['port-down']")
    with pytest.raises(ConfigError) as caught:
        config.load(path, codes=codes)
    assert str(caught.value) == f"{path}:1: only and {path}:2: skip: no rule is left to judge by"
    with pytest.raises(ConfigError, match=r"^--skip: no rule is left to judge by$"):
        config.load(flags=flags("--skip", "pcie-errors,port-down"), codes=codes)
    assert config.load(write("only = ['port-down']"), flags("--skip", "pcie-errors"), codes).only == ("port-down",)


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    """A file named by the user must be there and be text; the default file need not."""
    assert refused(str(tmp_path / "none.toml")).startswith("FILE: no such file")
    (tmp_path / "binary.toml").write_bytes(b"a = '\xff'")
    assert refused(str(tmp_path / "binary.toml")).startswith("FILE: not UTF-8 text (byte 5)")
    assert refused(str(tmp_path)).startswith("FILE: cannot be read: Is a directory")


def test_a_rule_that_does_not_exist_is_an_error(write: Write) -> None:
    """only, skip and accept name rules that exist."""
    path = write("skip = ['pcie-width-degarded']")
    with pytest.raises(ConfigError, match="did you mean 'pcie-width-degraded'"):
        config.load(path, codes=("pcie-width-degraded", "port-down"))


def test_state_directory_comes_from_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a setting the state directory is the one that systemd made for the unit."""
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/gpu-topo:/var/lib/other")
    assert config.load().state_directory == "/var/lib/gpu-topo"
    assert config.load(flags=flags("--state.directory", "/x")).state_directory == "/x"


def test_acceptances_end_after_their_last_day() -> None:
    """An acceptance holds through its last day; the configuration's wins over the baseline's."""
    row = Accepted("a", "b", "why", "me", "2030-01-31")
    given = Config(accept=(row,))
    assert rules_policy(given, "2030-01-31").accepted == {("a", "b"): Acceptance("me", "why", "2030-01-31")}
    assert rules_policy(given, "2030-02-01").accepted == {}
    older = row._replace(reason="older", until=None)
    assert rules_policy(given, "2030-01-31", [older]).accepted[("a", "b")].reason == "why"
    assert rules_policy(given, "2030-02-01", [older]).accepted[("a", "b")].reason == "older"


def test_thresholds_reach_the_rules(write: Write) -> None:
    """What the operator decided is what the rules are given."""
    path = write("thresholds.flaps-per-hour = 7\nscan.boot-grace = '5m'\nskip = ['x']\n[expect]\nnics = 2")
    found = rules_policy(config.load(path), "2030-01-01")
    assert (found.flaps_per_hour, found.boot_grace_seconds) == (7, 300)
    assert found.skip == {"x"}
    assert found.expect == {"nics": 2}
    assert math.isclose(found.correctable_per_hour, 100)


def test_the_reference_lists_every_key() -> None:
    """The README's table has a row for each key, with what it takes."""
    rows = config.reference().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [key.name for key in config.KEYS]
    assert '| `scan.interval` | duration, 1s to 1h | `"15s"` | time from one scan to the next |' in rows
    assert all(row.count("|") == 5 for row in rows)


def test_a_deadline_longer_than_the_interval_is_told(write: Write, gpu_topo: Run) -> None:
    """It works, since scans never overlap, and is hardly meant: `config check` says so."""
    ran = gpu_topo("config", "check", "--config.file", write("scan.interval = '5s'\nscan.timeout = '20s'"))
    assert ran.status == 0
    assert 'in order, but scan.timeout "20s" is longer than scan.interval "5s"' in ran.out
    assert gpu_topo("config", "check", "--config.file", write("scan.interval = '20s'")).out.endswith(": in order\n")
