"""The shipped rules over a real daemon's page: every expression can be evaluated, and finds the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from end_to_end.queries import SCRAPED
from processes import ROOT, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.prometheus import Prometheus
    from processes import Daemon

FILE = ROOT / "deploy" / "prometheus" / "trackside.rules.yml"


def test_every_expression_is_evaluated_over_a_real_page(
    start_daemon: Callable[..., Daemon], start_prometheus: Callable[..., Prometheus]
) -> None:
    groups = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
    daemon = start_daemon("--collector.gpu.simulate=2", "--sample.interval=500ms")
    prometheus = start_prometheus(daemon.url)
    with trackside.init("llama", endpoint=daemon.endpoint) as run:

        def shown() -> bool:
            with run.phase("forward"):
                run.push(loss=float("nan"), tokens=100)
            return bool(prometheus.query('trackside_alert_firing{alert="NonFinite"} == 1'))

        eventually(shown, pause=SCRAPED)
        found = {
            rule.get("alert", rule.get("record")): prometheus.query(rule["expr"])
            for group in groups
            for rule in group["rules"]
        }
    (held,) = [one for one in found["alert:trackside_alert_firing:held20m"] if one.labels["alert"] == "NonFinite"]
    assert (held.labels["run"], held.labels["severity"], held.value) == ("llama", "critical", 1)
    assert [point.labels["run"] for point in found["run:trackside_training_restarts:count1d"]] == ["llama"]
    wrong = [name for name in found if name.startswith("Trackside") and found[name]]
    assert not [name for name in wrong if "Collector" in name or "Sidecar" in name or "Lost" in name], wrong
