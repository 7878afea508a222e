"""A training of many ranks in one process, with a client for each."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from processes import Daemon

    from trackside.run import Run


@contextmanager
def ranks(daemon: Daemon, count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Run]]:
    """Yield the ranks of the run net, which end with the block."""
    monkeypatch.setenv("WORLD_SIZE", str(count))
    with ExitStack() as ends:
        found = []
        for rank in range(count):
            monkeypatch.setenv("RANK", str(rank))
            found.append(ends.enter_context(trackside.init("net", id="net-1", endpoint=daemon.endpoint)))
        yield found


def nans(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the NonFinite alerts in the API."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"]
