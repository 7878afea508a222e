"""The workers of the mirrors as the daemon sees them: started, restarted, and counted on /metrics."""

from __future__ import annotations

import logging
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.bridges.mirrors.messages import FLUSH_SECONDS, LONGEST_SECONDS, MirrorStatus, Start
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.backoff import Backoff
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.bridges.settings import MirrorSection

ASK_SECONDS = 1.0
ANSWER_SECONDS = 10.0  # a worker that does not answer for so long is restarted
START_SECONDS = 60.0  # the same for its first answer: on a busy machine W&B's client alone takes 10 s to import
MODULE = "trackside_daemon.bridges.mirrors.worker"

log = logging.getLogger("trackside")


class Mirrors:
    """All configured mirrors, served by one thread.

    Args:
        sections: Their settings by name.
        history: The history's file; files with positions lie next to it.

    Attributes:
        mirrors: One for each.
    """

    def __init__(self, sections: Mapping[str, MirrorSection], history: Path) -> None:
        self.mirrors = [_Mirror(name, section, history) for name, section in sections.items()]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-bridges", daemon=True)

    def start(self) -> None:
        """Start the workers."""
        if self.mirrors:
            self._thread.start()

    def stop(self) -> None:
        """Send what is left, for some seconds at most, and end the workers; call it after the history has stopped."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def batch(self) -> Batch:
        """Return the counters."""
        samples = [sample for mirror in self.mirrors for sample in mirror.samples(time.time())]
        return Batch("bridges", samples, complete=True)

    def _run(self) -> None:
        # The kernel ends the workers with this thread, which therefore starts them.
        while not self._stopping.wait(ASK_SECONDS):
            for mirror in self.mirrors:
                mirror.ask()
        closing = [threading.Thread(target=mirror.close) for mirror in self.mirrors]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


class _Mirror:
    def __init__(self, name: str, section: MirrorSection, history: Path) -> None:
        settings = {**section.model_dump(), "interval": section.interval}
        if settings.get("directory") == "":
            settings["directory"] = str(history.with_name(f"{name}-mirror"))
        # Another target begins anew; other settings, such as the interval, do not.
        target = [value for key, value in sorted(settings.items()) if key in _TARGET]
        digest = sha256(msgspec.json.encode(target)).hexdigest()[:8]
        positions = history.with_name(f"bridge-{name}-{digest}.db")
        self._name = name
        self._start = Start(name, str(history), str(positions), settings | _absolute(settings))
        self.worker = CallWorker(MODULE, MirrorStatus)
        self._status = MirrorStatus()
        self._before = MirrorStatus()
        self.error = ""
        self._backoff = Backoff(ASK_SECONDS, LONGEST_SECONDS)
        self._retry = 0.0

    def ask(self) -> None:
        """Start the worker if it does not run, and read its status."""
        try:
            if not self.worker.busy:
                if self.worker.pid is not None:
                    self.worker.begin(None, ANSWER_SECONDS)
                elif time.monotonic() < self._retry:
                    return
                else:
                    self.worker.begin(self._start, START_SECONDS)
            status = self.worker.poll(ANSWER_SECONDS)
        except WorkerFailed as error:
            self._fail(str(error))
            return
        if status is None:
            return
        self._status = status
        self._backoff.reset()
        self._report(self._status.error)

    def samples(self, now: float) -> list[Sample]:
        """Return the counters, which continue if the worker is restarted."""
        status, before, labels = self._status, self._before, (self._name,)
        lost = status.lost + status.rejected + before.lost + before.rejected
        samples = [
            Sample(daemon.BRIDGE_SAMPLES, labels, float(status.sent + before.sent)),
            Sample(daemon.BRIDGE_LOST, labels, float(lost)),
            Sample(daemon.BRIDGE_FAILURES, labels, float(status.failures + before.failures)),
            Sample(daemon.BRIDGE_LAG, labels, 0.0 if status.oldest is None else max(0.0, now - status.oldest)),
        ]
        success = status.success or before.success
        return [*samples, Sample(daemon.BRIDGE_LAST_SUCCESS, labels, success)] if success else samples

    def close(self) -> None:
        """End the worker, which sends what is left."""
        self.worker.end(FLUSH_SECONDS + 1.0)

    def _fail(self, error: str) -> None:
        self.worker.end()
        before, last = self._before, self._status
        self._before = MirrorStatus(
            before.sent + last.sent,
            before.lost + last.lost,
            before.rejected + last.rejected,
            before.failures + last.failures,
            success=last.success or before.success,
        )
        self._status = MirrorStatus(oldest=self._status.oldest or time.time())  # it sends nothing, whatever waits
        self._retry = time.monotonic() + self._backoff.next_delay()
        self._report(error)

    def _report(self, error: str) -> None:
        """Log an error once, and that it is over."""
        if error and error != self.error:
            log.warning("bridges: %s: %s", self._name, error)
        elif self.error and not error:
            log.info("bridges: %s works again", self._name)
        self.error = error


def _absolute(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the directories among a mirror's settings as absolute paths, since its worker has another working directory."""
    directories = {key: settings[key] for key in ("directory", "url") if settings.get(key)}
    return {key: str(Path(value).expanduser().absolute()) for key, value in directories.items() if "://" not in value}


_TARGET = frozenset(("directory", "url", "experiment", "project", "entity", "mode"))
