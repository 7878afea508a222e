"""The collector of Ray: nodes and actors of a process tree, a dashboard that answers, hangs, lies or is gone."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from processes import eventually
from ray_service import HEAD, OTHER, Ray
from scripted_workers import Clock

from trackside_daemon import __version__
from trackside_daemon.cli.commands.doctor import _about
from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.ray.dashboard import STALE_SECONDS
from trackside_daemon.collectors.ray.ray import SCAN_SECONDS, RayCollector, actor_class, actor_role
from trackside_daemon.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    ray: Ray, home: Path, host: str, setting: bool
) -> None:
    (ray.proc / "net").mkdir()
    (ray.proc / "net" / "tcp").write_text(
        f"header\n   0: 0100007F:{ray.port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 54321 0 77 1\n"
    )
    ray.token = "s3cret"
    file = home / ".ray" / "auth_token"
    file.write_text("of this user")
    collector = RayCollector(f"http://{host}:{ray.port}", str(file) if setting else "", ray.proc)
    eventually(lambda: page(collector) and collector.left_out)
    assert ("uid 54321 listens there" in collector.left_out) is not setting
    collector.close()
    assert set(ray.given) == ({"Bearer of this user"} if setting else {""})


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
