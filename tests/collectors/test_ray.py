"""The collector of Ray: nodes and actors of a process tree, a dashboard that answers, hangs, lies or is gone."""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from processes import eventually
from ray_service import HEAD, OTHER, PAGE, Ray
from scripted_workers import Clock

from trackside_daemon import __version__
from trackside_daemon.cli.commands.doctor import _about
from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.ray.dashboard import STALE_SECONDS
from trackside_daemon.collectors.ray.ray import (
    SCAN_SECONDS,
    SERIES,
    LocalNode,
    RayCollector,
    actor_class,
    actor_role,
    samples,
)
from trackside_daemon.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STRANGER = 54321


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[Ray]:
    one = Ray(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(ray: Ray, clock: Clock) -> Iterator[RayCollector]:
    one = RayCollector(f"http://127.0.0.1:{ray.port}/", proc=ray.proc, clock=clock, read_seconds=0.05)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home directory of a user with no token."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".ray").mkdir(parents=True)
    return tmp_path / "home"


def page(collector: RayCollector) -> dict[str, Any]:
    """Return the values by family without the prefix, and labels; empty as long as nothing has answered."""
    try:
        found = collector.collect()
    except StillBusy:
        return {}
    return {"|".join((one.metric.name.removeprefix("trackside_ray_"), *one.labels)): one.value for one in found}


def test_resources_nodes_actors_and_tasks(ray: Ray, collector: RayCollector) -> None:
    eventually(lambda: page(collector))
    assert page(collector) == {
        f"node_up|{HEAD}": 1.0,
        f"node_up|{OTHER}": 1.0,
        f"actor_info|101|sampler-0|RolloutWorker|generate|01000000|{HEAD}": 1.0,
        f"actor_info|201||Learner|train||{OTHER}": 1.0,
        "node_deaths_total": 0.0,
        "nodes|alive": 2.0,
        "nodes|dead": 0.0,
        "cluster_resources|CPU": 4.0,
        "cluster_resources|memory": 2e9,
        "actors|alive": 1.0,
        "actor_restarts_total": 1.0,
        **{f"node_resources|{node}|CPU|{state}": 1.0 for node in (HEAD, OTHER) for state in ("used", "available")},
        **{f"object_store_used_bytes|{node}": 2.5e7 for node in (HEAD, OTHER)},
        **{f"object_store_size_bytes|{node}": 1e8 for node in (HEAD, OTHER)},
        "tasks|running": 6.0,
    }


def test_a_node_that_is_killed_counts_before_ray_notices(ray: Ray, collector: RayCollector, clock: Clock) -> None:
    eventually(lambda: page(collector))
    ray.kill(200)
    clock.now += SCAN_SECONDS
    found = eventually(lambda: (now := page(collector))["node_deaths_total"] and now)
    assert (found[f"node_up|{OTHER}"], found["nodes|alive"], found["nodes|dead"]) == (0.0, 1.0, 1.0)
    assert found["cluster_resources|CPU"] == 2.0


@pytest.mark.parametrize(
    ("message", "deaths"), [("Expected termination: SIGTERM", 0.0), ("Unexpected: health check", 1.0)]
)
def test_only_a_node_that_ended_on_its_own_is_a_death(
    ray: Ray, collector: RayCollector, clock: Clock, message: str, deaths: float
) -> None:
    eventually(lambda: page(collector))
    ray.states[OTHER], ray.messages[OTHER] = "DEAD", message
    ray.kill(200)
    clock.now += SCAN_SECONDS
    found = eventually(lambda: (now := page(collector))["nodes|dead"] and now)
    assert found["node_deaths_total"] == deaths


def test_a_node_that_was_dead_before_the_daemon_began_is_none(ray: Ray, collector: RayCollector) -> None:
    ray.states["dd" * 28] = "DEAD"
    found = eventually(lambda: page(collector))
    assert (found["nodes|dead"], found["node_deaths_total"]) == (1.0, 0.0)


def test_answers_of_no_dashboard_cost_only_themselves(
    ray: Ray, collector: RayCollector, caplog: pytest.LogCaptureFixture
) -> None:
    ray.garbled = True
    found = eventually(lambda: page(collector))
    assert "nodes|alive" not in found
    assert found["tasks|running"] == 6.0
    assert sum("the dashboard of Ray is left out" in one.message for one in caplog.records) == 1


def test_a_server_that_hangs_holds_up_no_tick(ray: Ray, clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        (ray.session / f"metrics_export_port_{HEAD}").write_text(f"{silent.getsockname()[1]}")
        collector = RayCollector(f"http://127.0.0.1:{silent.getsockname()[1]}", proc=ray.proc, clock=clock)
        for _ in range(50):
            with pytest.raises(StillBusy):
                collector.collect()
            clock.now += 1.0
        collector.close()


def test_old_answers_are_not_shown(ray: Ray, collector: RayCollector, clock: Clock) -> None:
    eventually(lambda: page(collector))
    ray.stop()
    clock.now += STALE_SECONDS + 1
    assert page(collector) == {}


def test_without_ray_there_is_nothing_to_collect(tmp_path: Path, clock: Clock) -> None:
    collector = RayCollector("", proc=tmp_path, clock=clock)
    with pytest.raises(NothingToCollect, match="no raylet runs on this machine"):
        collector.collect()
    collector.close()


def test_a_dashboard_that_wants_a_token_is_reported_once_with_the_way_out(
    ray: Ray, collector: RayCollector, clock: Clock, caplog: pytest.LogCaptureFixture, home: Path
) -> None:
    ray.token = "s3cret"
    assert "nodes|alive" not in eventually(lambda: page(collector))
    refused = (
        f"{ray.url} answered 401 Unauthorized; set collector.ray.token-file to the file with the token of this Ray"
    )
    assert refused in collector.left_out
    asked = len(ray.given)
    eventually(lambda: len(ray.given) > asked)
    assert sum(refused in one.message for one in caplog.records) == 1
    assert Sampler([collector], lambda _: None, 1.0).states() == {
        "ray": {"state": "partial", "why": collector.left_out}
    }
    (line,) = (
        one
        for one in _about("", {"version": __version__, "collectors": {"ray": {"state": "partial", "why": "w"}}})
        if "ray" in one.about
    )
    assert (line.level, line.text) == ("warn", "partial: w")

    (home / ".ray" / "auth_token").write_text("s3cret\n")  # a Ray that starts after the daemon makes it then
    assert eventually(lambda: page(collector).get("nodes|alive")) == 2.0
    assert collector.left_out == ""
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("where", ["setting", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "home"])
def test_a_token_is_found_where_ray_itself_finds_it(
    ray: Ray, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ray.token = "s3cret"
    order = ["setting", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "home"]
    for name in order[order.index(where) :]:  # the first one counts
        token = "s3cret" if name == where else "of another Ray"
        file = home / ".ray" / "auth_token" if name == "home" else tmp_path / name
        file.write_text(f"{token}\n")
        if name.startswith("RAY"):
            monkeypatch.setenv(name, f"{file}" if name.endswith("PATH") else f" {token} ")
    setting = f"{tmp_path / 'setting'}" if where == "setting" else ""
    collector = RayCollector(ray.url, setting, ray.proc)
    assert eventually(lambda: page(collector).get("nodes|alive")) == 2.0
    collector.close()
    assert set(ray.given) == {"Bearer s3cret"}


def test_a_token_follows_no_redirect(ray: Ray, home: Path, tmp_path: Path, collector: RayCollector) -> None:
    (tmp_path / "other").mkdir()
    other = Ray(tmp_path / "other")
    (home / ".ray" / "auth_token").write_text("s3cret")
    ray.redirect = f"{other.url}/api/v0/nodes"
    eventually(lambda: page(collector) and "redirects are not followed" in collector.left_out)
    other.stop()
    assert (set(ray.given), other.given) == ({"Bearer s3cret"}, [])


@pytest.mark.parametrize(
    ("host", "setting"), [("127.0.0.1", False), ("0.0.0.0", False), ("127.1", False), ("127.0.0.1", True)]
)
def test_another_user_that_listens_in_place_of_ray_does_not_get_a_token_that_was_found(
    ray: Ray, home: Path, monkeypatch: pytest.MonkeyPatch, host: str, setting: bool
) -> None:
    listening(ray, STRANGER)
    raylet_of(monkeypatch, STRANGER)
    ray.token = "s3cret"
    file = home / ".ray" / "auth_token"
    file.write_text("of this user")
    collector = RayCollector(f"http://{host}:{ray.port}", str(file) if setting else "", ray.proc)
    eventually(lambda: page(collector) and collector.left_out)
    assert (f"uid {STRANGER} listens there" in collector.left_out) is not setting
    collector.close()
    assert set(ray.given) == ({"Bearer of this user"} if setting else {""})


def listening(ray: Ray, uid: int) -> None:
    """Write the table of TCP sockets, in which a user listens at the port of both servers."""
    (ray.proc / "net").mkdir(exist_ok=True)
    line = f"   0: 0100007F:{ray.port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 77 1\n"
    (ray.proc / "net" / "tcp").write_text(f"header\n{line}")


def raylet_of(monkeypatch: pytest.MonkeyPatch, uid: int, pid: str = "") -> None:
    """Let the raylets, or one of them, be processes of a user."""
    real = os.stat

    def stat(path: Any, **options: Any) -> Any:
        found = real(path, **options)
        is_raylet = str(path).endswith(tuple(f"/proc/{one}" for one in ([pid] if pid else ["100", "200"])))
        return SimpleNamespace(st_uid=uid) if is_raylet else found

    monkeypatch.setattr("trackside_daemon.collectors.ray.ray.os.stat", stat)


def test_another_user_that_listens_in_place_of_ray_chooses_no_series_and_gets_no_token(
    ray: Ray, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listening(ray, STRANGER)
    file = home / ".ray" / "auth_token"
    file.write_text("of this user")
    collector = RayCollector(ray.url, str(file), ray.proc)
    eventually(lambda: (page(collector), len(caplog.records) >= 2)[1])
    collector.close()
    assert (page(collector), ray.given, ray.answers) == ({}, [], 0)
    for what in ("dashboard", "metrics port"):
        assert f"the {what} of Ray is left out: uid {STRANGER} listens at {ray.url}, and runs no raylet" in caplog.text


def test_the_user_of_the_raylet_serves_its_series(
    ray: Ray, collector: RayCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening(ray, STRANGER)
    raylet_of(monkeypatch, STRANGER)
    assert {"nodes|alive", "tasks|running"} <= eventually(lambda: page(collector)).keys()


def test_a_process_that_poses_as_a_raylet_takes_over_no_node(
    ray: Ray, collector: RayCollector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    raylet_of(monkeypatch, STRANGER, "300")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / f"metrics_export_port_{OTHER}").write_text("1")
    (ray.proc / "200" / "stat").write_text(f"200 (raylet) S 1{' 0' * 17} 10 0")
    ray.start(300, f"/x/raylet\0--node_id={OTHER}\0--session_dir={planted}\0")
    (ray.proc / "300" / "stat").write_text(f"300 (raylet) S 1{' 0' * 17} 20 0")
    assert f"node_resources|{OTHER}|CPU|used" in eventually(lambda: page(collector))
    ray.kill(200)
    clock.now += SCAN_SECONDS
    eventually(lambda: page(collector)[f"node_up|{OTHER}"] == 0.0)  # and not that of the other process


@pytest.mark.parametrize("what", ["series", "bytes"])
def test_an_answer_without_bounds_costs_only_itself(
    ray: Ray, collector: RayCollector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    if what == "bytes":
        monkeypatch.setattr("trackside_daemon.collectors.ray.ray.ANSWER_BYTES", len(PAGE) - 2)  # ends in a number
    line = 'ray_resources{Name="r%d",State="USED"} 1.0\n'
    ray.page = "".join(line % number for number in range(SERIES + 1)) if what == "series" else PAGE
    found = eventually(lambda: page(collector))
    assert "nodes|alive" in found
    assert not any(one.startswith(("node_resources", "tasks")) for one in found)
    reason = f"it has more than {SERIES} series" if what == "series" else f"{ray.url} answered more than"
    assert sum(f"the metrics port of Ray is left out: {reason}" in one.message for one in caplog.records) == 1


def test_the_name_that_a_job_gives_its_actor_is_cut(ray: Ray, collector: RayCollector) -> None:
    ray.actor = "generate" * 1000
    found = eventually(lambda: page(collector))
    assert max(len(label) for one in found for label in one.split("|")) == 200


def test_a_line_without_an_end_is_read_in_no_time() -> None:
    begun = time.thread_time()
    assert [*samples(LocalNode(HEAD, 100, "", 0), "ray_tasks{" * 5000)] == []
    assert time.thread_time() - begun < 0.5


def test_a_node_that_answers_beside_one_that_does_not_adds_no_lines_to_the_log(
    ray: Ray, collector: RayCollector, caplog: pytest.LogCaptureFixture
) -> None:
    (ray.session / f"metrics_export_port_{HEAD}").write_text("x")
    eventually(lambda: page(collector))
    asked = ray.answers
    collector._wake.set()
    eventually(lambda: ray.answers > asked + 2)
    assert sum("metrics port" in one.message for one in caplog.records) == 1


def test_what_another_user_writes_as_port_is_refused(ray: Ray, collector: RayCollector) -> None:
    (ray.session / f"metrics_export_port_{HEAD}").write_text("80/../x")
    (ray.session / f"metrics_export_port_{OTHER}").unlink()
    found = eventually(lambda: page(collector))
    assert "tasks|running" not in found
    assert found["nodes|alive"] == 2.0


@pytest.mark.parametrize(
    ("name", "kind", "role"),
    [
        ("", "vLLMRolloutWorker", "generate"),
        ("reward-3", "Worker", "reward"),
        ("", "RewardModelRayActor", "reward"),
        ("", "SingleAgentEnvRunner", "generate"),
        ("", "RayTrainWorker", "train"),
        ("", "CriticModelActor", "train"),
        ("", "Counter", ""),
        ("", "SynchronizationActor", ""),
        ("", "TrainController", ""),
    ],
)
def test_the_role_of_an_actor(name: str, kind: str, role: str) -> None:
    assert actor_role(name, kind) == role


def test_classes_in_titles() -> None:
    titles = ("RolloutWorker.spin", "IDLE", "f()", "train_fn", "DashboardAgent", "Learner")
    assert [actor_class(one) for one in titles] == ["RolloutWorker", "", "", "", "", "Learner"]
