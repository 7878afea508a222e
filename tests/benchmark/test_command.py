"""`trackside benchmark` as a user runs it, beside a daemon."""

from __future__ import annotations

import json
import os
import re
import signal
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from benchmark.streaming_server import StreamingServer
from click.testing import CliRunner
from processes import ROOT, Daemon, clean_environ, command, eventually, run, start

from trackside_daemon.cli.main import load

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

QUICK = ("--repeats=1", "--seconds=0.3")


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("benchmark"))
    yield daemon
    daemon.stop()


def options(daemon: Daemon | None, spool: Path, more: dict[str, str] | None = None) -> dict[str, Any]:
    endpoint = "ipc:///nowhere/push.sock" if daemon is None else daemon.endpoint
    ours = {"TRACKSIDE_ENDPOINT": endpoint, "TRACKSIDE_SPOOL": str(spool), **(more or {})}
    return {"env": clean_environ(ours), "cwd": ROOT / "tests" / "benchmark"}


def benchmark(daemon: Daemon | None, spool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(command("benchmark", *arguments), **options(daemon, spool))


def test_results_are_printed_stored_compared_and_exported(watching: Daemon, tmp_path: Path) -> None:
    two = ("--variant=small", "--variant=large", "--name=hashes")
    done = benchmark(watching, tmp_path, "targets:hashing", *two, "--repeats=2", "--seconds=1", "--json")
    assert done.returncode == 0, done.stderr
    contents = json.loads(done.stdout)
    [comparison] = contents["comparisons"]
    assert comparison["verdict"] == "slower"
    assert 0.4 < comparison["times_faster"]["low"] < comparison["times_faster"]["high"] < 0.7
    assert [variant["name"] for variant in contents["variants"]] == ["small", "large"]
    assert contents["variants"][0]["load_seconds"] > 0
    labels = 'percentile="50",rank="0",run="hashes",variant="large"'
    page = eventually(lambda: watching.series() if labels in watching.get("/metrics").text else {})
    p50 = contents["variants"][1]["latency_seconds"]["p50"]["value"]
    assert page[f'trackside_model_latency_seconds{{load="",{labels}}}'] == pytest.approx(p50)
    shown = run(command("show", contents["run"], f"--storage.path={watching.history}")).stdout
    assert "times slower than small" in shown
    assert benchmark(watching, tmp_path, "targets:hashing", *two, *QUICK).returncode == 0
    key = "model/large/latency_p50_seconds"
    for bound, status in (("5", 0), ("0.2", 3)):
        condition = f"--fail-if={key} > {bound} * baseline"
        gate = run(command("compare", "hashes", "hashes", condition, f"--storage.path={watching.history}"))
        assert gate.returncode == status, gate.stderr


def test_variants_that_fail_are_named_in_a_line_each_and_the_others_are_measured(tmp_path: Path) -> None:
    variants = [f"--variant={name}" for name in ("good", "raises", "hungry", "exits")]
    done = benchmark(None, tmp_path, "targets:failing", *variants, *QUICK)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    [raises] = [line for line in lines if line.startswith("  raises failed: ")]
    assert raises.endswith("RuntimeError: no such layer in this model")
    assert "targets.py:" in raises
    assert [line for line in lines if line.startswith("  hungry failed: out of memory: ")]
    assert [line for line in lines if line.startswith("  exits failed: ")]
    assert [line for line in lines if line.split()[:2] == ["-", "good"]]
    assert "waits in the spool for the next daemon" in done.stdout


def test_a_target_that_cannot_be_measured_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    expected = {
        ("targets:broken",): "original: .*ValueError: no weights",
        ("targets:absent",): "module targets has no function absent",
        ("model.pt",): "write MODULE:FACTORY, or the address of an endpoint",
        (
            "targets:hashing",
            "--checkpoint=a.pt",
        ): "needs a factory with a parameter checkpoint; targets:hashing has none",
        ("targets:hashing", "--batch-size=2"): "need a function inputs.batch, length. that makes the inputs",
        ("absent:load",): "no module absent in ",
        ("targets:killed",): "its process was killed, probably because memory ran out",
    }
    for arguments, text in expected.items():
        done = benchmark(None, tmp_path, *arguments, *QUICK)
        assert done.returncode == 1
        assert not done.stdout
        [line] = [one for one in done.stderr.splitlines() if "no daemon found" not in one]
        assert re.search(text, line)


def test_ctrl_c_retains_what_was_measured(watching: Daemon, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    arguments = command("benchmark", "targets:noting", "--repeats=2", "--seconds=60", "--name=cancelled")
    process = start(
        arguments, **options(watching, tmp_path, {"NOTES": str(notes)}), stdout=PIPE, stderr=PIPE, text=True
    )
    eventually(notes.exists)
    os.kill(process.pid, signal.SIGINT)
    printed, complaints = process.communicate(timeout=60)
    assert process.returncode == 130, complaints
    assert "ended early: cancelled; the results are those of what was measured until then" in printed
    assert "Traceback" not in complaints
    stored = watching.api("runs/cancelled").json()
    assert stored["summary"]["ended"] == "cancelled"
    assert stored["state"] == "stopped"


def test_an_endpoint_is_measured_with_its_failures_counted(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("count\ncut\n")
    with StreamingServer(0.004, 0.002) as server:
        arguments = (server.url, "--concurrency=2", f"--prompts={prompts}", *QUICK)
        done = benchmark(None, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "TTFT P50" in done.stdout
    assert "cut" in done.stdout


def test_wrong_options_are_one_line() -> None:
    address = "http://127.0.0.1:1/v1"
    expected = {
        ("targets:hashing", "--concurrency=2"): "--concurrency needs an endpoint; targets:hashing is no http address",
        (address, "--batch-size=2"): "an endpoint has --concurrency",
        ("targets:hashing", "--variant=a", "--variant=a"): "given twice",
        (address, "targets:hashing"): "cannot be compared",
        (address, "--header=x"): "write NAME:VALUE",
        (address, "--prompts=/nowhere"): "/nowhere: no such file or directory",
    }
    for arguments, text in expected.items():
        done = CliRunner().invoke(load("benchmark"), arguments)
        assert done.exit_code in {1, 2}
        assert text in done.stderr
        assert len(done.stderr.splitlines()) == 1
