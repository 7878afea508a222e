"""`trackside compare --fail-if` after real trainings: the same code passes, and worse code fails."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from gated_trainings import LAYERS, SLOWER, gate, train
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon


def test_the_same_code_passes_and_worse_or_slower_code_fails(
    start_daemon: Callable[..., Daemon], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    reports = tmp_path / "reports"
    daemon = start_daemon(environ={"TRACKSIDE_REPORTS__PATH": str(reports)})
    for name, rate in (("base", 0.01), ("same", 0.01), ("worse", 0.005)):
        train(daemon, name, 100, 4, rate)
    condition = "loss > 1.02 * baseline"
    assert [gate(daemon, "base", name, condition).returncode for name in ("same", "worse")] == [0, 3]
    eventually(lambda: len(list(reports.glob("*.html"))) == 3)  # the daemon writes one at the end of each run
    rounds = count(0, 20)  # times on a machine that others use are for --soak alone
    failed = {"same": 0, "slow": 0}
    for number in range(rounds):
        kinds = [("base", LAYERS), ("same", LAYERS), ("slow", SLOWER)]
        random.shuffle(kinds)
        for kind, layers in kinds:
            train(daemon, f"{kind}-{number}", 300, layers)
        for kind in failed:
            ended = gate(daemon, f"base-{number}", f"{kind}-{number}", "step_time_p25 > 1.025 * baseline")
            failed[kind] += ended.returncode == 3
    # One in twenty is expected on either side, so two are not rare.
    assert failed["same"] <= 0.1 * rounds
    assert failed["slow"] >= 0.9 * rounds
