"""The status of the daemon: for ``/api/v1/status``, for readiness and for the service manager."""

import hashlib
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trackside_daemon import __version__
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.text import counted
from trackside_daemon.service.assembly import Parts
from trackside_daemon.service.config import Config
from trackside_daemon.web.api.state_json import family_values

FAMILIES = (
    daemon.COLLECTOR_SUCCESS,
    daemon.COLLECTOR_DURATION,
    daemon.COLLECTOR_LAST_SUCCESS,
    daemon.INGEST_MESSAGES,
    daemon.INGEST_REJECTED,
    daemon.INGEST_DUPLICATES,
    daemon.INGEST_GAPS,
    daemon.PIPELINE_FAILURES,
    daemon.HISTORY_SIZE,
    daemon.HISTORY_SAMPLES,
)


class DaemonStatus:
    """The status of one daemon.

    Args:
        parts: The parts.
        address: The address that the web server listens on; *url* is its URL.
        endpoints: The endpoints of the push socket.
        gpus: GPUs are sampled.
        ways: Where other programs' metrics come in: ``otlp_endpoint``, ``textfile_directory``; null where they do not.
    """

    def __init__(
        self,
        parts: Parts,
        address: str,
        url: str,
        endpoints: Sequence[str],
        *,
        gpus: bool,
        ways: Mapping[str, str | None],
    ) -> None:
        self._parts = parts
        self._address = address
        self._url = url
        self._endpoints = list(endpoints)
        self._gpus = gpus
        self._ways = ways
        self._started = time.time()
        self._ready = False

    def line(self) -> str:
        """Return a line about what the daemon does now."""
        runs = len({process.run_id for process in self._parts.ranks.get()})
        return f"serves {self._url}, {counted(runs, 'run')} on this machine"

    def is_ready(self) -> bool:
        """Return whether each collector has run once, with or without success."""
        if not self._ready:
            (collected,) = self._parts.state.values(time.monotonic(), daemon.COLLECTOR_SUCCESS)
            self._ready = len(collected) == len(self._parts.collectors)
        return self._ready

    def as_json(self) -> dict[str, Any]:
        """Return the answer of ``/api/v1/status``."""
        parts = self._parts
        return {
            "version": __version__,
            "started": self._started,
            "listen_address": self._address,
            "url": self._url,
            "push_endpoints": self._endpoints,
            **self._ways,
            "storage_path": str(parts.history.database.path.parent),
            "storage_problem": parts.history.writer.problem,
            **(parts.nvml_calls.status() if self._gpus else {"gpus": [], "nvml": None}),
            "collectors": parts.sampler.states(),
            "notifications": parts.alerting.sink_statuses(),
            "metrics": family_values(parts.state, time.monotonic(), *FAMILIES),
        }


def build_info(config: Config, certificate_end: float | None, *, reloaded: bool, at: float) -> Batch:
    """Return the series; *reloaded*: the last reload succeeded, *at*: the last successful load, in Unix seconds."""
    digest = hashlib.sha256(config.model_dump_json().encode()).digest()
    samples = [
        Sample(daemon.BUILD_INFO, (__version__, platform.python_version()), 1.0),
        Sample(daemon.RELOADED, (), float(reloaded)),
        Sample(daemon.RELOADED_AT, (), at),
        Sample(daemon.CONFIG_HASH, (), float(int.from_bytes(digest[:6], "big"))),  # a float holds 53 bits
    ]
    if certificate_end is not None:
        samples.append(Sample(daemon.CERTIFICATE_END, (), certificate_end))
    return Batch("trackside", samples, complete=True)
