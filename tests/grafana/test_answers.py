"""Values of panels for given series, computed by Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from grafana.boards import committed, panels, substituted
from processes import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

BOARDS = committed()
ALL = dict.fromkeys(("job", "instance", "run", "rank"), ".+") | {
    "cluster": ".*",
    "__rate_interval": "1m",
    "__range": "1h",
}
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool works them out")

Series = dict[str, str]
"""Values of each series every 15 s, in promtool's notation."""


def _expr(uid: str, title: str, letter: str = "A") -> str:
    panel = next(one for one in panels(BOARDS[uid]) if one["title"] == title)
    return substituted(next(one["expr"] for one in panel["targets"] if one["refId"] == letter), ALL)


def _check_query(place: Path, series: Series, expr: str, at: str, *samples: tuple[str, float]) -> None:
    """Raise an AssertionError if Prometheus computes something else."""
    expected: list[Any] = [{"labels": labels, "value": value} for labels, value in samples]
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": expected}],
    }
    file = place / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _phases(forward: dict[str, int]) -> Series:
    """Return series of two nodes with two ranks each, for the given tenths of time in forward; they wait the rest."""
    return {
        f'trackside_training_phase_seconds_total{{job="t", instance="{"ab"[int(rank) // 2]}", run="r", rank="{rank}", '
        f'phase="{phase}"}}': f"0+{seconds}x40"
        for rank, own in forward.items()
        for phase, seconds in (("forward", own), ("sync", 10 - own))
    }


def test_a_node_that_is_slow_as_a_whole_is_seen(tmp_path: Path) -> None:
    series = _phases({"0": 4, "1": 4, "2": 4, "3": 4}) | _phases({"2": 8, "3": 8})
    expr = _expr("trackside-fleet", "Worst stragglers")
    slow, fast = 8 / 6, 4 / 6
    reported = [(f'{{run="r", rank="{rank}"}}', fast if rank in "01" else slow) for rank in "0123"]
    _check_query(tmp_path, series, expr, "5m", *reported)


def test_one_rank_alone_is_no_straggler(tmp_path: Path) -> None:
    _check_query(tmp_path, _phases({"0": 4}), _expr("trackside-training", "Straggler ratio", "D"), "5m")


def _number(state: str) -> float:
    """Return the number of a state in the dashboard's mappings."""
    panel = next(one for one in panels(BOARDS["trackside-training"]) if one["title"] == "State")
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    return next(float(number) for number, reported in options.items() if reported["text"] == state)


def _ranks_series() -> Series:
    """Return series of an end at the third minute; the rank's own series remain for one more minute."""
    labels = 'job="t", instance="a", run="r", rank="0"'
    return {
        f'trackside_training_rank_state{{{labels}, state="running"}}': "1x11 0x4 stale",
        f'trackside_training_rank_state{{{labels}, state="finished"}}': "0x11 1x4 stale",
        f"trackside_training_step{{{labels}}}": "0+1x16 stale",
        f"trackside_training_end_timestamp_seconds{{{labels}}}": "_x12 180x60 stale",
    }


@pytest.mark.parametrize(("letter", "value"), [("A", _number("finished")), ("B", 16.0)])
def test_a_rank_is_in_the_table_while_its_end_is_reported(tmp_path: Path, letter: str, value: float) -> None:
    expr = _expr("trackside-training", "Ranks now", letter)
    _check_query(tmp_path, _ranks_series(), expr, "12m", ('{rank="0"}', value))


@pytest.mark.parametrize("letter", ["A", "B"])
def test_and_not_for_longer(tmp_path: Path, letter: str) -> None:
    _check_query(tmp_path, _ranks_series(), _expr("trackside-training", "Ranks now", letter), "25m")


def test_one_node_that_stands_still_is_the_runs_state(tmp_path: Path) -> None:
    series = {
        f'trackside_training_state{{job="t", instance="{node}", run="r", state="{state}"}}': "1x40"
        for node, state in (("a", "running"), ("b", "stalled"))
    }
    _check_query(tmp_path, series, _expr("trackside-training", "State"), "1m", ('{run="r"}', _number("stalled")))


def test_the_age_of_a_push_does_not_grow_between_scrapes(tmp_path: Path) -> None:
    series = {
        'trackside_training_last_step_timestamp_seconds{job="t", instance="a", run="r", rank="0"}': "0+15x40",
    }
    _check_query(
        tmp_path,
        series,
        _expr("trackside-training", "Time since the last push", "D"),
        "2m10s",
        ('{rank="0"}', 0.0),
    )


STATS = [
    ("trackside-training", "Alerts"),
    ("trackside-fleet", "Nodes"),
    ("trackside-fleet", "Runs"),
    ("trackside-fleet", "Alerts"),
    ("trackside-itself", "Daemons up"),
    ("trackside-itself", "Daemons down"),
    ("trackside-itself", "Failing collectors"),
    ("trackside-itself", "Failed reloads"),
]


@pytest.mark.parametrize(("uid", "title"), STATS)
def test_where_there_is_nothing_nothing_is_well(tmp_path: Path, uid: str, title: str) -> None:
    _check_query(tmp_path, {"something_else": "1x40"}, _expr(uid, title), "1m")


def test_a_daemon_that_is_up_is_none_that_is_down(tmp_path: Path) -> None:
    labels = 'job="t", instance="a"'
    series = {f"up{{{labels}}}": "1x40", f"trackside_build_info{{{labels}}}": "1x40"}
    _check_query(tmp_path, series, _expr("trackside-itself", "Daemons down"), "1m", ("{}", 0.0))


def test_the_last_daemon_that_goes_down_is_down(tmp_path: Path) -> None:
    labels = 'job="t", instance="a"'
    series = {f"up{{{labels}}}": "1x4 0x40", f"trackside_build_info{{{labels}}}": "1x4 stale"}
    for title, value in (("Daemons down", 1.0), ("Daemons up", 0.0)):
        _check_query(tmp_path, series, _expr("trackside-itself", title), "8m", ("{}", value))


def test_alerts_that_did_not_begin_are_no_rows(tmp_path: Path) -> None:
    name = 'trackside_alerts_total{job="t", instance="a", alert="LossSpike", severity="warning"}'
    _check_query(tmp_path, {name: "3x500"}, _expr("trackside-fleet", "Alerts started"), "120m")


def test_nodes_of_equal_names_in_two_clusters_stay_two(tmp_path: Path) -> None:
    size, info = "scrape_samples_scraped", 'trackside_build_info{version="1", '
    series = {
        f'{size}{{job="t", instance="gpu1", cluster="{one}"}}': value for one, value in (("a", "5x9"), ("b", "7x9"))
    }
    series |= {f'{info}job="t", instance="gpu1", cluster="b"}}': "1x9"}
    expr = _expr("trackside-itself", "Scrape size", "D")
    _check_query(tmp_path, series, expr, "2m", (f'{size}{{job="t", instance="gpu1", cluster="b"}}', 7))
