"""A real training fails, and its alert carries evidence of the cause."""

from __future__ import annotations

import json
import re
from typing import Any

from processes import Daemon, eventually, run_here

import trackside


def alerts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the alerts of this name in the history."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == name]


def with_evidence(daemon: Daemon, name: str, part: str) -> dict[str, Any]:
    """Return the alert of a name, once it has a part of its evidence."""
    (found,) = eventually(lambda: [one for one in alerts(daemon, name) if part in one["evidence"]])
    return found


def shown(daemon: Daemon, *arguments: str) -> str:
    """Return the output of `trackside alerts` on a terminal of 80 columns."""
    done = run_here("alerts", *arguments, f"--storage.path={daemon.history}", environ={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_nan_has_the_samples_before_it_and_is_shown_within_80_columns(daemon: Daemon) -> None:
    with trackside.init("diverges", endpoint=daemon.endpoint) as run:
        for step in range(30):
            run.push(step=step, loss=2.5 + step % 3 / 10, grad_norm=1.5)
        run.push(step=30, loss=float("nan"), grad_norm=7.5)
        found = with_evidence(daemon, "NonFinite", "samples")
        evidence = found["evidence"]
        assert (evidence["samples"]["key"], evidence["samples"]["rank"]) == ("loss", 0)
        points = evidence["samples"]["points"]
        assert [step for step, _, _ in points] == list(range(11, 31))
        assert points[-1][2] == "nan"
        assert (evidence["ranks"]["0"]["grad_norm"], evidence["ranks"]["0"]["step"]) == (7.5, 30)
        assert evidence["ranks"]["0"]["state"] == "running"
        text = shown(daemon, "show", "nonfinite", "--run=diverges")
    assert max(map(len, text.splitlines())) <= 80
    assert re.match(r"alert +NonFinite  critical  firing\n", text)
    assert re.search(r"^  [▁-█]{19}!  2\.5 to 2\.7$", text, re.MULTILINE)
    assert text.endswith("docs/alerts.md#nonfinite\n")
    assert re.search(rf"^ *{found['id']}  NonFinite", shown(daemon), re.MULTILINE)
    assert json.loads(shown(daemon, "show", str(found["id"]), "--json"))["evidence"] == evidence
