"""The programs of docs/python.md and docs/recipes.md run as they stand there, over a history that has what they name."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pytest
from histories import BEGIN, column, finished, history, opened
from processes import ROOT

from trackside_daemon.model.records import Event, MachineSample, RunState

if TYPE_CHECKING:
    from pathlib import Path


EXPECTED = {
    "python": {"import trackside": "gpt-small {'lr': 1.0} ['loss', 'grad_norm']", "ranks=[0]": "0 0 [10, 11, 12"},
    "recipes": {
        "to_latex": "sweep-5 & 0.000000 & 0.125000 & 0.000000",
        "ttest_ind": "0.001",
        "machine_to_pandas": "10    1      100.0",
        "time.sleep": "(40, 40.0)\nfinished {'best_eval_loss': 0.5}",
        "resume from": "broken OOM killed []\nresume from the beginning\nbroken run broken failed: OOM killed",
    },
}
"""By a text in its code, what a program prints."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a history with a sweep, two settings with five seeds each, a failed run, and GPUs."""
    path = tmp_path_factory.mktemp("recipes")
    now = time.time()
    seeds = [f"{name}-s{seed}" for name in ("base", "wide") for seed in range(5)]
    with history(path) as made:
        for number, run in enumerate(("gpt-small", "live", *(f"sweep-{number}" for number in range(6)), *seeds)):
            tags = ("sweep",) if run.startswith("sweep") else ()
            made.put([opened(run, config={"lr": 10.0**-number}, tags=tags, started=BEGIN + number)])
            made.put([column(run, ["loss", "grad_norm"], 40 + number)])
            made.put([Event(run, 0, BEGIN, "summary", 0, None, {"best_eval_loss": 1 / (1 + number)}), finished(run)])
        watts = 'trackside_gpu_power_watts{gpu="%d"}'
        made.put(
            [MachineSample(BEGIN + 5 * tick, {watts % gpu: 100.0 * gpu for gpu in (1, 2)}) for tick in range(1, 9)]
        )
        made.put([opened("broken", started=now - 60), RunState("broken", 0, "failed", "OOM killed", now)])
        made.wait_until_packed()
    return path


@pytest.mark.parametrize("page", ["python", "recipes"])
def test_the_code_of_a_page_runs(
    place: Path, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKSIDE_STORAGE__PATH", str(place))
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").partition("## Of a running daemon")[0]
    names: dict[str, Any] = {}
    printed = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
        printed[code] = capsys.readouterr().out
    for begin, expected in EXPECTED[page].items():
        assert expected in next(text for code, text in printed.items() if begin in code)
    if page == "recipes":
        assert names["winner"].name == "gpt-small"
