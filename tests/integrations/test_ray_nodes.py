"""The collector of Ray beside two real nodes on this machine. Ray is large, so that only `make soak` installs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, ROOT, Daemon, clean_environ, eventually, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

require("ray")
require("torch")

PATIENCE = 10 * DEADLINE
LABEL = re.compile(r'(\w+)="([^"]*)"')


class Nodes:
    """The script with the nodes, and the daemon beside it."""

    def __init__(self, place: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        token = place / "token"
        token.write_text("a token of these nodes alone\n")
        flags = (f"--collector.ray.dashboard=http://127.0.0.1:{port}", f"--collector.ray.token-file={token}")
        self.daemon = Daemon(place, "--collector.ray", *flags)
        environ = clean_environ({"TRACKSIDE_ENDPOINT": self.daemon.endpoint, "RAY_USAGE_STATS_ENABLED": "0"})
        # Earlier versions than 2.52 ignore both.
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.folder = place
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "public" / "ray_nodes.py"), f"{port}", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.begun = self.read()

    def read(self) -> dict[str, Any]:
        """Return the next values that the script prints."""
        assert self._process.stdout is not None
        line = next(line for line in self._process.stdout if line.startswith("{"))
        values: dict[str, Any] = json.loads(line)
        return values

    def write(self, text: str) -> None:
        """Let the script go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """End the script and its nodes, and the daemon."""
        self._process.communicate("\n\n\n", timeout=PATIENCE)
        self.daemon.stop()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    one = Nodes(tmp_path_factory.mktemp("ray"))
    yield one
    one.stop()


def found(nodes: Nodes, family: str) -> list[tuple[dict[str, str], float]]:
    """Return labels and value of each series of a family."""
    series = nodes.daemon.series().items()
    return [(dict(LABEL.findall(name)), value) for name, value in series if name.startswith(f"trackside_{family}{{")]


def test_resources_are_those_of_ray(nodes: Nodes) -> None:
    expected = {key: value for key, value in nodes.begun["resources"].items() if ":" not in key}

    def cluster() -> dict[str, float]:
        return {labels["resource"]: value for labels, value in found(nodes, "ray_cluster_resources")}

    eventually(lambda: cluster() == expected, PATIENCE)

    def local() -> float:
        return sum(value for labels, value in found(nodes, "ray_node_resources") if labels["resource"] == "CPU")

    eventually(lambda: local() == expected["CPU"], PATIENCE)
    assert [value for _, value in found(nodes, "ray_node_up")] == [1.0, 1.0]


def test_the_names_of_actors_are_joined_to_processes(nodes: Nodes) -> None:
    def actors() -> dict[str, dict[str, str]]:
        return {labels["pid"]: labels for labels, _ in found(nodes, "ray_actor_info")}

    eventually(lambda: actors().get(f"{nodes.begun['pid']}", {}).get("ray_actor"), PATIENCE)
    one = actors()[f"{nodes.begun['pid']}"]
    assert (one["ray_actor"], one["ray_class"], one["role"]) == ("sampler-0", "RolloutWorker", "generate")


def test_the_ranks_of_ray_train_are_actors_of_the_run(nodes: Nodes) -> None:
    nodes.write("train")

    def joined() -> set[tuple[str, str, str]]:
        ranks = {labels["pid"]: labels for labels, _ in found(nodes, "process_info") if labels["run"]}
        return {
            (ranks[labels["pid"]]["run"], ranks[labels["pid"]]["rank"], labels["role"])
            for labels, _ in found(nodes, "ray_actor_info")
            if labels["pid"] in ranks
        }

    eventually(lambda: joined() == {("two-workers", "0", "train"), ("two-workers", "1", "train")}, PATIENCE)
    (nodes.folder / "stop").touch()
    assert nodes.read() == {"trained": True}


def test_a_killed_node_is_seen_within_ten_seconds(nodes: Nodes) -> None:
    nodes.write("kill")
    assert nodes.read()["killed"]

    def alerts() -> set[str]:
        return {one["alert"] for one in nodes.daemon.api("alerts").json()["alerts"]}

    eventually(lambda: "RayNodeDead" in alerts(), 10)
    assert sorted(value for _, value in found(nodes, "ray_node_up")) == [0.0, 1.0]
