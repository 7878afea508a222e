"""Questions about series: charts in buckets, every sample, and the part of a run that an export has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from trackside_daemon.questions.question import (
    SHOWN,
    InvalidError,
    Key,
    Keys,
    MissingError,
    OfRun,
    RunId,
    RunNames,
    RunPart,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from trackside_daemon.history.read.layers import LayerWindow
    from trackside_daemon.history.read.reader import RunSeries
    from trackside_daemon.questions.question import History, Live

POINTS = 2000  # buckets of a series

_ABOUT = (
    "Points are [step, time, min, max, last], with step and time of the bucket's last sample; with points=0 every "
    "sample, [step, time, value]. nonfinite, if there are any, has the number of NaN and infinite samples of each "
    "point. An answer has at most 200000 buckets, so of many series each has fewer than requested. unit is the number "
    "of samples in the coarsest cell; above 1, the edges of the window are rounded outwards to whole cells. means has "
    "the mean of each point's finite samples, or of the last ones of its cells; it is absent if every point is one "
    "sample or cell."
)


class _Curves(RunPart, frozen=True, kw_only=True):
    """A part of series in so many points."""

    points: Annotated[
        int,
        Meta(le=20_000, description="At most so many buckets per series; 0 returns every sample, except of a band."),
    ] = POINTS

    @property
    def is_stream(self) -> bool:
        """See `Question`."""
        return not self.points


class Series(_Curves, frozen=True, kw_only=True):
    """Return series of one or more runs."""

    path = "/series"
    fields = ("series",)
    about = _ABOUT
    run: RunNames
    key: Keys = ()
    band: Annotated[
        Literal["band"] | None,
        Meta(
            description="band: one band over the ranks of each key and attempt, points [step, time, min, max, median of their last]."
        ),
    ] = msgspec.field(default=None, name="ranks")
    mean: Annotated[bool, Meta(description="Also the mean of each point.")] = False
    missing: Annotated[
        Literal["error", "ignore"], Meta(description="ignore: leave out a key that no run has, instead of an error.")
    ] = "error"

    @property
    def is_stream(self) -> bool:
        """See `Question`."""
        return not self.points and not self.band

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.questions import curves

        if self.is_stream:
            return super().answer(history, live)
        window, series = self.window(), self._find(history)
        # All charts of a response are in memory at once, so many series share the limit.
        points = min(self.points or POINTS, max(2, curves.MAX_BUCKETS // max(1, len(series))))
        charts = curves.read_charts(history, series, window, points, means=self.mean)
        if self.band:
            charts = curves.rank_bands(charts, window.by)
        return {"series": charts}

    def pieces(self, history: History) -> Iterator[bytes]:
        """See `Question`."""
        from trackside_daemon.questions import curves

        return curves.stream_series(history, self._find(history), self.window())

    def _find(self, history: History) -> list[RunSeries]:
        from trackside_daemon.questions import curves

        return curves.find(history, self.run, self.key, self, band=bool(self.band), strict=self.missing == "error")


class OneSeries(_Curves, frozen=True, kw_only=True):
    """Return one key of a run."""

    path = "/runs/{id}/series"
    fields = ("key", "points")
    about = _ABOUT
    id: RunId
    key: Key

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.questions import curves

        if self.is_stream:
            return super().answer(history, live)
        window, attempts = self.window(), self._find(history)
        # The attempts follow each other in one chart, so they share the number of points.
        charts = curves.read_charts(history, attempts, window, max(1, self.points // len(attempts)))
        return {"key": self.key, **curves.concatenate(charts)}

    def pieces(self, history: History) -> Iterator[bytes]:
        """See `Question`."""
        from trackside_daemon.questions import curves

        return curves.stream_points(history, self._find(history), self.window())

    def _find(self, history: History) -> list[RunSeries]:
        from trackside_daemon.questions import curves

        attempts = curves.find(history, [self.id], [self.key], self)
        if not attempts:
            raise MissingError(f"key {self.key!r}: run {self.id!r} has no such key in this rank or attempt")
        if names := {one.series.key for one in attempts} - {self.key}:
            raise InvalidError(
                f"key: {self.key!r} names {len(names)} series; use /api/v1/series, or one of {', '.join(sorted(names))}"[
                    :1000
                ]
            )
        return attempts


class Exported(NamedTuple):
    """A run in transfer."""

    samples: int | None  # their number; None if it is unknown
    chunks: Iterator[bytes]  # the bytes


class Export(RunPart, frozen=True, kw_only=True):
    """The part of a run that an export has; without a rank all ranks, so that a file is complete."""

    path = "/runs/{id}/export"
    id: RunId
    format: Annotated[
        Literal["csv", "json", "jsonl", "long"],
        Meta(description="csv, json or jsonl; long: a CSV with a line for each value, and labels as columns."),
    ] = "csv"
    key: Keys = ()
    resources: Annotated[
        bool, Meta(description="Also the GPU, host and process series of the machine in the time of the run.")
    ] = False

    def open(self, history: History) -> Exported:
        """Return the file, whose chunks are read one by one.

        Raises:
            InvalidError: There are more keys than CSV has columns.
            MissingError: The run has no such rank, attempt or key.
            UnknownRunError: There is no such run.
        """
        from trackside_daemon.history.files.export import TooManyKeysError, export
        from trackside_daemon.history.files.selection import Selection, count, missing_keys
        from trackside_daemon.history.read import reader

        with history.reading() as connection:
            uid = reader.resolve(connection, self.id)
        ranks, keys = self.ranks() or (), tuple(dict.fromkeys(self.key))
        selection = Selection(keys, frozenset(ranks), self.attempt, self.window(), self.resources)
        attempt = [] if self.attempt is None else [f"attempt {self.attempt}"]
        of = ", ".join([*(f"rank {rank}" for rank in ranks), *attempt])
        missing = missing_keys(history, uid, selection) if keys or of else []
        if missing is None:
            raise MissingError(f"run {uid!r} has no samples" + (of and f" of {of}"))
        for key in missing:
            raise MissingError(f"key {key!r}: run {uid!r} has no such key" + (of and f" for {of}"))
        try:
            return Exported(count(history, uid, selection), export(history, uid, self.format, selection))
        except TooManyKeysError as error:
            raise InvalidError(str(error)) from None


class _LayerPart(RunPart, frozen=True, kw_only=True):
    """A part of the distributions of a run."""

    id: RunId
    kind: Annotated[
        Literal["weights", "gradients", "activations", "attention"] | None,
        Meta(
            description="weights, gradients, activations or attention; by default the first of these that the run has."
        ),
    ] = None
    points: Annotated[int, Meta(le=2000, description="At most so many steps.")] = 200

    def layer_window(self, connection: sqlite3.Connection) -> tuple[LayerWindow, list[str]]:
        """Return the part, and the kinds that the run has."""
        from trackside_daemon.history.read import layers, reader

        run = reader.resolve(connection, self.id)
        found = layers.kinds(connection, run)
        ranks, part = frozenset(self.ranks() or ()), self.window()
        kind = self.kind or (found[0] if found else "weights")
        return layers.LayerWindow(
            run, kind, ranks, self.attempt, part.low, part.high, part.by, self.points or 200
        ), found


class LayerMap(_LayerPart, frozen=True, kw_only=True):
    """Return one value of all layers of an observed model over steps."""

    path = "/runs/{id}/layers"
    fields = ("layers",)
    about = (
        "values[i][j] is the value of layers[i] at steps[j], or null. Without rank, the parts of all ranks (64 at "
        "most) are one model; without attempt, it is the last. Of more steps than points, several are merged: their "
        "largest value for largest and logit, else their mean."
    )
    value: Annotated[
        str, Meta(description="A column of the kind, as kinds of the answer lists them; by default the first.")
    ] = ""

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        choices = layers.VALUES[self.kind or "weights"]
        if self.value and self.value not in choices:
            raise MissingError(f"value: must be one of {', '.join(choices)}, not {self.value[:SHOWN]!r}")
        window, found = self.layer_window(connection)
        values = layers.VALUES[window.kind]
        drawn = layers.heat_map(connection, window, self.value if self.value in values else values[0])
        return {"run": window.run, "kinds": {one: layers.VALUES[one] for one in found}, **drawn}


class LayerValues(OfRun, frozen=True, kw_only=True):
    """Return the newest values of all layers of an observed model."""

    path = "/runs/{id}/layer-values"
    fields = ("kinds",)
    about = "Each kind has its last measured step, and the values of each of its layers."

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        return layers.newest(connection, self.uid(connection))


class Layer(_LayerPart, frozen=True, kw_only=True):
    """Return one layer's distribution over steps."""

    path = "/runs/{id}/layers/{layer}"
    fields = ("steps",)
    about = (
        "quantiles has, by share, a value for each of steps, interpolated. counts has for each step the number of "
        "zeros, of NaN and infinities (nonfinite), and of the other values by buckets: that of bound b has values in "
        "(b/2, b], or below zero in [2b, b). columns are those of the heat map. Merged steps have all their values."
    )
    layer: Annotated[str, Meta(description="The name of a layer; of attention LAYER/HEAD, percent-encoded.")]

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        window, _ = self.layer_window(connection)
        found = layers.distribution(connection, window, self.layer)
        if not found["steps"]:
            raise MissingError(f"layer {self.layer!r}: run {window.run!r} has no {window.kind} of it")
        return {"run": window.run, **found}
