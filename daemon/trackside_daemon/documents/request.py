"""The request of the daemon to the process that writes a report."""

from typing import Any

import msgspec

MODULE = "trackside_daemon.documents"


class ReportRequest(msgspec.Struct):
    """A report to write.

    Attributes:
        history: The directory of the history.
        run: The run's id.
        file: The file to write; empty for none.
        prices: The settings of the section ``cost``.
        experiments: The directory in which the run's own directory is written; empty for none.
    """

    history: str
    run: str
    file: str
    prices: dict[str, Any] = {}
    experiments: str = ""
