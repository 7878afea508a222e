"""Samples that a rank pushed before this daemon started, from which its detectors continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Identity
    from trackside_daemon.detectors.base import Column
    from trackside_daemon.detectors.layers.streaks import Layers


class PastLayers(NamedTuple):
    """The values of a rank's layers at one step, as `LayerDetector.evaluate` gets them."""

    kind: str
    step: int
    layers: Layers


class Past(NamedTuple):
    """The last stored samples of one rank of an attempt that has not ended.

    Attributes:
        identity: The run's id and exported name, the attempt, the rank and the number of ranks.
        columns: The samples by key; each mapping has the keys that were pushed together.
        pushes: Time, in Unix seconds, and step of each push, in order of time.
        roles: Roles of keys that the run states.
        layers: The last measurements of the rank's layers, in order of time.
    """

    identity: Identity
    columns: Sequence[Mapping[str, Column]]
    pushes: Sequence[tuple[float, int]]
    roles: Mapping[str, str] = {}
    layers: Sequence[PastLayers] = ()
