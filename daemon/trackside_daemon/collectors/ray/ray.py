"""Collect the nodes of Ray on this machine, and the cluster of the dashboard."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.ray.dashboard import STALE_SECONDS, Cluster, actor_role
from trackside_daemon.collectors.ray.local_nodes import actor_class, metrics_port, processes, samples
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.http_client.http_request import request, tls_context
from trackside_daemon.model.families import ray as f
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.collectors.ray.local_nodes import LocalNode, Worker
    from trackside_daemon.model.metric import Metric

log = logging.getLogger("trackside")

SCAN_SECONDS = 2.0  # interval of the search for processes, which finds a node that was killed
READ_SECONDS = 10.0  # interval of requests: Ray makes a page of some 300 KiB for each
REMEMBERED_SECONDS = 600.0  # for which an ended node is shown
ANSWER_BYTES = 32 * 2**20


class RayCollector:
    """The state of Ray. Requests are made by a thread of its own, since a server may hang.

    Args:
        dashboard: URL of the dashboard; empty for none.
        proc: Path of procfs.
        clock: Seconds of the monotonic clock.
    """

    name = "ray"
    metrics = f.FAMILIES

    def __init__(
        self, dashboard: str, proc: Path = Path("/proc"), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = dashboard.rstrip("/")
        self._proc = proc
        self._clock = clock
        self._context = tls_context("", "collector.ray.dashboard")
        self._cluster = Cluster(lambda path: self._get(self._url + path))
        self._scan_at = -1.0
        self._nodes: dict[str, LocalNode] = {}
        self._workers: list[Worker] = []
        self._ended: dict[str, float] = {}
        self._read: tuple[float, list[Sample]] | None = None
        self._failed: set[str] = set()
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
            self._wake.wait(READ_SECONDS)

    def _page(self, node: LocalNode) -> list[Sample]:
        port = metrics_port(node)
        if port is None:
            return []
        return list(samples(node, self._get(f"http://127.0.0.1:{port}/metrics").decode(errors="replace")))

    def _ask(self, what: str, read: Callable[[], list[Sample]]) -> list[Sample]:
        """Return what a source answers; log its first failure, and that it answers again."""
        try:
            found = read()
        except (SendError, ValueError, OSError) as error:
            if what not in self._failed:
                self._failed.add(what)
                log.warning("collector ray: the %s of Ray is left out: %s", what, error)
            return []
        if what in self._failed:
            self._failed.remove(what)
            log.info("collector ray: the %s of Ray answers again", what)
        return found

    def _get(self, url: str) -> bytes:
        return request("GET", url, None, {}, self._context, longest=ANSWER_BYTES)


def _summed(found: list[Sample]) -> list[Sample]:
    """Return the samples, those of the same series as one: each worker reports its own tasks."""
    total: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, labels, value in found:
        total[metric, labels] = total.get((metric, labels), 0.0) + value  # type: ignore[operator]
    return [Sample(metric, labels, value) for (metric, labels), value in total.items()]
