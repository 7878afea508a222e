"""Metric families, samples and batches.

Everything that enters the daemon becomes batches, which all pass the same stages of the pipeline. The tick of a collector
becomes one batch of samples, for the state; the history keeps those of the machine, and rules read the state. A push becomes
two: samples for the state, from `training.runs`, and a `records.BatchIngested` with all its rows for history and detectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.records import Record
    from trackside_daemon.model.session import RankRef

Kind = Literal["gauge", "counter", "histogram", "info", "unknown"]
UNITS = (
    *("ratio", "seconds", "bytes", "bytes_per_second", "flops_per_second", "celsius", "watts", "joules", "hertz"),
    *("lanes", "cycles", "cores"),
)


# Compared by identity: each sample looks its metric up in a dict, and a hash of all fields would cost more.
class Metric(msgspec.Struct, frozen=True, eq=False):
    """A metric family; only `trackside_daemon.model.families` has any, but for those of `ForeignMetric`."""

    name: str  # the full name of its samples, as in a query: ``…_total`` for counters, ``…_info`` for infos
    kind: Kind  # ``gauge``, ``counter``, ``histogram`` or ``info``; ``unknown`` only for those of others
    help: str  # one sentence that names the source of the value
    labels: tuple[str, ...] = ()  # label names, in the order of a sample's label values
    unit: str = ""  # the base unit, which is the last word of the name (before ``_total``); empty if there is none
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, in the unit, without +Inf

    def __post_init__(self) -> None:
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        if not self.name.endswith(f"_{self.unit}{suffix}" if self.unit else suffix):
            raise ValueError(f"{self.name}: a {self.kind} in {self.unit or 'no unit'} ends in _{self.unit}{suffix}")

    @property
    def family(self) -> str:
        """The family's name in OpenMetrics: without the suffix of its kind."""
        return self.name.removesuffix({"counter": "_total", "info": "_info"}.get(self.kind, ""))


class ForeignMetric(Metric, frozen=True, eq=False):
    """A family of another program, which is free in its name; all its values are numbers."""

    def __post_init__(self) -> None:
        """Accept every name."""

    @property
    def family(self) -> str:
        """The family's name in OpenMetrics, whose counters end in ``_total``."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


def define(name: str, text: str, *labels: str) -> Metric:
    """Return the family of a name: a counter if it ends in ``_total``, an info if in ``_info``, else a gauge.

    Args:
        name: The full name, which ends in the family's unit if it has one.
        text: The help text.
        labels: Label names.
    """
    base = name.removesuffix("_total")
    kind: Kind = "counter" if base != name else "info" if name.endswith("_info") else "gauge"
    unit = max((unit for unit in UNITS if base.endswith(f"_{unit}")), key=len, default="")
    return Metric(name, kind, text, labels, unit)


class Distribution(NamedTuple):
    """The value of a histogram."""

    counts: tuple[int, ...]  # observations per bucket, not cumulative; the last bucket is above all bounds
    sum: float  # sum of all observations, in the metric's unit
    # Observations by `trackside.buckets.duration_index`, for native histograms; empty if nobody has counted them.
    fine: Mapping[int, int] = {}


class Sample(NamedTuple):
    """The newest value of one series."""

    metric: Metric  # the family
    labels: tuple[str, ...]  # one value for each label name of the family
    value: float | Distribution  # in the metric's unit; a `Distribution` for a histogram, 1 for an info


class Batch(msgspec.Struct):
    """Samples and records of one source at one moment."""

    # A collector's name; ``training`` and more after a colon for a rank's samples; ``sessions`` for the records of
    # clients; or the part of the daemon. ``collect[]`` and ``exclude[]`` of a scrape select by what is before the
    # colon.
    source: str
    samples: list[Sample] = []  # the newest values
    complete: bool = False  # the source has no other series: those that are not in this batch disappear
    # When the source's series expire unless another batch of it arrives, in seconds of the monotonic clock; None for
    # never.
    until: float | None = None
    time: float = 0.0  # when the batch was sampled, in Unix seconds; 0 for batches that do not come from the sampler
    records: Sequence[Record] = ()  # records for the history and the detectors
    # Identifies the message to acknowledge once the batch is committed; opaque to all packages but `ingest`.
    receipt: Any = None
    # The run or the rank that the samples describe; None for batches that are not about a run.
    subject: RankRef | None = None


def json_number(value: float | None) -> float | str:
    """Return a value that JSON can represent: ``nan``, ``inf`` or ``-inf`` for NaN, infinities and SQLite's NULL for NaN."""
    if value is None:
        return "nan"
    return value if isfinite(value) else repr(value)


def json_value(value: Any) -> Any:
    """Return a value with NaN and infinities as texts, since JSON has no such numbers, and msgspec would write null."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    return [json_value(item) for item in value] if isinstance(value, list | tuple) else value
