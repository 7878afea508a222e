"""Waits for data, compared with the clocks of the data loaders themselves."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from processes import eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon

require("torch")

SCRIPT = str(Path(__file__).parent / "delays.py")
FIRST, OTHERS = (f"trackside_training_{name}_wait_seconds" for name in ("first_batch", "data"))


def finished(daemon: Daemon, run: str) -> bool:
    """Return whether the page shows the run as finished."""
    return daemon.series().get(f'trackside_training_state{{run="{run}",state="finished"}}') == 1


def test_waits_agree_with_real_loaders_of_known_delay(daemon: Daemon, run_training: Callable[..., str]) -> None:
    clocked = json.loads(run_training(daemon, SCRIPT))
    for run, seen in clocked.items():
        labels = f'{{rank="0",run="{run}"}}'
        eventually(partial(finished, daemon, run))
        page = daemon.series()
        assert [page[f"{family}_count{labels}"] for family in (FIRST, OTHERS)] == [2, 20]
        # The client's clock runs around the loader's, so that another process can delay the client alone.
        assert page[f"{FIRST}_sum{labels}"] >= seen["first"] * 0.999
        assert page[f"{OTHERS}_sum{labels}"] >= seen["others"] * 0.999
        assert seen["others"] * 1.001 >= seen["least"] > 0
        assert page[f"{FIRST}_sum{labels}"] + page[f"{OTHERS}_sum{labels}"] <= seen["epochs"] * 1.001
        data = page[f'trackside_training_phase_seconds_total{{phase="data",{labels[1:]}']
        assert data >= 0.999 * sum(page[f"{family}_sum{labels}"] for family in (FIRST, OTHERS))
