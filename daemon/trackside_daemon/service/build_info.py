"""The daemon's own series: its version and the last reload."""

from __future__ import annotations

import platform

from trackside_daemon import __version__
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample


def build_info(*, reloaded: bool, at: float) -> Batch:
    """Return the series; *reloaded*: the last reload succeeded, *at*: the last successful load, in Unix seconds."""
    samples = [
        Sample(daemon.BUILD_INFO, (__version__, platform.python_version()), 1.0),
        Sample(daemon.RELOADED, (), float(reloaded)),
        Sample(daemon.RELOADED_AT, (), at),
    ]
    return Batch("trackside", samples, complete=True)
