"""The public interface, used in every legal way: never run, checked by mypy as a user's code would be.

Code that is wrong on purpose carries the error that mypy must report; if the error disappears, the ignore is unused and
mypy fails.
"""

from __future__ import annotations

from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import trackside
from trackside import Run, finish, init, push


class Scalar:
    """A value with ``__float__``, like a tensor of one element."""

    def __float__(self) -> float:
        return 1.0


def two_lines(step: int, loss: float) -> None:
    trackside.push(step=step, loss=loss)


def pushes(run: Run, counts: dict[str, int], anything: Any) -> None:
    run.push()
    run.push(loss=1.0)
    run.push(step=3, loss=1, accuracy=True)
    run.push(step=None, loss=Scalar(), norm=Decimal(1), ratio=Fraction(1, 3), what=anything)
    run.push({"eval/bleu": 31.2})
    run.push({"eval/bleu": Scalar()}, step=5)
    run.push(counts, step=5, loss=1.0)
    run.push(MappingProxyType(OrderedDict(loss=2.0)), step=7)
    run.push(None, step=8, loss=2.0)
    push({"eval/bleu": 31.2}, step=5, loss=2.0)
    run.push({"loss": 1.0}, values=2.0)  # a key may have the parameter's name
    run.push({"eval": {"bleu": 31.2}}, scores={"f1": 0.5})
    run.log({"loss": 1.0})
    run.log(counts, 5, False)
    run.log({"eval": {"bleu": 31.2}}, step=None, commit=True)
    trackside.log(values={"loss": Scalar()}, step=3)
    run.log(loss=1.0)  # type: ignore[call-arg]
    run.log({1: 1.0})  # type: ignore[dict-item]
    run.push([1.0])  # type: ignore[arg-type]
    run.push({1: 1.0})  # type: ignore[dict-item]
    run.push(step="3", loss=1.0)  # type: ignore[arg-type]


def runs() -> tuple[str, str, int]:
    run: Run = init()
    run = init("name")
    run = init(name="name", id="7", config={"depth": 12, "layers": [1, 2]}, tags=["a", "b"], total_steps=1000)
    run = init(tags=("a",), endpoint="ipc:///run/trackside/push.sock", enabled=False, ranks="zero")
    run = init(config=MappingProxyType({"depth": 12}), tags={"a"}, total_steps=None)
    init("name", "7")  # type: ignore[call-arg]
    init(ranks="one")  # type: ignore[arg-type]
    init(total_steps="many")  # type: ignore[arg-type]
    return run.id, run.name, run.rank


def ends(run: Run) -> None:
    run.finish()
    run.finish("failed")
    run.finish(status="stopped")
    finish()
    finish(status="finished")
    with init("name") as opened:
        opened.push(loss=1.0)
    nothing: None = run.push(loss=1.0)  # type: ignore[func-returns-value]
    assert nothing is None


def reads(history: trackside.History, path: str) -> dict[str, float]:
    """Use everything of the history that is typed."""
    found: list[trackside.RunHistory] = history.runs("a", query="lr>1", since="7d", order_by="-loss", limit=3)
    run: trackside.RunHistory = trackside.open("a", path=path)
    whole: trackside.History = trackside.open(path=path)
    try:
        series: trackside.Series = run.series("loss", ranks=0, missing="ignore")[0]
    except (trackside.UnknownRunError, trackside.UnknownKeyError) as error:
        problem: trackside.HistoryError = error
        raise problem from None
    last: float = series.times[-1] + series.values[-1]
    labels: str = series.labels["gpu"]
    about: tuple[str, int | None, float, float | None, list[str]] = (
        run.state,
        run.step,
        run.started,
        run.ended,
        run.tags,
    )
    media: list[trackside.Media] = run.refresh().media()
    run.series("loss", missing="skip")  # type: ignore[arg-type]
    trackside.finish("done")  # type: ignore[arg-type]
    trackside.alert("title", "text", severity="bad")  # type: ignore[arg-type]
    trackside.log_text("key", "text", 3)  # type: ignore[call-arg]
    return {labels: last, about[0]: float(len(media) + len(found) + len(whole.runs())), trackside.__version__: 0.0}
