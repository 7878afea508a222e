"""The daemon's own series: its version and the last reload."""

from __future__ import annotations

import platform

from trackside_daemon import __version__
from trackside_daemon.model.metric import Batch, Metric, Sample

BUILD_INFO = Metric(
    "trackside_build_info", "info", "This daemon's version, and Python's; always 1.", ("version", "python_version")
)
RELOADED = Metric(
    "trackside_config_last_reload_successful", "gauge", "Whether the last reload of the configuration succeeded."
)
RELOADED_AT = Metric(
    "trackside_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Unix time of the last successful load of the configuration.",
    (),
    "seconds",
)


def build_info(*, reloaded: bool, at: float) -> Batch:
    """Return the series; *reloaded*: the last reload succeeded, *at*: the last successful load, in Unix seconds."""
    samples = [
        Sample(BUILD_INFO, (__version__, platform.python_version()), 1.0),
        Sample(RELOADED, (), float(reloaded)),
        Sample(RELOADED_AT, (), at),
    ]
    return Batch("trackside", samples, complete=True)
