"""Rules in the real daemon: simulated GPUs with faults, and a user's rule about the pushes of a real training."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from processes import LEAN, Daemon, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OWN = "{alert: RewardLow, metric: 'key:reward', below: 0.1, severity: info, summary: '{run} earns {value}'}"


def firing(daemon: Daemon, alert: str) -> list[str]:
    page = daemon.series()
    return [name for name, value in page.items() if f'alert_firing{{alert="{alert}"' in name and value == 1]


def test_a_rule_on_a_pushed_key_fires_over_the_daemon_s_death(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    file = tmp_path / "trackside.yml"
    file.write_text(f"alerts: {{thresholds: {{gpu-memory-ratio: 0.5}}, rules: [{OWN}]}}\n", encoding="utf-8")
    options = ["--collector.gpu.simulate=2", "--sample.interval=250ms", *LEAN, f"--config.file={file}"]
    daemon = start_daemon(*options)
    with trackside.init("poor", id="poor-1", endpoint=daemon.endpoint) as run:
        run.push(step=1, reward=0.01)
        eventually(lambda: firing(daemon, "RewardLow"))
        (kept,) = [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "RewardLow"]
        assert (kept["run"], kept["summary"], kept["ended"]) == ("poor-1", "poor earns 0.01", None)
        daemon.stop(signal.SIGKILL)
        again = start_daemon(*options)
        eventually(lambda: again.series().get('trackside_training_step{rank="0",run="poor"}') == 1)
        run.push(step=2, reward=0.02)
        eventually(lambda: again.series().get('trackside_training_step{rank="0",run="poor"}') == 2)
        assert firing(again, "RewardLow")
        assert not [line for line in again.log if "RewardLow" in line]
    assert not [line for line in again.log if "failed on a batch" in line]
