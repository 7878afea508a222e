"""The daemon's vocabulary: a `Metric` is a family, a `Sample` one of its values, a `Batch` what a source says at once.

Whatever enters the daemon, a pushed loss or a GPU's temperature, becomes a `Batch` at the first room inside and takes
the same road from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.records import Record

Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A family: its name, unit and help stand here and nowhere else.

    Attributes:
        name: The full sample name, as a query writes it: ``…_total`` for counters, ``…_info`` for infos.
        kind: ``gauge``, ``counter``, ``histogram`` or ``info``.
        help: One sentence, with where the value comes from.
        labels: Label names, in the order in which a sample gives their values.
        unit: The base unit, which is the name's last word (before ``_total``); empty when there is none.
        buckets: Upper bounds of a histogram, in the unit, without +Inf.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        if not self.name.endswith(f"_{self.unit}{suffix}" if self.unit else suffix):
            raise ValueError(f"{self.name}: a {self.kind} in {self.unit or 'no unit'} ends in _{self.unit}{suffix}")

    @property
    def family(self) -> str:
        """The name without the suffix of its kind: what OpenMetrics calls the family."""
        return self.name.removesuffix({"counter": "_total", "info": "_info"}.get(self.kind, ""))


class Distribution(NamedTuple):
    """A histogram's value.

    Attributes:
        counts: Observations per bucket, not cumulative, the last one above every bound.
        sum: Sum of all observations, in the metric's unit.
    """

    counts: tuple[int, ...]
    sum: float


class Sample(NamedTuple):
    """The newest value of one series.

    Attributes:
        metric: The family.
        labels: One value for each of the metric's label names.
        value: In the metric's unit; a `Distribution` for a histogram, 1 for an info.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


@dataclass(slots=True)
class Batch:
    """What one source says at one moment.

    Attributes:
        source: Who says it: a collector's name, or ``training`` and more after a colon. The part before the colon is
            what ``collect[]`` and ``exclude[]`` of a scrape choose by.
        samples: The newest values.
        complete: This is all that the source has: its series that are not here are gone.
        until: When the source's series are forgotten unless it speaks again, in seconds of the monotonic clock; None
            for never.
        time: When it was sampled, in Unix seconds; only what the sampler says has one.
        records: What the history is told beside the samples.
        receipt: Whom to tell that the batch is committed; opaque to all but `ingest`.
    """

    source: str
    samples: list[Sample] = field(default_factory=list)
    complete: bool = False
    until: float | None = None
    time: float = 0.0
    records: Sequence[Record] = ()
    receipt: Any = None


def json_number(value: float | None) -> float | str:
    """A value as JSON can hold it: NaN, infinities and what SQLite made of NaN are ``nan``, ``inf`` and ``-inf``."""
    if value is None:
        return "nan"
    return value if isfinite(value) else repr(value)
