"""`trackside layers`: the layers of an observed model that stand out most."""

from __future__ import annotations

from math import inf, log10
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.cli.errors import errors_reported, fail
from trackside_daemon.cli.options import Json, Run, StoragePath, Url
from trackside_daemon.cli.output import print_json, print_lines, table
from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Values = Mapping[str, Any]

HEADER = ("layer", "norm", "update ratio", "gradient", "zeros", "largest output", "entropy", "alert")


def layers(
    run: Run,
    *,
    most: Annotated[int, typer.Option("-n", "--number", help="Number of layers.", min=1)] = 20,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the layers of a model that stand out most, as of their last measurement.

    First those with a firing alert, then those without a gradient, then those whose update ratio is furthest from the
    median. The training observes its model with run.observe(model). zeros is the share of zeros among the gradients,
    entropy the lowest of the layer's heads.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history

        source = find_history(storage_path, url)
        found = source.layers(run)
        if as_json:
            print_json(found)
            return
        if not found["kinds"]:
            fail(f"run {shown(run)} has no measured layers; run.observe(model) in the training measures them", 1)
        rows = _rows(found["kinds"], _alerts(source.alerts(found["run"])))
        steps = ", ".join(f"{kind} at step {one['step']:,}" for kind, one in found["kinds"].items())
        print_lines(
            [*table(HEADER, rows[:most], right=" >>>>>> ", flexible="~      ~"), f"{len(rows)} layers: {steps}"]
        )


def _alerts(alerts: Sequence[Values]) -> dict[str, str]:
    """Return the firing alerts by layer."""
    firing: dict[str, list[str]] = {}
    for one in alerts:
        if one["ended"] is None:
            firing.setdefault(one["labels"].get("key", ""), []).append(one["alert"])
    return {key: ", ".join(dict.fromkeys(names)) for key, names in firing.items()}


def _rows(kinds: Values, alerts: Mapping[str, str]) -> list[tuple[str, ...]]:
    of = {kind: kinds[kind]["layers"] if kind in kinds else {} for kind in ("weights", "gradients", "activations")}
    entropies = dict(_entropies(kinds["attention"]["layers"])) if "attention" in kinds else {}
    names = list(dict.fromkeys([*of["weights"], *of["gradients"], *of["activations"], *entropies]))
    ratios = {name: one.get("update_ratio") for name, one in of["weights"].items()}
    positive = [ratio for ratio in ratios.values() if isinstance(ratio, int | float) and ratio > 0]
    usual = median(positive) if positive else 1.0

    def order(name: str) -> tuple[bool, bool, float]:
        ratio = ratios.get(name)
        apart = abs(log10(ratio / usual)) if isinstance(ratio, int | float) and ratio > 0 else 0.0
        return name not in alerts, of["gradients"].get(name, {}).get("norm", inf) != 0, -apart

    return [
        (
            shown(name),
            number(of["weights"].get(name, {}).get("norm")),
            number(ratios.get(name)),
            number(of["gradients"].get(name, {}).get("norm")),
            number(of["gradients"].get(name, {}).get("zeros")),
            number(of["activations"].get(name, {}).get("largest")),
            number(entropies.get(name)),
            shown(alerts.get(name, "")),
        )
        for name in sorted(names, key=order)
    ]


def _entropies(heads: Mapping[str, Values]) -> Iterator[tuple[str, float]]:
    """Yield the lowest entropy of the heads of each layer."""
    lowest: dict[str, float] = {}
    for head, one in heads.items():
        if isinstance(one["entropy"], int | float):
            layer = head.rpartition("/")[0]
            lowest[layer] = min(lowest.get(layer, inf), one["entropy"])
    yield from lowest.items()
