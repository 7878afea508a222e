"""The programs of docs/recipes.md that ask a running daemon."""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import httpx
from processes import ROOT, clean_environ, eventually, start

if TYPE_CHECKING:
    import pytest
    from processes import Daemon

TRAINING = """
import sys, time, trackside
with trackside.init(sys.argv[1], endpoint=sys.argv[2]) as run:
    for step in range(600):
        run.push(step=step, loss=float(step))
        time.sleep(0.1)
"""


def test_they_run_as_they_stand_there(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").partition("## Of a running daemon")[2]
    _, *programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    token = (daemon.directory / "push.token").read_text(encoding="utf-8").strip()
    options = {"base_url": f"{daemon.url}/api/v1", "headers": {"Authorization": f"Bearer {token}"}}
    trainings = [
        start([sys.executable, "-c", TRAINING, name, daemon.endpoint], env=clean_environ())
        for name in ("steady", "diverging")
    ]
    try:
        with httpx.Client(**options) as api:  # type: ignore[arg-type]
            names: dict[str, Any] = {"api": api, "options": options, "httpx": httpx}
            eventually(lambda: len(api.get("/overview").json()["runs"]) == 2)
            for program in programs:
                exec(program, names)
        assert trainings[1].wait(30) == -signal.SIGTERM, "the first program has ended it"
        assert trainings[0].poll() is None
    finally:
        for training in trainings:
            training.kill()
            training.wait()
    assert "'loss': {'0': [" in capsys.readouterr().out
    assert sorted(run["name"] for run in names["pages"]) == ["diverging", "steady"]
