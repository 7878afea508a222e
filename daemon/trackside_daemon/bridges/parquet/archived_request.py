"""The request of the daemon to the process that reads archived runs, and its answer."""

from typing import Any

import msgspec

MODULE = "trackside_daemon.bridges.parquet.archived"


class ArchiveRequest(msgspec.Struct):
    """A question for the runs of an archive, by its address."""

    url: str


class Archived(msgspec.Struct):
    """Runs as the list of runs has them, and a line for each file that was left out."""

    runs: list[dict[str, Any]] = []
    left_out: list[str] = []
