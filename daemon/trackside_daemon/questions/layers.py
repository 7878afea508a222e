"""Questions about the distributions of layers: heat maps of one value, and one layer's distribution over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from trackside_daemon.questions.parameters import Part
from trackside_daemon.questions.question import SHOWN, InvalidError, MissingError, OfRun, RunId

if TYPE_CHECKING:
    import sqlite3

    from trackside_daemon.history.read.layers import LayerWindow
    from trackside_daemon.questions.question import Live


class _LayerPart(Part, frozen=True, kw_only=True):
    """A part of the distributions of a run."""

    id: RunId
    kind: Annotated[
        Literal["weights", "gradients", "activations", "attention"] | None,
        Meta(
            description="weights, gradients, activations or attention. Without it, the first of these that the run has."
        ),
    ] = None
    points: Annotated[int, Meta(le=2000, description="Maximum number of steps [200], up to 2000.")] = 200

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
        "values has a list for each of layers, with a number for each of steps, or null. Without rank, the parts of all ranks "
        "(64 at most) are one model; without attempt, it is the last one. points is 200 by default and 2000 at most; with more "
        "measured steps, several are merged: their largest value for largest and logit, else their mean."
    )
    value: Annotated[
        str, Meta(description="A column of the kind, which kinds in the answer lists. Without it, the first.")
    ] = ""

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        choices = layers.VALUES[self.kind or "weights"]
        if self.value and self.value not in choices:
            raise InvalidError(f"value: must be one of {', '.join(choices)}, not {self.value[:SHOWN]!r}")
        window, found = self.layer_window(connection)
        values = layers.VALUES[window.kind]
        drawn = layers.heat_map(connection, window, self.value if self.value in values else values[0])
        return {"run": window.run, "kinds": {one: layers.VALUES[one] for one in found}, **drawn}


class LayerValues(OfRun, frozen=True, kw_only=True):
    """Return the newest values of all layers of an observed model."""

    path = "/runs/{id}/layer-values"
    fields = ("kinds",)
    about = "kinds has for each kind its last measured step, and the values of each of its layers."

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        return layers.newest(connection, self.uid(connection))


class Layer(_LayerPart, frozen=True, kw_only=True):
    """Return one layer's distribution over steps."""

    path = "/runs/{id}/layers/{layer}"
    fields = ("steps",)
    about = (
        "quantiles has, by share, a value for each of steps. counts has for each step the number of zeros, of NaN and infinities "
        "(nonfinite), and the counts of the other values by the upper bounds of their buckets. A bucket reaches from its bound to "
        "half of it, or to twice of it below zero; the quantiles are interpolated. Merged steps have all their values. columns are those of the heat map."
    )
    layer: Annotated[str, Meta(description="The name of a layer; of attention LAYER/HEAD, percent-encoded.")]

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import layers

        window, _ = self.layer_window(connection)
        found = layers.distribution(connection, window, self.layer)
        if not found["steps"]:
            raise MissingError(f"layer {self.layer!r}: run {window.run!r} has no {window.kind} of it")
        return {"run": window.run, **found}
