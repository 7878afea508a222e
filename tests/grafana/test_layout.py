"""The layout of the dashboards: no overlaps, distinct names, working links."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from grafana.boards import committed, queries
from grafana.layout import lost, misplaced, mistimed, nameless, twice, unheeded, unused
from grafana.samples import GOOD, HERE, sample

from trackside_daemon.model.families.training import STATES
from trackside_daemon.model.records import ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOARDS = committed()
STATE = re.compile(r'state="(\w+)"\} == 1\) \+ (\d+)')
CHECKS: dict[str, Callable[[Any], list[str]]] = {
    "twice": lambda board: list(twice(board)),
    "misplaced": lambda board: list(misplaced(board)),
    "nameless": lambda board: list(nameless(board)),
    "unused": lambda board: list(unused(board)),
    "unheeded": lambda board: list(unheeded(board)),
    "mistimed": lambda board: list(mistimed(board)),
    "lost": lambda board: list(lost(board, {**BOARDS, board["uid"]: board})),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_is_well_laid_out(uid: str, check: str) -> None:
    assert CHECKS[check](BOARDS[uid]) == []


@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_is_identified_by_the_name_of_its_file(uid: str) -> None:
    assert BOARDS[uid]["uid"] == uid
    assert "id" not in BOARDS[uid], "Grafana gives one"
    assert len(uid) <= 40


def test_dashboards_have_names_of_their_own() -> None:
    assert len({one["title"] for one in BOARDS.values()}) == len(BOARDS) == 4


def _link(url: str) -> Callable[[Any], None]:
    link = {"title": "There", "url": url}
    return lambda board: board["panels"][0]["fieldConfig"]["defaults"].update(links=[link])


def _target(**changes: Any) -> Callable[[Any], None]:
    return lambda board: board["panels"][0]["targets"][0].update(changes)


def _again(board: Any) -> None:
    board["panels"][0]["targets"] *= 2


def _variable(board: Any) -> None:
    board["templating"]["list"].append({**deepcopy(board["templating"]["list"][2]), "name": "pod"})


def _mark(**changes: Any) -> Callable[[Any], None]:
    return lambda board: board["annotations"].update(list=[{"name": "Began", **changes}])


def _by_gpu(board: Any) -> None:
    board["templating"]["list"].append({**deepcopy(board["templating"]["list"][2]), "name": "gpu"})
    board["panels"][0]["targets"][0]["expr"] = f"trackside_gpu_power_watts{{{HERE}}}"


START = "trackside_training_start_timestamp_seconds"
RUNS = f"trackside_training_loss{{{HERE}}}"
BREAKING: list[tuple[str, Callable[[Any], Any], str]] = [
    ("twice", lambda board: board["panels"][0].update(id=2), "panel id 2 is there 2 times"),
    ("twice", lambda board: board["panels"][0].update(title="Energy"), "title 'Energy' is there 2 times"),
    ("twice", _again, "Memory: query 'A' is there 2 times"),
    ("misplaced", lambda board: board["panels"][0]["gridPos"].update(x=1), "Memory is not within 24 columns"),
    ("misplaced", lambda board: board["panels"][0]["gridPos"].update(h=9), "Memory and Energy are upon one another"),
    ("nameless", _target(legendFormat=""), "Memory, query A: several series, and no legend"),
    ("nameless", _target(legendFormat="free"), "Memory, query A: series that are all called 'free'"),
    ("unused", _variable, "nothing uses the variable pod"),
    ("unused", _variable, "the variable pod is none of"),
    ("unused", _target(expr='a{run=~"$run"}'), "$run is no variable"),
    ("lost", _link("/d/trackside-nowhere"), "Memory, link 'There': /d/trackside-nowhere leads to no dashboard"),
    ("lost", _link("/d/trackside-gpus?var-node=a"), "trackside-gpus has no variable node"),
    ("lost", _link("/d/trackside-gpus?${gpu:queryparam}"), "$gpu is no variable here"),
    ("lost", _link("/d/trackside-gpus?var-gpu=${__field.labels.gpu}"), "the series have no label gpu"),
    (
        "lost",
        _link("/d/trackside-gpus?var-gpu=${__data.fields.instanc:percentencode}"),
        "the table has no column instanc",
    ),
    ("mistimed", _mark(expr=f"1000 * max({START})"), "Began: a time is in milliseconds"),
    ("mistimed", _mark(expr=f"max({START})", useValueForTime=True), "Began: a time is in milliseconds"),
    ("mistimed", _mark(expr="trackside_alert_firing", useValueForTime=True), "Began: a time is in milliseconds"),
    ("unheeded", _by_gpu, "its series have the label gpu, and $gpu does not choose among them"),
    (
        "lost",
        lambda board: board["links"].append({"type": "dashboards", "tags": ["other"], "title": "All"}),
        "link 'All': no other dashboard has the tags ['other']",
    ),
]


@pytest.mark.parametrize(("check", "change", "complaint"), BREAKING, ids=[one[2] for one in BREAKING])
def test_layout_errors_are_reported(check: str, change: Callable[[Any], Any], complaint: str) -> None:
    assert [found(GOOD) for found in CHECKS.values()] == [[]] * len(CHECKS)
    board = sample()
    change(board)
    assert any(complaint in one for one in CHECKS[check](board)), CHECKS[check](board)


def test_a_link_may_carry_what_both_dashboards_have_and_what_a_series_has() -> None:
    board = sample()
    _target(expr=f'{RUNS[:-1]}, run=~".+"}}')(board)
    _link("/d/trackside-training?${__url_time_range}&${job:queryparam}&var-run=${__field.labels.run}")(board)
    assert CHECKS["lost"](board) == []


def test_states_have_numbers_of_their_own_and_the_texts_of_these() -> None:
    """Return the highest state, as for a run with ranks in several: a worse end before a better one."""
    asked = 0
    for board in BOARDS.values():
        for query in queries(board):
            numbers = {name: int(before) + 1 for name, before in STATE.findall(query.expr)}
            if not numbers:
                continue
            asked += 1
            assert numbers.keys() == set(STATES), query.where
            assert sorted(numbers.values()) == list(range(1, len(STATES) + 1)), query.where
            ends = sorted(ENDS, key=numbers.__getitem__)
            assert (*reversed(ends),) == ENDS, query.where
            shown = {str(number): name for name, number in numbers.items()}
            assert shown in list(_texts(query.panel)), query.where
    assert asked >= 3


def _texts(panel: Any) -> Iterator[dict[str, str]]:
    """Return the texts of a panel's value mappings."""
    config = panel["fieldConfig"]
    every = [config["defaults"].get("mappings", [])]
    every += [one["value"] for over in config["overrides"] for one in over["properties"] if one["id"] == "mappings"]
    for mappings in every:
        yield {value: text["text"] for one in mappings for value, text in one["options"].items()}
