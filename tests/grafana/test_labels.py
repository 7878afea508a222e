"""Every family and label in a dashboard belongs to the daemon or Prometheus; the check finds others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from grafana.boards import committed, queries
from grafana.labels import LabelError, labels, strangers
from grafana.promql import parsed
from grafana.samples import GOOD, SOURCE, sample

BOARDS = committed()


@pytest.mark.parametrize("uid", BOARDS)
def test_every_family_and_label_is_known(uid: str) -> None:
    assert list(strangers(BOARDS[uid])) == []


@pytest.mark.parametrize("uid", BOARDS)
def test_no_percentile_is_of_buckets_that_double(uid: str) -> None:
    for query in queries(BOARDS[uid]):
        assert not re.search(r"histogram_quantile\([^()]*sum by \(le\) \(rate\(trackside_\w+_bucket", query.expr), query


LOSS = "trackside_training_loss"
INFO = "trackside_training_run_info"
HAVE: list[tuple[str, set[str]]] = [
    (LOSS, {"job", "instance", "run", "rank"}),
    (f"avg by (run) ({LOSS})", {"run"}),
    (f"avg without (rank, instance, job) ({LOSS})", {"run"}),
    (f"sum({LOSS})", set()),
    (f"topk(3, avg by (run, rank) ({LOSS}))", {"run", "rank"}),
    (f"sum by (run) ({LOSS}) / sum by (run) (trackside_training_epoch)", {"run"}),
    (f"{LOSS} * on (job, instance, run) group_left (host) {INFO}", {"job", "instance", "run", "rank", "host"}),
    ("count_values('step', trackside_training_step)", {"step"}),
    (f"label_replace({LOSS}, 'short', '$1', 'run', '(.).*')", {"job", "instance", "run", "rank", "short"}),
    (f"{LOSS} > 1 and on (run) trackside_training_state == 1", {"job", "instance", "run", "rank"}),
    (f"sum by (run) ({LOSS}) or sum by (rank) ({LOSS})", {"run", "rank"}),
    ("histogram_quantile(0.5, sum by (le, run) (rate(trackside_training_step_duration_seconds_bucket[1m])))", {"run"}),
    (f"1 - max_over_time(avg by (run) ({LOSS})[1h:])", {"run"}),
    ("time() - process_start_time_seconds", {"job", "instance"}),
]


@pytest.mark.parametrize(("expr", "expected"), HAVE)
def test_the_labels_of_an_answer(expr: str, expected: set[str]) -> None:
    assert labels(parsed(expr)) - {"cluster", "namespace", "pod"} == expected


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("trackside_training_los", "there is no family trackside_training_los"),
        ("trackside_training_step_duration_seconds_max", "there is no family"),
        (f'{LOSS}{{gpu="1"}}', f"{LOSS} names gpu; there are"),
        (f"sum by (gpu) ({LOSS})", "sum names gpu"),
        (f"sum by (run) (sum by (rank) ({LOSS}))", "sum names run; there are rank"),
        (f"{LOSS} / on (host) {INFO}", "/ on names host"),
        ('trackside_training_state{state=~"starting|runing|stalled"}', "has no state runing; there are failed"),
        ('trackside_alert_firing{severity!="inf"}', "has no severity inf"),
        (f"{LOSS} / ignoring (gpu) {LOSS}", "/ ignoring names gpu"),
        (f"{LOSS} * on (run) group_left (rank) {INFO}", "group_left names rank"),
        (f"histogram_quantile(0.5, {LOSS})", "histogram_quantile names le"),
        (f"label_replace({LOSS}, 'a', '$1', 'gpu', '(.*)')", "label_replace names gpu"),
    ],
)
def test_a_missing_label_is_reported(expr: str, complaint: str) -> None:
    with pytest.raises(LabelError, match=complaint.replace("(", r"\(")):
        labels(parsed(expr))


def _mark(**changes: str) -> dict[str, Any]:
    expr = "trackside_alert_firing == 1"
    return {"name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red", "expr": expr, **changes}


def test_legends_variables_and_annotations_are_checked_too() -> None:
    assert list(strangers(GOOD)) == []
    board = sample()
    board["panels"][0]["targets"][0]["legendFormat"] = "{{ gpu }}"
    board["templating"]["list"][2]["query"] = 'label_values(trackside_build_info{job=~"$job"}, host)'
    board["annotations"] = {"list": [_mark(titleFormat="{{alert}}", tagKeys="severity,node")]}
    assert [one.partition(": ")[2] for one in strangers(board)] == [
        "panel 'Memory', query A: the legend has gpu, and the series have cluster, instance, job, namespace, pod",
        'variable instance: trackside_build_info{job=~"$job"} has no label host',
        "annotation 'Alerts': its texts have node, which its series have not",
    ]
