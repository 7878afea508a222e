"""Collect the nodes of Ray on this machine, and the cluster of the dashboard."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.ray.dashboard import READ_SECONDS, STALE_SECONDS, Cluster
from trackside_daemon.collectors.ray.token import REFUSED, RayToken
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.http_client.http_request import request, tls_context
from trackside_daemon.model.families import ray as f
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackside_daemon.model.metric import Metric

# What actors of a name do, in the frameworks of reinforcement learning.
_ROLES = (
    ("reward", re.compile(r"reward|judge|scor|(^|_)rm(_|$)")),
    ("generate", re.compile(r"rollout|vllm|sglang|generat|sampl|infer|env_?runner|llm")),
    ("train", re.compile(r"train(?!_?controller)|learner|policy|critic|reference|(^|_)(actor|ref)(_|$)")),
)
_ID = re.compile(r"[0-9a-f]{16,64}")
_NOT_ACTORS = frozenset(("IDLE", "DashboardAgent", "RuntimeEnvAgent"))
_PORT_DIGITS = 8

# A line of the text format: the name, its labels and the value.
_LINE = re.compile(r"(ray_resources|ray_object_store_(?:used|available)_memory|ray_tasks)\{(.*)\} (\S+)")
_LABEL = re.compile(r'\b(Name|State)="([^"\\]*)"')
_ENDED = frozenset(("FINISHED", "FAILED"))


def actor_role(name: str, class_name: str) -> str:
    """Return what an actor does by its name or its class; empty if they do not show it."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name.removesuffix("Actor")).lower()  # each actor may be named so
    texts = (name.lower(), words)
    return next((role for text in texts for role, pattern in _ROLES if pattern.search(text)), "")


class LocalNode(NamedTuple):
    """A node of Ray: a raylet process.

    Attributes:
        id: The node's id, hexadecimal.
        pid: The raylet's pid.
        session: The directory of Ray's session.
    """

    id: str
    pid: int
    session: str


class RayWorker(NamedTuple):
    """A process of an actor or a task.

    Attributes:
        pid: Its pid.
        parent: The pid of its raylet.
        title: What follows ``ray::`` in its title: a class or a function, and the method that runs.
    """

    pid: int
    parent: int
    title: str


def processes(proc: Path) -> tuple[dict[str, LocalNode], list[RayWorker]]:
    """Return the nodes by id, and the workers, of all processes whose command line this user may read."""
    nodes, workers = {}, []
    for entry in os.listdir(proc):  # noqa: PTH208  a Path for each process would cost more than the reading
        if not entry.isdigit():
            continue
        try:
            line = read(f"{proc}/{entry}/cmdline").decode(errors="replace")
            if line.startswith("ray::"):
                title = line.partition("\0")[0].strip().removeprefix("ray::")
                parent = int(read(f"{proc}/{entry}/stat").rpartition(b")")[2].split()[1])
                workers.append(RayWorker(int(entry), parent, title))
            elif line.partition("\0")[0].endswith("/raylet"):
                given = dict(part[2:].split("=", 1) for part in line.split("\0") if part[:2] == "--" and "=" in part)
                if _ID.fullmatch(given.get("node_id", "")):
                    node = LocalNode(given["node_id"], int(entry), given.get("session_dir", ""))
                    nodes[node.id] = node
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return nodes, workers


def actor_class(title: str) -> str:
    """Return the class of an actor from its process title; empty for a process that is none, such as a task's."""
    name = title.partition(".")[0]
    return "" if name in _NOT_ACTORS or "(" in name or ":" in name or "-" in name or not name[:1].isupper() else name


def metrics_port(node: LocalNode) -> int | None:
    """Return the port of a node's metrics on this machine, which Ray writes into a file of its session.

    Raises:
        ValueError: The file has no number.
    """
    path = Path(node.session) / f"metrics_export_port_{node.id}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, _PORT_DIGITS))
    finally:
        os.close(descriptor)


def samples(node: LocalNode, text: str) -> Iterator[Sample]:
    """Yield the samples of a node from the text of its metrics port; tasks without labels of a node, to be summed."""
    store: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        has = dict(_LABEL.findall(labels))
        number, state = float(value), has.get("State", "")
        if name == "ray_resources":
            yield Sample(f.RESOURCES, (node.id, has.get("Name", ""), state.lower()), number)
        elif name == "ray_tasks":
            if number and state not in _ENDED:
                yield Sample(f.TASKS, (state.lower(),), number)
        else:
            store[name] = number
    if len(store) == 2:
        used = store["ray_object_store_used_memory"]
        yield Sample(f.STORE_USED, (node.id,), used)
        yield Sample(f.STORE_SIZE, (node.id,), used + store["ray_object_store_available_memory"])


log = logging.getLogger("trackside")

SCAN_SECONDS = 2.0  # interval of the search for processes, which finds a node that was killed
REMEMBERED_SECONDS = 600.0  # for which an ended node is shown
ANSWER_BYTES = 32 * 2**20


class RayCollector:
    """The state of Ray. Requests are made by a thread of its own, since a server may hang.

    Args:
        dashboard: URL of the dashboard; empty for none.
        token_file: See `RayToken`.
        proc: Path of procfs.
        clock: Seconds of the monotonic clock.
        read_seconds: See `READ_SECONDS`.
    """

    name = "ray"
    metrics = f.FAMILIES

    def __init__(
        self,
        dashboard: str,
        token_file: str = "",
        proc: Path = Path("/proc"),
        *,
        clock: Callable[[], float] = time.monotonic,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._read_seconds = read_seconds
        self._url = dashboard.rstrip("/")
        self._token = RayToken(dashboard, token_file, proc)
        self._proc = proc
        self._clock = clock
        self._context = tls_context("", "collector.ray.dashboard")
        self._cluster = Cluster(self._dashboard)
        self._scan_at = -1.0
        self._nodes: dict[str, LocalNode] = {}
        self._workers: list[RayWorker] = []
        self._ended: dict[str, float] = {}
        self._read: tuple[float, list[Sample]] | None = None
        self._failed: dict[str, set[int]] = {}
        self.left_out = ""
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="trackside-ray", daemon=True)

    def collect(self) -> list[Sample]:
        """Return the samples of the processes now, and those of the last answers.

        Raises:
            NothingToCollect: No node runs here, and no dashboard answers.
            StillBusy: Nothing has answered for `STALE_SECONDS`.
        """
        now = self._clock()
        if now >= self._scan_at:
            self._scan(now)
        if not self._thread.is_alive() and not self._closed:
            self._thread.start()
        answered = self._read
        if answered is None and not self._nodes:
            raise NothingToCollect(
                f"no raylet runs on this machine, and no dashboard of Ray answers at {self._url or '(none)'}; start Ray, or set "
                "collector.ray.dashboard"
            )
        if answered is None or now - answered[0] > STALE_SECONDS:
            raise StillBusy(f"Ray has not answered for {STALE_SECONDS:.0f} s")
        return [
            *(Sample(f.UP, (node,), 1.0) for node in self._nodes),
            *(Sample(f.UP, (node,), 0.0) for node in self._ended),
            *self._actors(),
            *answered[1],
        ]

    def close(self) -> None:
        """End the thread; one that waits for a server ends with the process."""
        self._closed = True
        self._wake.set()

    def _scan(self, now: float) -> None:
        self._scan_at = now + SCAN_SECONDS
        nodes, self._workers = processes(self._proc)
        for gone in self._nodes.keys() - nodes.keys():
            self._ended[gone] = now
        if nodes.keys() != self._nodes.keys():
            self._wake.set()
        self._nodes = nodes
        self._ended = {one: at for one, at in self._ended.items() if now - at < REMEMBERED_SECONDS}

    def _actors(self) -> list[Sample]:
        found = []
        by_pid = {node.pid: node.id for node in self._nodes.values()}
        for worker in self._workers:
            node = by_pid.get(worker.parent)
            actor = None if node is None else self._cluster.actors.get((node, worker.pid))
            kind = (actor.class_name or "") if actor else actor_class(worker.title)
            if node is not None and kind:
                name, job = (actor.name or "", actor.job_id) if actor else ("", "")
                found.append(Sample(f.ACTOR, (str(worker.pid), name, kind, actor_role(name, kind), job, node), 1.0))
        return found

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            found = [*self._ask("dashboard", lambda: list(self._cluster.read(self._ended)))] if self._url else []
            for node in [*self._nodes.values()]:
                found += self._ask("metrics port", lambda node=node: self._page(node))  # type: ignore[misc]
            if found:
                self._read = self._clock(), _summed(found)
            self._wake.wait(self._read_seconds)

    def _page(self, node: LocalNode) -> list[Sample]:
        port = metrics_port(node)
        if port is None:
            return []
        return list(samples(node, self._get(f"http://127.0.0.1:{port}/metrics").decode(errors="replace")))

    def _ask(self, what: str, read: Callable[[], list[Sample]]) -> list[Sample]:
        """Return what a source answers; log its first failure, its first refusal, and that it answers again."""
        try:
            found = read()
        except (SendError, SettingError, ValueError, OSError) as error:
            logged, code = self._failed.setdefault(what, set()), getattr(error, "code", 0)
            text = f"the {what} of Ray is left out: {error}"
            if code not in logged:
                logged.add(code)
                log.warning("collector ray: %s", text)
            if what == "dashboard":
                self.left_out = text if code or self._nodes else ""  # else Ray does not run
            return []
        if what == "dashboard":
            self.left_out = ""
        if self._failed.pop(what, None):
            log.info("collector ray: the %s of Ray answers again", what)
        return found

    def _dashboard(self, path: str) -> bytes:
        try:
            return self._get(self._url + path, self._token.headers())
        except SendError as error:
            if error.code not in REFUSED:
                raise
            server = str(error).partition(";")[0]
            raise SendError(f"{server}; {self._token.advice()}", error.retry, error.code) from None

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        return request("GET", url, None, headers or {}, self._context, longest=ANSWER_BYTES)


def _summed(found: list[Sample]) -> list[Sample]:
    """Return the samples, those of the same series as one: each worker reports its own tasks."""
    total: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, labels, value in found:
        total[metric, labels] = total.get((metric, labels), 0.0) + value  # type: ignore[operator]
    return [Sample(metric, labels, value) for (metric, labels), value in total.items()]
