"""Keys and names that would break a page, and a Prometheus that drops a whole scrape for one label that is too long."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.prometheus import Prometheus
    from processes import Daemon

STEPS = 10
TOO_LONG = "k" * 3000
HOSTILE = (
    'quote"',
    '"} 1\ntrackside_injected_total{x="',
    "two\nlines",
    "carriage\rreturn",
    "backslash\\",
    "backslash\\n",
    "\x00",
    "tab\t",
    "# EOF\n# TYPE trackside_training_loss counter",
    "{__name__='up'}",
    "grün/смех/訓練",
    "😀",
    "next\u2028line",
    "right\u202eleft",
    "\ufeffmark",
    "<script>alert(1)</script>",
    "${HOME} $(id) `id`",
    "%s %d {0}",
    "../../etc/passwd",
    "eval/loss",
    " ",
    "é" * 128,
)

#: Pushes each key of its argument beside the loss, under a name.
PUSHES = f"""
import json, sys, trackside
name, keys = json.loads(sys.argv[1])
with trackside.init(name) as run:
    for step in range(1, {STEPS + 1}):
        run.push(dict.fromkeys(keys, step), step=step, loss=1 / step)
"""


def test_what_is_over_the_limit_costs_only_itself_and_hostile_keys_arrive_as_they_were_written(
    daemon: Daemon, run_training: Callable[..., str], start_prometheus: Callable[..., Prometheus]
) -> None:
    name = 'run "x"\n{a="b"} \\ <script>alert(1)</script> grün 😀'
    run_training(daemon, "-c", PUSHES, json.dumps(["é" * 3000, [TOO_LONG, "short"]]))
    run_training(daemon, "-c", PUSHES, json.dumps([name, HOSTILE]))
    prometheus = start_prometheus(daemon.url, label_value_length_limit=1024)
    prometheus.shows("trackside_training_steps_total", STEPS, STEPS)
    prometheus.shows("trackside_training_loss", 1 / STEPS, 1 / STEPS)
    values = prometheus.shows("trackside_training_value", *[STEPS] * (len(HOSTILE) + 1))
    keys: dict[str, set[str]] = {}
    for point in values:
        keys.setdefault(point.labels["run"], set()).add(point.labels["key"])
    assert keys == {"é" * 128: {"short"}, name: set(HOSTILE)}
    assert prometheus.query("trackside_injected_total") == []
    prometheus.shows('trackside_series_rejected_total{reason="label_length"}', 1)
    prometheus.shows('sum(trackside_series_rejected_total{reason!="label_length"})', 0)
    prometheus.shows("up", 1)
    assert sum("label_length" in line for line in daemon.log) == 1
