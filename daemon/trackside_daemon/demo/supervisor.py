"""`trackside demo`: start the daemon and the training, and report from `/metrics` and the API."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import urllib.request
from contextlib import closing
from ipaddress import ip_address
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import URLError
from uuid import uuid4

from trackside_daemon.demo.options import DemoOptions, introduction
from trackside_daemon.demo.stop_signal import StopRequest, stop_on_signals
from trackside_daemon.demo.troubles import TROUBLES
from trackside_daemon.ingest.endpoint import push_path, token_path
from trackside_daemon.linux.child_process import ChildProcess, stop_all
from trackside_daemon.model.families import alerts
from trackside_daemon.model.families.training import PREFIX
from trackside_daemon.model.text import percent
from trackside_daemon.web.http.address import AddressError, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside_daemon.demo.troubles import DemoTrouble
    from trackside_daemon.web.settings import WebSection


RankValues = dict[str, float]
"""Values of a rank's series without labels other than run and rank, by name without ``trackside_training_``."""


LARGE = 1e6


def progress(ranks: Sequence[RankValues]) -> str:
    """Return a line of progress: step and pace of the first rank, means over all ranks of the rest."""
    if not ranks or "step" not in ranks[0]:
        return "  the training is starting"
    first = ranks[0]
    steps = first.get("step_duration_seconds_count", 0.0)
    seconds = first.get("step_duration_seconds_sum", 0.0)
    pace = f"{1000 * seconds / steps:6.1f} ms per step" if steps else ""
    loss = format_number(mean(ranks, "loss"))
    norm = format_number(mean(ranks, "grad_norm"))
    return f"  step {first['step']:6.0f}   loss {loss:>6}   grad_norm {norm:>6}   {pace}"


def summary(ranks: Sequence[RankValues], seconds: float) -> str:
    """Return the last line: steps of the first rank, the mean loss, totals over all ranks of the rest."""
    if not ranks or "loss" not in ranks[0]:
        return f"\n  The demo ended after {seconds:.0f} s, before the first step."

    def total(name: str) -> float:
        return sum(values.get(name, 0.0) for values in ranks)

    of_ranks = f" of {len(ranks)} ranks" if len(ranks) > 1 else ""
    return (
        f"\n  {ranks[0].get('steps_total', 0):.0f} steps{of_ranks} and {total('tokens_total'):,.0f} tokens"
        f" in {seconds:.0f} s; last loss {format_number(mean(ranks, 'loss'))};"
        f" {total('client_pushes_total'):.0f} pushes, {total('client_dropped_total'):.0f} values dropped,"
        f" sending took {percent(total('client_overhead_seconds_total') / seconds / len(ranks))} of a CPU core per rank."
    )


def format_number(number: float) -> str:
    """Return a short text even of a loss that grows towards infinity."""
    return f"{number:.3f}" if abs(number) < LARGE else f"{number:.4g}"


def mean(ranks: Sequence[RankValues], name: str) -> float:
    """Return the mean over the ranks that have the series; 0 if none has."""
    values = [rank[name] for rank in ranks if name in rank]
    return sum(values) / len(values) if values else 0.0


MIN_STEPS = 100  # steps that a detector needs to learn the usual values, before it can find unusual ones

TRAINING = "trackside_daemon.demo.train"
SIMULATED = "trackside_daemon.demo.simulated"
SETTINGS = {
    # The training shares its one core with the rest of the machine, so slower steps are no finding.
    "TRACKSIDE_ALERTS__OFF": "ThroughputRegression@demo,SlowStep@demo",
    # A demo may run for days, and its history may be in memory (/tmp).
    "TRACKSIDE_STORAGE__RETENTION__SIZE": "1GiB",
}
# Environment for a daemon without TLS and passwords, which the demo could not use.
NO_WEB_CONFIG = {"TRACKSIDE_WEB__CONFIG__FILE": ""}
READY_SECONDS = 30.0
REPORT_SECONDS = 2.0
_SERIES = re.compile(PREFIX + r'(\w+)\{rank="(\d+)",run="demo"\} (\S+)')

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores $http_proxy


class _Demo(NamedTuple):
    """Push endpoints, web address, history directory and options of a demo."""

    endpoints: Sequence[str]
    address: str
    history: str
    options: DemoOptions


def run(web: WebSection, endpoints: Sequence[str], options: DemoOptions) -> int:
    """Run until the training ends or Ctrl-C.

    Args:
        web: Settings of the daemon's web server.
        endpoints: Endpoints for pushes; empty for the default.
        options: Options of the command.

    Returns:
        The exit status: 0 if stopped on request, the daemon's if it cannot start, else the training's.
    """
    stop = stop_on_signals()
    try:
        listens, address = _free_address(web)
    except AddressError as error:
        sys.stderr.write(f"trackside: {str(error).replace('--web.listen-address', 'TRACKSIDE_WEB__LISTEN_ADDRESS')}\n")
        return 2
    settings = SETTINGS | dict(TROUBLES[options.trouble].settings if options.trouble else {})
    if not options.ranks:  # simulated ranks have nothing to profile
        settings["TRACKSIDE_CAPTURE__AUTO"] = "true"
    if options.trouble:  # the demo itself prints the alerts
        settings["TRACKSIDE_ALERTS__SINKS__LOG__SEVERITY"] = "off"
    for name, value in settings.items():
        os.environ.setdefault(name, value)  # the user's own value has precedence
    # One list, to which `_run` adds the ranks, so that every child is stopped whatever fails.
    children: list[ChildProcess] = []
    # A temporary history keeps the demo out of the history of real runs.
    with TemporaryDirectory(prefix="trackside-demo-") as history:
        # After a demo that was killed, no other daemon should find its spool.
        os.environ["TRACKSIDE_SPOOL"] = history
        children.append(_start_daemon(listens, history, options))
        try:
            status = _run(_Demo(endpoints, address, history, options), children, stop)
        finally:
            stop_all(children)
    if stop.is_set():
        return 0
    return 1 if status < 0 else status  # negative after a signal that the demo did not send


def _start_daemon(listens: str, history: str, options: DemoOptions) -> ChildProcess:
    level = "error" if options.trouble else "warning"
    flags = [f"--web.listen-address={listens}", f"--log.level={level}", f"--storage.path={history}"]
    if count := options.simulated_gpus():
        flags.append(f"--collector.gpu.simulate={count}")
    # Mute, because the demo itself prints the link to the dashboard.
    return ChildProcess("trackside_daemon", "daemon", *flags, environ=NO_WEB_CONFIG, mute=True)


def _run(demo: _Demo, children: list[ChildProcess], stop: StopRequest) -> int:
    """Train and report until the training or the daemon ends, then print the summary; return the exit status."""
    daemon, address = children[0], demo.address
    if not _is_ready(address, daemon, stop):
        if daemon.status is None and not stop.is_set():
            _print(f"trackside: the daemon did not answer at http://{address}/-/ready within {READY_SECONDS:g} s")
            daemon.stop()
            return 1
        return daemon.stop()
    _print(introduction(address, _token(demo.endpoints), demo.options))
    start = time.monotonic()
    ranks = _start_ranks(demo)
    children += ranks
    stage = _trouble_stage(demo, ranks)
    # Once the trouble has begun, the demo outlives the training, so that the user can examine the alerts.
    while (stage.begun or _is_training(ranks)) and daemon.status is None and not stop.wait(REPORT_SECONDS):
        _report(address, stage, training=_is_training(ranks))
    if daemon.status is not None and not stop.is_set():
        _print(f"\n  The daemon ended unexpectedly, with status {daemon.status}.")
    # The signal goes to all of them before the first wait, because they wait for each other.
    for rank in ranks:
        rank.send(signal.SIGTERM)
    status = max((rank.stop() for rank in ranks), key=abs)
    _print(summary(_scrape(address), time.monotonic() - start))
    return daemon.stop() or status


def _report(address: str, stage: TroubleStage, *, training: bool) -> None:
    values = _scrape(address)
    if training:
        _print(progress(values))
    texts = list(stage.poll(values[0].get("step", 0.0) if values else 0.0))
    if texts:
        _print("\n" + "\n".join(texts))


def _is_training(ranks: Sequence[ChildProcess]) -> bool:
    """Return whether the training runs; once a rank has failed, the others only wait for it."""
    return any(rank.status is None for rank in ranks) and not any(rank.status for rank in ranks)


def _start_ranks(demo: _Demo) -> list[ChildProcess]:
    options = demo.options
    flags = ["--steps", str(options.steps)] if options.steps else []
    flags += [f"--trouble={options.trouble}", f"--meet={demo.history}/ranks"]
    count = options.processes
    environ = _client_environ(demo.endpoints)
    if options.ranks or count > 1:
        environ |= {"TRACKSIDE_RUN_ID": uuid4().hex, "WORLD_SIZE": str(count)}
    return [
        ChildProcess(SIMULATED, *flags, environ=environ | _rank_environ(rank, count))
        if options.ranks
        else ChildProcess(TRAINING, *flags, environ=environ | ({"RANK": str(rank)} if count > 1 else {}))
        for rank in range(count)
    ]


def _rank_environ(rank: int, count: int) -> dict[str, str]:
    """Return the environment that a launcher gives one of several ranks on a machine, each with its GPU."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "CUDA_VISIBLE_DEVICES": str(rank),
    }


def _trouble_stage(demo: _Demo, ranks: Sequence[ChildProcess]) -> TroubleStage:
    token = _token(demo.endpoints)

    def get(path: str) -> str | None:
        return _get(demo.address, path, token)

    return TroubleStage(TROUBLES.get(demo.options.trouble), ranks, demo.options.after, get, demo.history)


def _free_address(web: WebSection) -> tuple[str, str]:
    """Return the address for the daemon to listen on, and the address to reach it at.

    The check comes before the daemon starts, so that another server's answers are never mistaken for the daemon's.

    Raises:
        AddressError: The address is invalid or in use, or would let in others in spite of the web configuration.
    """
    configured = web.listen_address
    with closing(listen(configured)) as listener:
        host, port = listener.getsockname()[:2]
    if web.config.file and not ip_address(host).is_loopback:
        raise AddressError(
            f"web.listen-address: {configured}: the demo has no TLS and no passwords, so TRACKSIDE_WEB__CONFIG__FILE "
            "would not protect it; set --web.listen-address=127.0.0.1:21790"
        )
    listens = f"{configured.rpartition(':')[0]}:{port}"
    return listens, f"127.0.0.1:{port}" if ip_address(host).is_unspecified else listens


def _is_ready(address: str, daemon: ChildProcess, stop: StopRequest) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while daemon.status is None and time.monotonic() < deadline:
        if _get(address, "/-/ready") is not None:
            return True
        if stop.wait(0.1):
            return False
    return False


def _token(endpoints: Sequence[str]) -> str:
    return token_path(endpoints, os.environ, os.getuid()).read_text().strip()


def _scrape(address: str) -> list[RankValues]:
    """Return the demo's series by rank, without those that have labels other than run and rank."""
    page = _get(address, "/metrics?collect[]=training") or ""
    ranks: dict[int, RankValues] = {}
    for match in filter(None, map(_SERIES.fullmatch, page.splitlines())):
        ranks.setdefault(int(match[2]), {})[match[1]] = float(match[3])
    return [ranks[rank] for rank in sorted(ranks)]


def _client_environ(endpoints: Sequence[str]) -> dict[str, str]:
    """Return the environment that leads the training to this demo's daemon, without the user's client settings."""
    endpoint = next(iter(endpoints), f"ipc://{push_path((), os.environ, os.getuid())}")
    unset = ("TRACKSIDE_RUN_ID", "TRACKSIDE_RUN_NAME", "TRACKSIDE_TAGS", "TRACKSIDE_DISABLED", "RANK", "WORLD_SIZE")
    return {**dict.fromkeys(unset, ""), "TRACKSIDE_FLUSH_TIMEOUT": "2", "TRACKSIDE_ENDPOINT": endpoint}


def _get(address: str, path: str, token: str = "") -> str | None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _opener.open(urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=5) as response:
            return str(response.read().decode())
    except (URLError, OSError):
        return None


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class TroubleStage:
    """Starts the trouble in one rank, and reports the daemon's alerts after it.

    Args:
        trouble: Trouble to start; None for none.
        ranks: Ranks of the training; the last one gets the trouble.
        after: Seconds of training before the trouble.
        get: Returns a page of the API by its path, or None if there is no answer.
        history: Directory of the history of the demo's daemon.
    """

    def __init__(
        self,
        trouble: DemoTrouble | None,
        ranks: Sequence[ChildProcess],
        after: float,
        get: Callable[[str], str | None],
        history: str,
    ) -> None:
        self.begun = False
        self._trouble = trouble
        self._ranks = ranks
        self._after = after
        self._get = get
        self._history = history
        self._first_step_at: float | None = None
        self._begun_at = 0.0
        self._severities: dict[str, str] = {}
        self._has_expected_alert = False

    def poll(self, steps: float) -> Iterator[str]:
        """Yield the texts to print, given the number of steps so far."""
        trouble = self._trouble
        now = time.monotonic()
        if trouble is None:
            return
        if steps and self._first_step_at is None:
            self._first_step_at = now
        if not self.begun:
            if self._first_step_at is not None and now - self._first_step_at >= self._after and steps >= MIN_STEPS:
                yield self._begin(trouble)
            return
        for alert in self._read_alerts():
            yield from self._report(trouble, alert)

    def _begin(self, trouble: DemoTrouble) -> str:
        self.begun = True
        self._begun_at = time.time()
        self._ranks[-1].send(signal.SIGUSR1)
        return f"  Now it goes wrong: {trouble.description.format(last=len(self._ranks) - 1)}.\n"

    def _report(self, trouble: DemoTrouble, alert: dict[str, Any]) -> Iterator[str]:
        """Yield a new alert or severity, and after the first expected alert, how to see more."""
        name, severity, summary = alert["alert"], alert["severity"], alert["summary"]
        before = self._severities.get(alert["id"])
        if severity in ("info", before):
            return
        self._severities[alert["id"]] = severity
        if before is not None:
            yield f"  {name} is now {severity}:\n    {summary}\n"
            return
        delay = max(0.0, alert["started"] - self._begun_at)
        yield f"  Alert {name} ({severity}), {delay:.1f} s after it went wrong:\n    {summary}\n"
        if name in trouble.alerts and not self._has_expected_alert:
            self._has_expected_alert = True
            yield (
                f"    details      trackside alerts show {alert['id']} --storage.path={self._history}\n"
                f"    all alerts   trackside alerts --storage.path={self._history}\n"
                f"    or           the dashboard, and {alerts.FIRING.name} on /metrics\n\n"
                "  Run these commands in another terminal: the demo runs until Ctrl-C, and then deletes its history.\n"
            )

    def _read_alerts(self) -> list[dict[str, Any]]:
        page = self._get("/api/v1/alerts?limit=100")
        return list(json.loads(page)["alerts"]) if page else []
