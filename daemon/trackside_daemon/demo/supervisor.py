"""`trackside demo`: the daemon and the training beside it, and what `/metrics` says of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
from contextlib import closing
from ipaddress import ip_address
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import URLError
from uuid import uuid4

from trackside_daemon.demo.messages import Numbers, introduction, report, summary
from trackside_daemon.demo.stop_signal import Stop, stopped_by_signals
from trackside_daemon.demo.trouble_stage import Staging
from trackside_daemon.demo.troubles import TROUBLES
from trackside_daemon.ingest.endpoint import push_path, token_path
from trackside_daemon.linux.child_process import ChildProcess, stop_all
from trackside_daemon.web.http.address import AddressError, listen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.demo.options import Wanted
    from trackside_daemon.web.settings import WebSection

TRAINING, SIMULATED = "trackside_daemon.demo.train", "trackside_daemon.demo.simulated"
SETTINGS = {
    # It shares its one core with whatever else the machine does: that its steps take longer then is no news.
    "TRACKSIDE_ALERTS__OFF": "ThroughputRegression@demo,SlowStep@demo",
    # It may be left alone for days, and its history may lie in memory.
    "TRACKSIDE_STORAGE__RETENTION__SIZE": "1GiB",
}
OPEN = {"TRACKSIDE_WEB__CONFIG__FILE": ""}
"""The demo asks its daemon without TLS and password."""
READY_SECONDS = 30.0
REPORT_SECONDS = 2.0
_LINE = re.compile(r'trackside_training_(\w+)\{rank="(\d+)",run="demo"\} (\S+)')

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever $http_proxy says


class _Show(NamedTuple):
    """What is shown, where, and with what history."""

    endpoints: Sequence[str]
    address: str
    history: str
    wanted: Wanted


def run(web: WebSection, endpoints: Sequence[str], wanted: Wanted) -> int:
    """Run until the training ends or Ctrl-C.

    Args:
        web: Where the daemon will listen.
        endpoints: Where it will accept pushes; empty for the default.
        wanted: What is to be shown.

    Returns:
        The exit status: 0 when stopped as asked, the daemon's when it cannot start, else the training's.
    """
    stopped = stopped_by_signals()
    try:
        listens, address = _free_address(web)
    except AddressError as error:
        sys.stderr.write(f"trackside: {str(error).replace('--web.listen-address', 'TRACKSIDE_WEB__LISTEN_ADDRESS')}\n")
        return 2
    simulated = [f"--collector.gpu.simulate={count}"] if (count := wanted.simulated_gpus()) else []
    for name, value in (SETTINGS | dict(TROUBLES[wanted.trouble].settings if wanted.trouble else {})).items():
        os.environ.setdefault(name, value)
    level = "error" if wanted.trouble else "warning"  # what fires is said here
    children: list[ChildProcess] = []
    with TemporaryDirectory(prefix="trackside-demo-") as history:  # apart from that of real runs
        os.environ["TRACKSIDE_SPOOL"] = history  # nor is anything of a demo that was killed a later daemon's to take
        flags = [f"--web.listen-address={listens}", f"--log.level={level}", f"--storage.path={history}", *simulated]
        children.append(
            ChildProcess("trackside_daemon", "daemon", *flags, environ=OPEN, mute=True)
        )  # its link is said here
        try:
            status = _run(_Show(endpoints, address, history, wanted), children, stopped)
        finally:
            stop_all(children)
    if stopped.is_set():
        return 0
    return 1 if status < 0 else status  # a signal that nobody here sent


def _run(show: _Show, children: list[ChildProcess], stopped: Stop) -> int:
    """Train and report until the training ends; whoever ends first, the last word is a summary."""
    daemon, address = children[0], show.address
    if not _is_ready(address, daemon, stopped):
        if daemon.status is None and not stopped.is_set():
            _say(f"trackside: the daemon did not answer at http://{address}/-/ready within {READY_SECONDS:g} s")
            daemon.stop()
            return 1
        return daemon.stop()
    _say(introduction(address, _token(show.endpoints), show.wanted))
    begun = time.monotonic()
    ranks = _start(show)
    children += ranks
    staging = _staged(show, ranks)
    while (staging.begun or _trains(ranks)) and daemon.status is None and not stopped.wait(REPORT_SECONDS):
        _look(address, staging, trains=_trains(ranks))
    if daemon.status is not None and not stopped.is_set():
        _say(f"\n  The daemon ended by itself, with status {daemon.status}.")
    for rank in ranks:
        rank.send(signal.SIGTERM)  # all of them before one is waited for: they wait for each other
    status = max((rank.stop() for rank in ranks), key=abs)
    _say(summary(_scrape(address), time.monotonic() - begun))
    return daemon.stop() or status


def _look(address: str, staging: Staging, *, trains: bool) -> None:
    numbers = _scrape(address)
    if trains:
        _say(report(numbers))
    for text in staging.look(numbers[0].get("step", 0.0) if numbers else 0.0):
        _say(text)


def _trains(ranks: Sequence[ChildProcess]) -> bool:
    """Whether any does; once one has failed, the others only wait for it."""
    return any(rank.status is None for rank in ranks) and not any(rank.status for rank in ranks)


def _start(show: _Show) -> list[ChildProcess]:
    """The ranks of the training."""
    wanted = show.wanted
    flags = [*(["--steps", str(wanted.steps)] if wanted.steps else [])]
    flags += [f"--trouble={wanted.trouble}", f"--meet={show.history}/ranks"]
    count = wanted.processes
    reach = _reach(show.endpoints)
    if wanted.ranks or count > 1:
        reach |= {"TRACKSIDE_RUN_ID": uuid4().hex, "WORLD_SIZE": str(count)}
    return [
        ChildProcess(SIMULATED, *flags, environ=reach | _place(rank, count))
        if wanted.ranks
        else ChildProcess(TRAINING, *flags, environ=reach | ({"RANK": str(rank)} if count > 1 else {}))
        for rank in range(count)
    ]


def _place(rank: int, count: int) -> dict[str, str]:
    """What a launcher would tell a rank of several on one machine, each on the GPU of its number."""
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count), "CUDA_VISIBLE_DEVICES": str(rank)}
    return {"RANK": str(rank), **local}


def _staged(show: _Show, ranks: Sequence[ChildProcess]) -> Staging:
    """The trouble, of the last rank; without one nothing ever begins."""
    token = _token(show.endpoints)

    def ask(path: str) -> str | None:
        return _get(show.address, path, token)

    return Staging(TROUBLES.get(show.wanted.trouble), ranks, show.wanted.after, ask, show.history)


def _free_address(web: WebSection) -> tuple[str, str]:
    """Where the daemon is to listen, and where it is then reached.

    It is tried before the daemon starts, so that another server's answers are never taken for the daemon's.

    Raises:
        AddressError: It is taken, or no address, or others reach it who are to be kept out.
    """
    wanted = web.listen_address
    with closing(listen(wanted)) as listener:
        host, port = listener.getsockname()[:2]
    if web.config.file and not ip_address(host).is_loopback:
        raise AddressError(
            f"web.listen-address: {wanted}: the demo has no TLS and no passwords, so TRACKSIDE_WEB__CONFIG__FILE would keep "
            "nobody out; set --web.listen-address=127.0.0.1:21790"
        )
    listens = f"{wanted.rpartition(':')[0]}:{port}"
    return listens, f"127.0.0.1:{port}" if ip_address(host).is_unspecified else listens


def _is_ready(address: str, daemon: ChildProcess, stopped: Stop) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while daemon.status is None and time.monotonic() < deadline:
        if _get(address, "/-/ready") is not None:
            return True
        if stopped.wait(0.1):
            return False
    return False


def _token(endpoints: Sequence[str]) -> str:
    return token_path(endpoints, os.environ, os.getuid()).read_text().strip()


def _scrape(address: str) -> list[Numbers]:
    """The demo's own series by rank; those with more labels than run and rank are left out."""
    page = _get(address, "/metrics?collect[]=training") or ""
    ranks: dict[int, Numbers] = {}
    for match in filter(None, map(_LINE.fullmatch, page.splitlines())):
        ranks.setdefault(int(match[2]), {})[match[1]] = float(match[3])
    return [ranks[rank] for rank in sorted(ranks)]


def _reach(endpoints: Sequence[str]) -> dict[str, str]:
    """How the training finds the daemon that was started here, and no other; whatever else leads a client is off."""
    endpoint = next(iter(endpoints), f"ipc://{push_path((), os.environ, os.getuid())}")
    elsewhere = ("RUN_ID", "RUN_NAME", "TAGS", "DISABLED")
    off = {f"TRACKSIDE_{name}": "" for name in elsewhere} | dict.fromkeys(("RANK", "WORLD_SIZE"), "")
    return {**off, "TRACKSIDE_FLUSH_TIMEOUT": "2", "TRACKSIDE_ENDPOINT": endpoint}


def _get(address: str, path: str, token: str = "") -> str | None:
    asked = urllib.request.Request(
        f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with _direct.open(asked, timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
