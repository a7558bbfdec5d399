"""What the daemon remembers: counters grow by the hour, findings are raised and cleared once, files survive crashes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.agent import history, life
from gpu_topo.agent.history import WINDOW, History, Trail, advance, growth, observe, past_of
from gpu_topo.agent.life import ACCEPTED, CHANGED, CLEARED, RAISED, REOPENED, Life, Settled, settle
from gpu_topo.agent.state import State, StateFile, decode, encode
from gpu_topo.classifier.port_counters import judge_flapping
from gpu_topo.model.finding import CAUSE_TIMEOUT, CRITICAL, PEERS, WARNING, Acceptance, Finding, Unassessed
from gpu_topo.model.gpu import ACTIVE, NvLink
from gpu_topo.model.history import Policy
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import GPU, Device, Gpu, LinkSample, Node
from gpu_topo.model.pci import Aer, Function
from gpu_topo.model.reading import DENIED, Unknown

# --- counters -----------------------------------------------------------------------------------------------------


def walk(*looks: tuple[float, int]) -> Trail:
    trail: Trail | None = None
    for when, raw in looks:
        trail = advance(trail, raw, when)
    assert trail is not None
    return trail


def test_what_was_counted_before_is_no_growth() -> None:
    """The first look at a counter says nothing of its growth."""
    assert growth(walk((0, 5000)), 0) == 0


def test_growth_is_that_of_the_last_hour() -> None:
    """What was counted more than an hour ago no longer counts."""
    trail = walk((0, 0), (100, 7), (2000, 9))
    assert growth(trail, 2000) == 9
    assert growth(trail, 3800) == 2
    assert growth(trail, 5700) == 0


def test_a_reset_is_no_negative_growth() -> None:
    """A counter that fell was reset, and grew by what it shows now."""
    assert growth(walk((0, 100), (10, 110), (20, 3)), 20) == 13


def test_a_counter_at_its_ceiling_grows_no_more() -> None:
    """A counter that stands still has no growth, however high it stands."""
    assert growth(walk((0, 255), (4000, 255)), 4000) == 0


@given(st.lists(st.tuples(st.floats(1, 400), st.integers(0, 50)), min_size=1, max_size=300))
def test_growth_agrees_with_adding_up(steps: list[tuple[float, int]]) -> None:
    """Against brute force: growth is within what was counted in the hour, give or take one step of a minute."""
    now, raw, looks = 0.0, 0, [(0.0, 0)]
    for wait, grown in steps:
        now, raw = now + wait, raw + grown
        looks.append((now, raw))
    trail = walk(*looks)
    found = growth(trail, now)

    def since(begin: float) -> int:
        return raw - max((value for when, value in looks if when <= begin), default=0)

    assert since(now - WINDOW + 60) <= found <= since(now - WINDOW - 60)
    assert len(trail.points) <= 63


NODE = Node(
    devices={
        "0000:17:00.0": Device(
            "0000:17:00.0",
            GPU,
            "GPU",
            Function(
                "0000:17:00.0",
                class_code=0x030200,
                aer=Aer({"BadTLP": 3, "AdvNonFatalErr": 9, "TOTAL_ERR_COR": 12}, {}, {"DLP": 0}),
            ),
        )
    },
    gpus=(
        Gpu(
            "0000:17:00.0",
            replays=4,
            nvlinks=(NvLink(0, errors={"crc": 2}), NvLink(1, errors={"crc": 1})),
            samples=(LinkSample(2.5, 16, 8, 0),),
        ),
    ),
    ports=(Port("mlx5_0", 1, netdev="ib0", state="ACTIVE", rate_gbps=400.0, counters={"symbol_error": 5}),),
    netdevs=(NetDevice("ib0", carrier_changes=2),),
)


def test_the_counters_are_those_that_the_rules_ask_for() -> None:
    """AER sums without what every probing of a bus counts, replays, NVLink and port errors, by the rules' names; of
    NVLinks each by itself, and for the rules all together."""
    looked = observe(History(), NODE, 10.0)
    assert {key: trail.raw for key, trail in looked.counters.items()} == {
        ("0000:17:00.0", "aer_correctable"): 3,
        ("0000:17:00.0", "aer_nonfatal"): 0,
        ("0000:17:00.0", "aer_fatal"): 0,
        ("0000:17:00.0", "replays"): 4,
        ("0000:17:00.0", "nvlink_crc/0"): 2,
        ("0000:17:00.0", "nvlink_crc/1"): 1,
        ("mlx5_0/1", "symbol_error"): 5,
        ("mlx5_0/1", "carrier_changes"): 2,
    }
    past = past_of(looked, History().samples, 10.0, 100.0)
    assert past.watching
    assert set(past.counters) == {
        *(("0000:17:00.0", f"aer_{kind}") for kind in ("correctable", "nonfatal", "fatal")),
        ("0000:17:00.0", "replays"),
        ("0000:17:00.0", "nvlink_crc"),
        ("mlx5_0/1", "symbol_error"),
    }
    assert past.was_up == {"mlx5_0/1"}
    assert past.best_rate_gbps == {"mlx5_0/1": 400.0}
    assert past.seen_devices == {"0000:17:00.0": "GPU"}
    assert past.samples == {}
    assert past_of(looked, looked.samples, 20.0).samples == {"0000:17:00.0": (LinkSample(2.5, 16, 8, 0),)}


def test_what_only_a_driver_names_is_not_missed_later() -> None:
    """A driver call that hangs leaves a GPU without its address: no device of that name was ever on the bus."""
    node = NODE._replace(devices={**NODE.devices, "GPU3": Device("GPU3", GPU, "GPU", Function("GPU3"))})
    assert dict(observe(History(), node, 10.0).seen_devices) == {"0000:17:00.0": "GPU"}


def port(state_: str, carrier: int = 2) -> Node:
    ports = (NODE.ports[0]._replace(state=state_, rate_gbps=400.0 if state_ == "ACTIVE" else 10.0),)
    return NODE._replace(ports=ports, netdevs=(NetDevice("ib0", carrier_changes=carrier),))


def test_a_port_that_goes_down_flaps() -> None:
    """Each time a port is found down is one; its placeholder rate does not lower the best; an hour later it is over."""
    looked = History()
    for n, word in enumerate(["ACTIVE", "DOWN", "DOWN", "ACTIVE", "DOWN"]):
        looked = observe(looked, port(word), n * 15.0)
    past = past_of(looked, {}, 60.0)
    assert past.flaps["mlx5_0/1"] == 2
    assert past.best_rate_gbps == {"mlx5_0/1": 400.0}
    assert history.port_flaps(looked, NODE) == {("mlx5_0", 1): 2}
    assert "mlx5_0/1" not in past_of(observe(looked, port("DOWN"), 5000.0), {}, 5000.0).flaps


def test_a_flap_between_two_scans_is_seen_by_the_carrier() -> None:
    """Down and up again between two looks: two changes of the carrier."""
    looked = observe(observe(History(), port("ACTIVE", 2), 0.0), port("ACTIVE", 6), 15.0)
    assert past_of(looked, {}, 15.0).flaps["mlx5_0/1"] == 2
    assert history.port_flaps(looked, NODE) == {("mlx5_0", 1): 2}


def test_a_flap_between_two_scans_is_seen_by_the_ports_own_counter() -> None:
    """An InfiniBand port without IPoIB has no carrier; link_downed counts what no scan saw, and the rule is told."""
    before = NODE.ports[0]._replace(netdev=None, counters={"link_downed": 3})
    after = before._replace(counters={"link_downed": 6})
    looked = observe(History(), NODE._replace(ports=(before,)), 0.0)
    assert history.port_flaps(looked, NODE) == {("mlx5_0", 1): 0}
    node = NODE._replace(ports=(after,))
    looked = observe(looked, node, 15.0)
    assert history.port_flaps(looked, NODE) == {("mlx5_0", 1): 3}
    (finding,) = judge_flapping(node, past_of(looked, {}, 15.0), Policy(flaps_per_hour=2))
    assert isinstance(finding, Finding)
    assert finding.observed["flaps"] == 3


def test_the_best_rate_is_the_one_that_the_rules_compare() -> None:
    """Drivers print a fallback for Ethernet speeds that they do not know; the interface's own speed counts."""
    ethernet = NODE.ports[0]._replace(link_layer="Ethernet", rate_gbps=40.0)
    node = NODE._replace(ports=(ethernet,), netdevs=(NetDevice("ib0", speed_mbps=400_000),))
    assert observe(History(), node, 0.0).best_rate_gbps == {"mlx5_0/1": 400.0}
    node = NODE._replace(ports=(ethernet,), netdevs=(NetDevice("ib0", speed_mbps=25_000),))
    assert observe(History(), node, 0.0).best_rate_gbps == {"mlx5_0/1": 25.0}


def test_what_cannot_be_read_changes_nothing() -> None:
    """A state that is refused is neither up nor down, and a counter that is refused keeps its trail."""
    looked = observe(History(), NODE, 0.0)
    blind = NODE._replace(
        ports=(Port("mlx5_0", 1, state=Unknown(DENIED, "state")),), gpus=(Gpu("0000:17:00.0"),), devices={}, netdevs=()
    )
    again = observe(looked, blind, 15.0)
    assert again == looked._replace(counters=again.counters)
    assert again.counters == looked.counters


def linked(*errors: int | None) -> Node:
    """A GPU whose links have counted so many errors each; None: this one does not tell."""
    links = tuple(NvLink(n, ACTIVE, errors={} if e is None else {"replay": e}) for n, e in enumerate(errors))
    return Node(gpus=(Gpu("0000:17:00.0", nvlinks=links),))


@pytest.mark.parametrize("blind", [(1000, 1000, None), (1000, 1000), (None, None, None)])
def test_a_link_that_does_not_tell_for_once_counted_nothing(blind: tuple[int | None, ...]) -> None:
    """A link whose counters, or that itself, cannot be read in one scan is no reset of the sum, and its old errors are
    no new ones when it is back; what it counted meanwhile is growth."""
    looked = History()
    for n, errors in enumerate([(1000, 1000, 1000), blind, (1000, 1000, 1000)]):
        looked = observe(looked, linked(*errors), n * 15.0)
        assert past_of(looked, {}, n * 15.0).counters["0000:17:00.0", "nvlink_replay"] == 0
        heard = [at for at, count in enumerate(errors) if count is not None]
        silent = {("0000:17:00.0", "replay", at): 1000 for at in range(3) if at not in heard}
        assert history.last_heard(looked, linked(*errors)) == silent
    looked = observe(looked, linked(1000, 1003, 1004), 60.0)
    assert past_of(looked, {}, 60.0).counters["0000:17:00.0", "nvlink_replay"] == 7


def test_a_link_that_tells_for_the_first_time_has_no_growth() -> None:
    """What one link had counted before it could be read at all is no growth either, and it was not missed."""
    looked = observe(History(), linked(1000, None), 0.0)
    assert history.last_heard(looked, linked(1000, None)) == {}
    looked = observe(looked, linked(1000, 1000), 15.0)
    assert past_of(looked, {}, 15.0).counters["0000:17:00.0", "nvlink_replay"] == 0


def test_what_is_gone_for_a_moment_keeps_its_history() -> None:
    """A device that is not there in some scans has its trails, samples and flaps when it is back."""
    looked = observe(observe(History(), NODE, 0.0), port("DOWN"), 15.0)
    away = observe(looked, Node(), 30.0)
    assert set(away.gone) == {"0000:17:00.0", "mlx5_0/1"} and set(away.gone.values()) == {30.0}
    away = observe(away, Node(), 3600.0)
    assert (away.counters, away.samples, away.downs_total) == (looked.counters, looked.samples, looked.downs_total)
    back = observe(away, NODE, 3620.0)
    assert back.gone == {} and back.downs_total == {"mlx5_0/1": 1} and back.counters == looked.counters


def test_what_is_gone_for_an_hour_is_forgotten() -> None:
    """Hot-plugging for years does not fill the memory: nothing is kept but that it was there."""
    looked = observe(observe(History(), NODE, 0.0), port("DOWN"), 15.0)
    for when in (30.0, 3629.0, 3630.0):
        assert when < 3630.0 or looked.counters
        looked = observe(looked, Node(), when)
    assert looked == History(
        best_rate_gbps={"mlx5_0/1": 400.0}, was_up=frozenset({"mlx5_0/1"}), seen_devices={"0000:17:00.0": "GPU"}
    )


def test_ports_that_were_there_are_bounded() -> None:
    """Of thousands of ports that came and went only those that are there are remembered to have been up."""
    many = frozenset(f"mlx5_{n}/1" for n in range(100, 5000))
    rates = dict.fromkeys(many, 400.0)
    looked = observe(History(was_up=many, up=many, best_rate_gbps=rates), NODE, 0.0)
    assert looked.was_up == looked.up == looked.best_rate_gbps.keys() == {"mlx5_0/1"}


def test_samples_are_bounded() -> None:
    """Forty looks at a GPU's link are kept, the newest."""
    looked = History()
    for n in range(100):
        looked = observe(looked, NODE._replace(gpus=(Gpu("g", samples=(LinkSample(2.5, n),)),)), float(n))
    assert [sample.width for sample in looked.samples["g"]] == list(range(60, 100))


def test_a_new_baseline_makes_the_machine_right() -> None:
    """After a new baseline nothing that is gone is missed any more."""
    looked = observe(History(seen_devices={"0000:99:00.0": "gpu"}, was_up=frozenset({"mlx5_9/1"})), NODE, 1.0)
    forgotten = observe(history.forget_missing(looked), NODE, 2.0)
    assert forgotten.seen_devices == {"0000:17:00.0": "GPU"}
    assert forgotten.was_up == {"mlx5_0/1"}


# --- the life of findings -----------------------------------------------------------------------------------------


def finding(code: str = "pcie-width-degraded", severity: str = CRITICAL, summary: str = "x8") -> Finding:
    return Finding(code, severity, "0000:17:00.0", summary, PEERS, "", (), "")


class Scans:
    """One scan after the other."""

    def __init__(self, grace: bool = False) -> None:
        self.settled = Settled({}, (), ())
        self.now = 1000.0
        self.grace = grace

    def see(self, *findings: Finding, unassessed: tuple[Unassessed, ...] = ()) -> list[tuple[str, str]]:
        self.now += 15
        self.settled = settle(self.settled.lives, findings, unassessed, self.now, 2, 2, self.grace)
        return [(change.kind, change.severity) for change in self.settled.changes]

    @property
    def shown(self) -> list[str]:
        return [found.severity for found in self.settled.findings]


def test_a_finding_is_raised_when_it_held_for_two_scans() -> None:
    """Not at the first sight; then once, dated from the first sight."""
    scans = Scans()
    assert scans.see(finding()) == []
    assert scans.shown == []
    assert scans.see(finding()) == [(RAISED, CRITICAL)]
    assert scans.see(finding(summary="x4")) == []
    assert scans.settled.findings[0].since == 1015.0
    assert scans.settled.findings[0].summary == "x4"


def test_a_finding_is_cleared_when_it_was_gone_for_two_scans() -> None:
    """One scan without it changes nothing that is shown."""
    scans = Scans()
    scans.see(finding())
    scans.see(finding())
    assert scans.see() == []
    assert scans.shown == [CRITICAL]
    assert scans.see(finding()) == []
    assert scans.see() == []
    assert scans.see() == [(CLEARED, CRITICAL)]
    assert scans.shown == []
    assert scans.settled.lives == {}


def test_what_flickers_is_never_raised() -> None:
    """Every other scan is not two in a row."""
    scans = Scans()
    for _ in range(5):
        assert scans.see(finding()) == []
        assert scans.see() == []


def test_a_change_of_severity_has_to_hold_as_well() -> None:
    """Worse for one scan is not worse; for two it is, said once, and since stays."""
    scans = Scans()
    scans.see(finding(severity=WARNING))
    scans.see(finding(severity=WARNING))
    assert scans.see(finding()) == []
    assert scans.shown == [WARNING]
    assert scans.see(finding()) == [(CHANGED, CRITICAL)]
    assert scans.shown == [CRITICAL]
    assert scans.settled.findings[0].since == 1015.0


def test_an_acceptance_and_its_end_are_told_once() -> None:
    """A finding that is accepted, or whose acceptance expires, changes what alerts say and so is logged."""
    accepted = finding()._replace(accepted=Acceptance("", "riser is wired x8"))
    scans = Scans()
    scans.see(finding())
    assert scans.see(finding()) == [(RAISED, CRITICAL)]
    assert scans.see(accepted) == [(ACCEPTED, CRITICAL)]
    assert scans.see(accepted) == []
    assert scans.see(finding()) == [(REOPENED, CRITICAL)]
    assert scans.see(finding()) == []


def test_what_cannot_be_judged_keeps_its_state() -> None:
    """A source that hangs does not clear what it had shown, for its subject or for the node as a whole."""
    for subject in ("0000:17:00.0", "node"):
        scans = Scans()
        scans.see(finding())
        scans.see(finding())
        for _ in range(5):
            open_ = Unassessed("pcie-width-degraded", subject, "no answer", CAUSE_TIMEOUT)
            assert scans.see(unassessed=(open_,)) == []
            assert scans.shown == [CRITICAL]
        scans.see()
        assert scans.see() == [(CLEARED, CRITICAL)]


def test_grace_after_boot_holds_back_what_comes_up_late() -> None:
    """Ports and drivers come up after the daemon, PCIe links before: only the former are held back."""
    scans = Scans(grace=True)
    for _ in range(3):
        scans.see(finding("port-down"), finding())
    assert [found.code for found in scans.settled.findings] == ["pcie-width-degraded"]
    scans.grace = False
    assert scans.see(finding("port-down"), finding()) == [(RAISED, CRITICAL)]


def test_the_clock_may_be_set() -> None:
    """When the wall clock is set, what began an hour ago still began an hour ago."""
    lives = {("a", "b"): Life(1000.0)}
    assert life.shifted(lives, 500.0)["a", "b"].since == 1500.0


# --- the state file -----------------------------------------------------------------------------------------------

KEPT = State(
    observe(observe(History(), NODE, 1.0), port("DOWN", 4), 20.0),
    {("pcie-width-degraded", "0000:17:00.0"): Life(1e9, 3, 0, CRITICAL, CRITICAL), ("a", "b"): Life(1.0, 1)},
)


def test_state_survives_a_restart(tmp_path: Path) -> None:
    """What was saved is loaded again, in the same boot; in another one nothing is."""
    told: list[str] = []
    StateFile(str(tmp_path), "boot", told.append).save(KEPT)
    assert StateFile(str(tmp_path), "boot", told.append).load(100.0) == KEPT
    assert StateFile(str(tmp_path), "another", told.append).load(100.0) == State()
    assert told == []


def test_without_a_directory_nothing_is_kept() -> None:
    """No state directory: nothing is written, nothing is told."""
    file = StateFile("", "boot", lambda text: pytest.fail(text))
    file.save(KEPT)
    assert file.load(1.0) == State()
    assert file.good is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 2, "boot_id": "boot"}',
        b'{"format": 1, "boot_id": "boot"}',
        encode(KEPT, "boot")[:-20],
        encode(KEPT, "boot").replace(b'"counters":[[', b'"counters":[[[],'),
        encode(KEPT, "boot").replace(b"20.0", b"2e30"),
        encode(KEPT, "boot").replace(b"20.0", b"NaN"),
    ],
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, text: bytes) -> None:
    """A damaged file is kept under another name, told once, and the daemon starts fresh and saves again."""
    told: list[str] = []
    (tmp_path / "state.json").write_bytes(text)
    file = StateFile(str(tmp_path), "boot", told.append)
    assert file.load(100.0) == State()
    assert len(told) == 1
    assert (tmp_path / "state.json.damaged").read_bytes() == text
    file.save(KEPT)
    assert StateFile(str(tmp_path), "boot", told.append).load(100.0) == KEPT
    assert len(told) == 1


def test_a_state_of_the_future_is_damaged(tmp_path: Path) -> None:
    """Times of CLOCK_BOOTTIME in the same boot are past: others mean that the file is not this boot's."""
    with pytest.raises(ValueError, match="not past"):
        decode(json.loads(encode(KEPT, "boot")), 10.0)


KILLED = """
import os, sys
from gpu_topo.agent.state import StateFile
from tests.test_history import KEPT
file = StateFile(sys.argv[1], "boot", print)
step = int(sys.argv[2])
calls = 0
def watch(event, args):
    global calls
    if event in ("open", "os.rename", "os.listdir"):
        calls += 1
        if calls == step:
            os.kill(os.getpid(), 9)
file.save(KEPT)
def fsync(fd, real=os.fsync):
    if step < 0:
        os.kill(os.getpid(), 9)
    real(fd)
os.fsync = fsync
sys.addaudithook(watch)
file.save(KEPT._replace(lives={}))
"""


@pytest.mark.parametrize("step", [-1, 1, 2, 3])
def test_kill_in_the_middle_of_a_write(tmp_path: Path, step: int) -> None:
    """Killed before, while or after it writes, the file is the old or the new one, whole; leftovers are swept."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(step)], check=False, cwd=Path(__file__).parents[1]
    )
    assert done.returncode in (0, -signal.SIGKILL)
    told: list[str] = []
    loaded = StateFile(str(tmp_path), "boot", told.append).load(100.0)
    assert loaded in (KEPT, KEPT._replace(lives={}))
    assert told == []
    assert os.listdir(tmp_path) == ["state.json"]


def failing(save: Callable[[], None], file: StateFile, told: list[str]) -> None:
    for _ in range(3):
        save()
    assert len(told) == 1
    assert "cannot be written" in told[0]
    assert file.good is False


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    """A disk that takes no more is told once, the old file stays whole, and writing goes on when there is room."""
    told: list[str] = []
    file = StateFile(str(tmp_path), "boot", told.append)
    file.save(State())
    before = (tmp_path / "state.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        failing(lambda: file.save(KEPT), file, told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert (tmp_path / "state.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["state.json"]
    file.save(KEPT)
    assert file.good
    assert told[1:] == [f"{tmp_path}/state.json can be written again"]


def test_a_directory_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    """A state directory that is no directory, or read-only, is told once and nothing else stops."""
    (tmp_path / "file").write_text("")
    told: list[str] = []
    file = StateFile(str(tmp_path / "file"), "boot", told.append)
    failing(lambda: file.save(KEPT), file, told)


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    """The disk is left alone while the state stays the same."""
    file = StateFile(str(tmp_path), "boot", print)
    file.save(KEPT)
    first = os.stat(tmp_path / "state.json").st_ino
    file.save(KEPT)
    assert os.stat(tmp_path / "state.json").st_ino == first
