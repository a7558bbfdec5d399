"""gpu-topo serve: looks at the machine on its own clock and on events, and serves what it last saw.

One thread serves and waits; scans run beside it, one at a time, so that a source that hangs never stops a scrape.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from gpu_topo import __version__
from gpu_topo.agent import config as configuration
from gpu_topo.agent import inspect
from gpu_topo.agent.auth import Guard
from gpu_topo.agent.baseline import BaselineError, Saved, load_saved, stamp
from gpu_topo.agent.config import Config, ConfigError
from gpu_topo.agent.history import forget_missing
from gpu_topo.agent.http import Server
from gpu_topo.agent.intake import no_tree
from gpu_topo.agent.life import CLEARED, Change
from gpu_topo.agent.log import Log
from gpu_topo.agent.loop import Loop
from gpu_topo.agent.notify import Notify, watchdog_seconds
from gpu_topo.agent.policy import baseline_path, rules_policy
from gpu_topo.agent.site import Scanned, Site
from gpu_topo.agent.state import State, StateFile
from gpu_topo.agent.thrift import Thrift
from gpu_topo.agent.udev import Events
from gpu_topo.agent.watch import Memory, Seen, Settings, boot_clock, guarded, look
from gpu_topo.agent.web_config import Watched
from gpu_topo.exporters.prometheus import Runtime
from gpu_topo.model.facts import ABSENT, OK, PARTIAL
from gpu_topo.model.finding import CRITICAL, WARNING, Report
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Refusal, is_readable_tree
from gpu_topo.source.kept import Kept

_SECOND_LOOK = 2.0  # after the first scan, so that what is wrong already shows soon
_EVENT_GAP = 3.0  # between scans that events ask for: a storm of events is one piece of news
_SAVE_SECONDS = 60.0
# What only a new start can change.
_FIXED = ("root", "web_listen_address", "state_directory", "scan_events")


class _Done(NamedTuple):
    """What the scanning thread hands back: what it saw, rendered as far as was asked for; or a bug."""

    seen: Seen | None
    scanned: Scanned | None
    rendered: Mapping[str, bytes | None]
    error: str = ""


class Daemon:
    """Everything that runs. `load` gives the configuration, at the start and at each SIGHUP."""

    def __init__(self, load: Callable[[], Config], log: Log | None = None, notify: Notify | None = None) -> None:
        """Raises ConfigError, ListenError or BaselineError: it starts whole or not at all."""
        self._thrift = Thrift()
        self._load = load
        self.config = load()
        if not is_readable_tree(self.config.root):
            raise ConfigError(no_tree(self.config.root))
        self.log = log or Log(self.config.log_level)
        self.notify = notify or Notify()
        self.loop = Loop()
        self.source = Kept(self.config.root)
        self._collectors = guarded()
        self._web = Watched(self.config.web_config_file, self.loop.clock, self.log.warning)
        self._saved = self._read_baseline()
        self._state = StateFile(self.config.state_directory, self._boot_id(), self.log.warning)
        kept = self._state.load(boot_clock())
        self._memory = Memory(kept.history, kept.lives, kept.clock_offset)
        self.site = Site(self.loop, __version__, self._problem, self._page_failed)
        self._guard = Guard(self.loop, lambda: self._web.now(), self.site.respond)
        self.server = Server(self.loop, self._guard.respond, lambda: self._web.now().gate, failed=self._page_failed)
        self.scans = 0
        self._scanning = False
        self._again = False
        self._planned = 0  # the number of the plan in force: what was planned before is void
        self._due = float("inf")  # when it is for
        self._begun = self._last = self.loop.clock()
        self._saved_at = float("-inf")
        self._failure = ""
        self._not_kept = ""
        self._reload_ok = True
        self._reloaded_at = time.time()
        self._statuses: dict[str, str] = {}
        self._events: Events | None = None
        self.addresses = self.server.listen(self.config.web_listen_address)

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until stop()."""
        gc.enable()
        for address in self.addresses:
            scheme = "https" if self._web.now().gate.tls else "http"
            self.log.info("serving", address=str(address), scheme=None if address.path else scheme)
        if self.config.scan_events and self.source.live:
            self._events = Events(self.loop, self._event, self.log.info)
        self._scan()
        try:
            self.loop.run()
        finally:
            self.notify("STOPPING=1")
            self._close()
            self.log.info("stopped", scans=self.scans)

    def stop(self) -> None:
        """From a signal handler or another thread: finish cleanly."""
        self.loop.soon(self.loop.stop)

    def reload(self) -> None:
        """From a signal handler or another thread: read the configuration again."""
        self.loop.soon(self._reload)

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
        self.server.close()
        if not self._scanning:  # else its thread may still be reading
            self._save(self._memory)
            self.source.successor().close()
        self.loop.close()

    # --- scanning --------------------------------------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """Time between scans: never so long that systemd's watchdog, which only finished scans feed, would strike."""
        watchdog = watchdog_seconds()
        return min(self.config.scan_interval, watchdog / 2) if watchdog else self.config.scan_interval

    @property
    def timeout(self) -> float:
        """A scan's deadline, which the watchdog must not outrun either."""
        watchdog = watchdog_seconds()
        return min(self.config.scan_timeout, watchdog / 2) if watchdog else self.config.scan_timeout

    def _plan(self, when: float) -> None:
        """Scan at a time of the loop's clock, and not at the one that was planned before."""
        self._planned += 1
        self._due = when
        number = self._planned

        def due() -> None:
            if number == self._planned:
                self._scan()

        self.loop.at(when, due)

    def _event(self) -> None:
        self.source.forget()
        if self._scanning:
            self._again = True
            return
        # An event brings the next scan nearer and never puts it off: a steady stream of them must not stop the scans.
        when = max(self.loop.clock() + self.config.scan_settle, self._begun + _EVENT_GAP)
        if when < self._due:
            self._plan(when)

    def _scan(self) -> None:
        if self._scanning:
            self._again = True
            return
        self._scanning, self._again = True, False
        self._due = float("inf")
        self._begun = self.loop.clock()
        self._refresh_baseline()
        today = time.strftime("%Y-%m-%d", time.gmtime())
        settings = Settings(
            rules_policy(self.config, today, self._saved.accepted),
            self.timeout,
            self.config.scan_raise_after,
            self.config.scan_clear_after,
            self.config.scan_boot_grace,
            self._saved.document,
        )
        threading.Thread(target=self._work, args=(settings, self._memory), name="scan", daemon=True).start()

    def _work(self, settings: Settings, memory: Memory) -> None:
        """In the scanning thread."""
        try:
            self.source = self.source.successor()
            self.source.begin()
            seen = look(self.source, settings, memory, self._collectors)
            if any(device.function.answers is False for device in seen.report.node.devices.values()):
                self.source.successor().forget()  # all ones are not what the device is, should it answer again
            scanned = self._scanned(seen)
            done = _Done(seen, scanned, self.site.prepare(scanned))
            self._keep(seen)
        except Exception:
            done = _Done(None, None, {}, traceback.format_exc())
        self.loop.soon(lambda: self._finished(done))

    def _keep(self, seen: Seen) -> None:
        """Write down what a scan brought, now and then. A bug here costs the scan nothing and is told once."""
        # What could not be written is tried again at once: there may be room by now.
        due = self._state.good is False or self.loop.clock() - self._saved_at >= _SAVE_SECONDS
        if not seen.changes and not due:
            return
        self._saved_at = self.loop.clock()
        try:
            self._save(seen.memory)
        except Exception:
            error = traceback.format_exc()
            if error != self._not_kept:
                self.loop.soon(lambda: self.log.error("the state was not kept, please report it", error=error))
            self._not_kept = error
        else:
            self._not_kept = ""

    def _save(self, memory: Memory) -> None:
        # Whole seconds: the clocks drift by less, and a state that stays the same is not written again.
        offset = None if memory.clock_offset is None else round(memory.clock_offset)
        self._state.save(State(memory.history, memory.lives, offset))

    def _finished(self, done: _Done) -> None:
        self._scanning = False
        now = self.loop.clock()
        if done.seen is None or done.scanned is None:
            level = "debug" if done.error == self._failure else "error"  # the same bug at every scan is said once
            self.log(level, "a scan failed, please report it", error=done.error)
            self._failure = done.error
        else:
            self.scans += 1
            self._last = now
            self._failure = ""
            self._memory = done.seen.memory
            self.site.publish(done.scanned, done.rendered)
            self._log_changes(done.seen)
            if self.scans == 1:
                self.notify("READY=1")
                gc.collect()
                gc.freeze()  # what is loaded by now stays
                self._thrift.give_back()
            self.notify("WATCHDOG=1", f"STATUS={done.scanned.summary}")
        if self._again:
            self._plan(max(now + self.config.scan_settle, self._begun + _EVENT_GAP))
        else:
            self._plan(max(now, self._begun + (min(_SECOND_LOOK, self.interval) if self.scans == 1 else self.interval)))

    def _scanned(self, seen: Seen) -> Scanned:
        report = seen.report
        runtime = Runtime(
            last_scan=seen.ended,
            scan_seconds=seen.seconds,
            scans=self.scans + 1,
            source_age=seen.source_age,
            port_flaps=seen.port_flaps,
            last_heard=seen.last_heard,
            config_reload_ok=self._reload_ok and self._web.good,
            config_reload_time=self._reloaded_at,
            state_write_ok=self._state.good,
        )
        per_link = self.config.metrics_nvlink_per_link
        interval = max(5, round(self.interval))

        def metrics() -> bytes:
            from gpu_topo.exporters import prometheus

            return prometheus.render(report, False, runtime, per_link)

        def openmetrics() -> bytes:
            from gpu_topo.exporters import prometheus

            return prometheus.render(report, True, runtime, per_link)

        def as_json() -> bytes:
            from gpu_topo.exporters import json

            return json.render(report).encode()

        def picture() -> bytes:
            from gpu_topo.exporters import html

            return html.render(report, interval).encode()

        return Scanned(metrics, openmetrics, as_json, picture, summary_of(report), inspect.unread(report.node))

    # --- telling ---------------------------------------------------------------------------------------------------

    def _log_changes(self, seen: Seen) -> None:
        for change in seen.changes:
            self._log_change(change)
        for status in seen.report.node.sources:
            before = self._statuses.get(status.name, OK)
            self._statuses[status.name] = status.status
            good, was_good = (word in (OK, PARTIAL, ABSENT) for word in (status.status, before))
            if was_good and not good:
                self.log.warning(f"source {status.name} {status.status}: {status.detail}", source=status.name)
            elif good and not was_good:
                self.log.info(f"source {status.name} answers again", source=status.name)

    def _log_change(self, change: Change) -> None:
        finding = change.finding
        accepted = finding is not None and finding.accepted is not None
        level = {CRITICAL: "error", WARNING: "warning"}.get(change.severity, "info")
        if change.kind == CLEARED or accepted:
            level = "info"
        what = finding.summary if finding is not None else f"{change.code} on {change.subject}"
        self.log(
            level,
            f"{change.kind}: {what}",
            code=change.code,
            subject=change.subject,
            severity=change.severity,
            since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(change.since)),
            accepted="yes" if accepted else None,
        )

    def _problem(self) -> str:
        """Why this daemon is not healthy, "" where it is."""
        waited = self.loop.clock() - self._last
        if waited > 3 * self.interval + self.timeout:
            return f"no scan finished for {waited:.0f} s"
        return ""

    def _page_failed(self, page: str, error: Exception) -> None:
        told = "".join(traceback.format_exception(error))
        self.log.error("a page failed, please report it", page=page, error=told)

    # --- configuration and baseline --------------------------------------------------------------------------------

    def _reload(self) -> None:
        self.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            new = self._load()
            web = self._web
            if new.web_config_file != self.config.web_config_file:
                web = Watched(new.web_config_file, self.loop.clock, self.log.warning)
            elif not web.reload():
                raise ConfigError("the web configuration is wrong, see above")
        except ConfigError as error:
            self._reload_ok = False
            self.log.error(f"configuration not reloaded, the old one stays in force: {error}")
        else:
            for field in _FIXED:
                if getattr(new, field) != getattr(self.config, field):
                    key = next(key.name for key in configuration.KEYS if key.field == field)
                    self.log.warning("changed, and takes effect at the next start", key=key)
            # They stay in force, too: the path of the baseline follows from the state directory.
            self.config = new._replace(**{field: getattr(self.config, field) for field in _FIXED})
            self._web = web
            self.log.level = new.log_level
            self._reload_ok = True
            self._reloaded_at = time.time()
            self.log.info("configuration reloaded", file=new.source)
        self.notify("READY=1")
        self.source.forget()
        self._scan()

    def _boot_id(self) -> str:
        answer = self.source.read("/proc/sys/kernel/random/boot_id")
        return "" if isinstance(answer, Refusal) else answer.decode("ascii", "replace").strip()

    def _read_baseline(self) -> Saved:
        return load_saved(baseline_path(self.config))

    def _refresh_baseline(self) -> None:
        """A new baseline says that the machine is right as it is now."""
        path = baseline_path(self.config)
        if stamp(path) == self._saved.stamp and path == self._saved.path:
            return
        try:
            self._saved = self._read_baseline()
        except BaselineError as error:
            self._saved = self._saved._replace(stamp=stamp(path), path=path)
            self.log.error(f"baseline not read, the old one stays in force: {error}")
            return
        self.log.info("baseline read", file=path, saved_at=self._saved.document.get("saved_at"))
        self._memory = self._memory._replace(history=forget_missing(self._memory.history))


def summary_of(report: Report) -> str:
    """One line: the verdict, how many findings of which severity, and what could not be read."""
    counts: dict[str, int] = {}
    for finding in report.findings:
        if finding.accepted is None:
            counts[finding.severity] = counts.get(finding.severity, 0) + 1
    words = ", ".join(f"{number} {severity}" for severity, number in counts.items())
    words = "; ".join(filter(None, (words, inspect.unread(report.node))))
    return f"{report.verdict}: {words}" if words else report.verdict


def serve(load: Callable[[], Config], **parts: Any) -> int:
    """Run the daemon until SIGTERM or SIGINT; SIGHUP reloads. The exit status. Raises what Daemon raises."""
    daemon = Daemon(load, **parts)
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    signal.signal(signal.SIGINT, lambda *_: daemon.stop())
    signal.signal(signal.SIGHUP, lambda *_: daemon.reload())
    daemon.run()
    return 0
