"""What a rank pushed before this daemon was started: from there its detectors go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Identity
    from trackside_daemon.detectors.base import Column


class Past(NamedTuple):
    """The last that is kept of one rank of an attempt that has not ended.

    Attributes:
        identity: Its run's id and exported name, its attempt, its rank and the number of ranks.
        columns: Keys that were pushed together, and what of them.
        pushes: When something was pushed, in Unix seconds, and at which step, in the order of time.
    """

    identity: Identity
    columns: Sequence[Mapping[str, Column]]
    pushes: Sequence[tuple[float, int]]
