"""The request of the daemon to the process that writes a report."""

from typing import Any

import msgspec

MODULE = "trackside_daemon.documents"


class ReportRequest(msgspec.Struct):
    """A report to write."""

    history: str  # the directory of the history
    run: str  # the run's id
    file: str  # the file to write; empty for none
    prices: dict[str, Any] = {}  # the settings of the section ``cost``
    experiments: str = ""  # the directory in which the run's own directory is written; empty for none
