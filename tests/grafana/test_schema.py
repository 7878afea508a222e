"""The dashboards conform to Grafana's classic schema; the check finds unknown keys and wrong types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grafana.boards import committed
from grafana.samples import GOOD, panel, sample
from jsonschema import Draft7Validator

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = json.loads((Path(__file__).parent / "dashboard.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft7Validator(SCHEMA)
BOARDS = committed()


def wrong(board: Any) -> list[str]:
    return [f"{one.json_path}: {one.message}"[:300] for one in VALIDATOR.iter_errors(board)]


def test_the_schema_is_one() -> None:
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_is_of_the_schema(uid: str) -> None:
    assert wrong(BOARDS[uid]) == []


def _defaults(**changes: Any) -> Callable[[Any], None]:
    return lambda board: board["panels"][0]["fieldConfig"]["defaults"].update(changes)


def _steps(*values: float | None) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"color": "red", "value": value} for value in values]}


def _override(name: str, value: Any) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": "A"}, "properties": [{"id": name, "value": value}]}


BREAKING: list[Callable[[Any], Any]] = [
    lambda board: board.update(descripton="misspelt"),
    lambda board: board.pop("title"),
    lambda board: board.update(schemaVersion=36),
    lambda board: board.update(refresh="often"),
    lambda board: board["panels"][0].update(type="graph"),
    lambda board: board["panels"][0].update(options={"legends": {}}),
    lambda board: board["panels"][0]["gridPos"].update(w=25),
    lambda board: board["panels"][0]["targets"][0].update(legend="{{run}}"),
    lambda board: board["panels"][0]["targets"][0].update(refId=""),
    lambda board: board["panels"][0]["fieldConfig"]["overrides"].append(
        {"matcher": {"id": "byLabel"}, "properties": []}
    ),
    lambda board: board["panels"][0]["fieldConfig"]["overrides"].append(_override("custom.fillBelowToo", "lowest")),
    lambda board: board["panels"][0]["fieldConfig"]["overrides"].append(
        _override("custom.cellOptions", {"type": "colour-text"})
    ),
    lambda board: board["panels"].append({**panel(3, "A row", "s"), "type": "row"}),
    lambda board: board["templating"]["list"][1].update(type="custom"),
    lambda board: board["annotations"].update(list=[{"name": "Alerts"}]),
    _defaults(unit=None),
    _defaults(units="s"),
    _defaults(decimals="2"),
    _defaults(thresholds=_steps(1, 2)),
    _defaults(thresholds=_steps(None, None)),
    _defaults(mappings=[{"type": "value", "options": {"1": {"name": "up"}}}]),
    _defaults(custom={"fillOpacity": 800}),
    _defaults(links=[{"title": "There", "uri": "/d/a"}]),
]


def test_the_sample_is_of_the_schema() -> None:
    assert wrong({**GOOD, "description": "A sample."}) == []


@pytest.mark.parametrize("change", BREAKING, ids=map(str, range(len(BREAKING))))
def test_what_is_not_of_the_schema_is_seen(change: Callable[[Any], Any]) -> None:
    board = sample() | {"description": "A sample."}
    change(board)
    assert wrong(board)
