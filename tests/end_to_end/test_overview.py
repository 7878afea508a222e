"""Overview of a real daemon with a real training: as a single answer, and as a stream."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import bcrypt
from processes import DEADLINE, eventually, http

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx
    from end_to_end.conftest import Process
    from processes import Daemon

TRAINING = """
import sys, trackside
run = trackside.init("seen", id="seen-1", total_steps=1000)
for line in sys.stdin:
    step = int(line)
    run.push(step=step, loss=5.0 - step / 100, tokens=500, **{"eval/f1": step / 1000})
"""
GPU = '{gpu="0",uuid="GPU-00000000-0000-0000-0000-000000000000"}'


def push(training: Process, *steps: int) -> None:
    assert training.stdin is not None
    training.stdin.writelines(f"{step}\n" for step in steps)
    training.stdin.flush()


def key(daemon: Daemon) -> dict[str, str]:
    return {"Authorization": f"Bearer {(daemon.directory / 'push.token').read_text().strip()}"}


@contextmanager
def streaming(daemon: Daemon, query: str = "") -> Iterator[httpx.Response]:
    url = f"{daemon.url}/api/v1/stream{query}"
    with http.stream("GET", url, headers=key(daemon)) as answer:
        assert answer.status_code == 200
        yield answer


def events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and data of events as they arrive."""
    name = ""
    for line in answer.iter_lines():
        word, _, rest = line.partition(": ")
        name = rest if word == "event" else name
        if word == "data":
            yield name, json.loads(rest)


def test_the_overview_has_the_values_of_the_page(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=2")
    push(start_training(daemon, "-c", TRAINING), *range(30))
    rank = '{rank="0",run="seen"}'
    eventually(lambda: daemon.series().get(f"trackside_training_step{rank}") == 29)
    eventually(lambda: any(gpu["ranks"] for gpu in daemon.api("overview").json()["gpus"]))
    eventually(lambda: (run := daemon.api("overview").json()["runs"][0])["sparkline"][-1:] == [run["loss"]])
    eventually(lambda: "cpu_ratio" in daemon.api("overview").json()["host"])  # of two ticks

    def between_two_pages() -> Any:
        """Return the overview, and a page whose values were the same before and after it."""
        names = ("utilization_ratio", "memory_used_bytes", "power_watts", "sm_active_ratio")
        own = {name: f"trackside_gpu_{name}{GPU}" for name in names}
        before, answered, after = daemon.series(), daemon.api("overview").json(), daemon.series()
        return (answered, before) if all(before[one] == after[one] for one in own.values()) else None

    answered, page = eventually(between_two_pages)
    (run,), gpu, host = answered["runs"], answered["gpus"][0], answered["host"]
    for name, value in {"step": "step", "loss": "loss", "progress_ratio": "progress_ratio"}.items():
        assert run[name] == page[f"trackside_training_{value}{rank}"]
    assert run["last_step_time"] == page[f"trackside_training_last_step_timestamp_seconds{rank}"]
    assert (run["id"], run["state"], run["total_steps"]) == ("seen-1", "running", 1000)
    assert run["sparkline"][-1] == run["loss"]
    for name in ("utilization_ratio", "memory_used_bytes", "memory_bytes", "power_watts", "sm_active_ratio"):
        assert gpu[name] == page[f"trackside_gpu_{name}{GPU}"]
    assert gpu["ranks"] == [{"run": "seen-1", "name": "seen", "rank": 0}]
    assert host["memory_bytes"] == page["trackside_host_memory_bytes"]
    assert 0 <= host["cpu_ratio"] < 1.001  # a difference of two counters
    kept = daemon.api("runs/seen-1/series?key=loss&points=0").json()["points"]
    assert set(run["sparkline"]) <= {value for _, _, value in kept}


def test_a_new_step_is_in_the_stream_with_its_values(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    training = start_training(daemon, "-c", TRAINING)
    push(training, 0)
    eventually(lambda: daemon.api("runs/seen-1").status_code == 200)
    with streaming(daemon, "?run=seen") as answer:
        answered = events(answer)
        next(answered)
        push(training, 1, 2, 3)
        run = next(data for name, data in answered if name == "run" and data["step"] == 3)
        assert (run["id"], run["state"]) == ("seen-1", "running")
        assert {key: ranks["0"][::2] for key, ranks in run["values"].items()} == {
            "loss": [3, 4.97],
            "tokens": [3, 500.0],
            "eval/f1": [3, 0.003],
        }
        shown = next(data["runs"][0] for name, data in answered if name == "overview")
        assert (shown["step"], shown["loss"]) == (3, 4.97)
        kept = daemon.api("runs/seen-1/series?key=loss&points=0").json()["points"]
        assert run["values"]["loss"]["0"] == kept[-1]


def test_what_fires_comes_by_itself(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    training = start_training(daemon, "-c", TRAINING.replace("5.0 - step / 100", "float('nan')"))
    with streaming(daemon) as answer:
        push(training, 0, 1)
        fires = (one for _, data in events(answer) for one in data["alerts"])
        found = next(one for one in fires if one["alert"] == "NonFinite" and one["id"] is not None)
    assert (found["run"], found["key"], found["severity"], found["silenced"]) == ("seen-1", "loss", "critical", False)
    assert daemon.api(f"alerts/{found['id']}").json()["alert"] == "NonFinite"


def test_a_password_of_the_web_configuration_opens_the_stream(
    start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n  me: {hashed}\n")
    asking = {"auth": ("me", "secret"), "timeout": DEADLINE}
    daemon = start_daemon(f"--web.config.file={tmp_path / 'web.yml'}", asking=asking)
    with http.stream("GET", f"{daemon.url}/api/v1/stream", **asking) as answer:  # type: ignore[arg-type]
        assert next(events(answer))[0] == "overview"
    assert http.get(f"{daemon.url}/api/v1/stream").status_code == 401
