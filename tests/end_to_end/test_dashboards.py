"""Every query of every dashboard returns data while the demo's training goes wrong.

Under --soak, also on VictoriaMetrics, and on a Prometheus that scrapes each 15 seconds, which takes minutes; tests/grafana/linter.py refuses rates over
other ranges than Grafana's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from end_to_end.asking import Asking, filled, unfilled
from end_to_end.prometheus import Prometheus
from end_to_end.victoria import Victoria
from grafana.boards import committed, panels
from grafana.promql import parsed, selectors
from processes import DEADLINE, clean_environ, command, eventually, start
from ray_service import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator

BOARDS = committed()
SERVERS = ("Prometheus", pytest.param("VictoriaMetrics", marks=pytest.mark.only_soak))
SETTINGS = {
    "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0",
    "TRACKSIDE_ALERTS__SINKS__LOG__SEVERITY": "info",
    "OMP_NUM_THREADS": "1",
}
AILING = {
    "TRACKSIDE_COLLECTOR__GPU__SIMULATE": "8",
    "TRACKSIDE_COLLECTOR__GPU__TROUBLE": "hot:5,throttled:6,xid:7",
    "PYTHONPATH": str(Path(__file__).parent / "soon_xids"),
}
OLDER = {"TRACKSIDE_COLLECTOR__GPU__PROFILE": "a100", "TRACKSIDE_LIMITS__RANKS": "2"}
"""A generation that says the temperatures at which it slows down, and not how far they are. A run of three ranks is large."""
NAMES = ['it\'s "a" & #1 + 1 = 100% (1.0) {x} $run \\d', "quoted `so`"]
"""Of runs, with what means something in PromQL, in regular expressions and in addresses."""
NAMED = """
import sys, time, trackside
run = trackside.init(sys.argv[1])
for phase in ("generate", "backward", "wait"):
    with run.phase(phase):
        time.sleep(0.01)
policy = {"reward": 1.0, "reward_std": 0.5, "kl": 0.1, "entropy": 1.0, "completions/mean_length": 9.0, "mismatch_kl": 0.01}
shares = {"completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.2, "rollout_corr/rollout_is_mean": 1.0}
run.push({**policy, **shares}, step=1, loss=2.0, grad_norm=1.0, samples=8, tokens=64)
trackside.Checkpoints(sys.argv[2]).save({"step": 1}, 1)
run.alert("noted", severity="info")
print(flush=True)
sys.stdin.read()
"""
COLLECTIVES = """\
nccl_bus_bandwidth_gbs{comm_name="TP",collective="AllReduce",message_size="1MB-2MB",nranks="8",gpu="0"} 41.5
nccl_collective_exec_time_microseconds{comm_name="TP",collective="AllReduce",message_size="1MB-2MB",nranks="8",gpu="0"} 90
"""
"""A text file of NCCL's Inspector."""


@contextmanager
def demo(place: Path, arguments: str, **settings: str) -> Iterator[str]:
    """Run the demo, with simulated ranks and GPUs; yield its address."""
    environ = clean_environ({**SETTINGS, **settings, "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock"})
    with (place / "demo.log").open("w") as log:
        process = start(command("demo", *arguments.split()), env=environ, stdout=log, stderr=log)

    def address() -> str | None:
        reported = (place / "demo.log").read_text()
        assert process.poll() is None, reported
        found = re.search(r"(http://[\d.:]+)/metrics", reported)
        return found[1] if found else None

    try:
        yield str(eventually(address))
    finally:
        process.terminate()
        process.wait(DEADLINE)


@contextmanager
def named(name: str, place: Path, **more: str) -> Iterator[None]:
    """Keep a run of that name alive within the block, or a rank of it, with a checkpoint on disk."""
    environ = clean_environ({"TRACKSIDE_ENDPOINT": f"ipc://{place}/push.sock", **more})
    saved = place / f"checkpoints{more.get('RANK', '')}"
    words, pipe = [sys.executable, "-c", NAMED, name, str(saved)], subprocess.PIPE
    with start(words, env=environ, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Asking]]:
    """Servers that scrape the demo, one rank of which crashes, and a demo of an older GPU generation."""
    with ExitStack() as ends:
        ray = Ray(tmp_path_factory.mktemp("ray"))
        ends.callback(ray.stop)
        ends.enter_context(ray.process())
        asked = {"TRACKSIDE_COLLECTOR__RAY__ENABLED": "1", "TRACKSIDE_COLLECTOR__RAY__DASHBOARD": ray.url}
        place, other = (Path(ends.enter_context(TemporaryDirectory(prefix="ts-", dir="/tmp"))) for _ in range(2))
        (place / "nccl.prom").write_text(COLLECTIVES)
        asked["TRACKSIDE_COLLECTOR__TEXTFILE__DIRECTORY"] = str(place)
        urls = [
            ends.enter_context(demo(place, "--ranks 4 --gpus 8 --trouble crash --after 1", **AILING, **asked)),
            ends.enter_context(demo(other, "--ranks 2", **OLDER)),
        ]
        for name in NAMES:
            ends.enter_context(named(name, place))
        for rank in range(3):
            about = {"TRACKSIDE_RUN_ID": "large", "RANK": str(rank), "WORLD_SIZE": "3"}
            ends.enter_context(named("large", other, **about))
        labels: tuple[dict[str, str], ...] = {"cluster": "one"}, {}  # many have no such label
        targets = [
            {"targets": [url.removeprefix("http://")], "labels": of} for url, of in zip(urls, labels, strict=True)
        ]
        where = [tmp_path_factory.mktemp("server") for _ in range(3)]
        prometheus = ends.enter_context(Prometheus(where[0], urls[0], static_configs=targets))
        found = {"Prometheus": Asking(prometheus.url)}
        if request.config.getoption("--soak"):
            victoria = ends.enter_context(Victoria(where[1], static_configs=targets))
            found["VictoriaMetrics"] = Asking(victoria.url)
            slow = ends.enter_context(Prometheus(where[2], urls[0], static_configs=targets, scrape_interval="15s"))
            found["Prometheus each 15 s"] = Asking(slow.url, rates="60s")
        for one in found.values():
            ends.callback(one.close)
        yield found


def test_every_query_returns_data(servers: dict[str, Asking]) -> None:
    wrong: dict[tuple[str, str], list[str]] = {}

    def answered() -> bool:
        for server, asking in servers.items():
            if asking.fresh():
                left = {uid: board for uid, board in BOARDS.items() if wrong.get((server, uid)) != []}
                wrong.update({(server, uid): asking.complaints(board) for uid, board in left.items()})
        return len(wrong) == len(servers) * len(BOARDS) and not any(wrong.values())

    with suppress(pytest.fail.Exception):
        eventually(answered)
    reported = [
        f"{server}: {complaint}" for (server, _), complaints in sorted(wrong.items()) for complaint in complaints
    ]
    assert wrong
    assert not reported, "\n".join(reported)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "uid", [pytest.param(uid, marks=[pytest.mark.only_soak] * (place > 0)) for place, uid in enumerate(BOARDS)]
)
def test_one_misspelt_family_is_named(servers: dict[str, Asking], uid: str, server: str) -> None:
    board = deepcopy(BOARDS[uid])
    panel = panels(board)[0]
    target = panel["targets"][0]
    family = next(one.name for one, _ in selectors(parsed(target["expr"])))
    target["expr"] = re.sub(rf"\b{family}\b", family[:-1], target["expr"])
    reported = f"{uid}: panel {panel['title']!r}, query {target['refId']}: no data; {family[:-1]} has no series"
    eventually(lambda: servers[server].complaints(board) == [reported])


def test_a_variable_without_values_is_named(servers: dict[str, Asking]) -> None:
    board = deepcopy(BOARDS["trackside-fleet"])
    [run] = [one for one in board["templating"]["list"] if one["name"] == "run"]
    run["query"] = run["query"].replace("trackside_training_run_info", "trackside_training_run_inf")
    [complaint] = servers["Prometheus"].complaints(board)
    assert complaint.startswith("trackside-fleet: variable run: no values of label_values(trackside_training_run_inf{")


def test_values_are_escaped_as_grafana_does() -> None:
    values = {"job": "(a\\.b)", "run": "(x\\(1\\)|y)", "gpu": ".+"}
    assert filled('a{job=~"$job", gpu=~"$gpu"}[$__rate_interval]', values) == 'a{job=~"(a\\\\.b)", gpu=~".+"}[10s]'
    assert filled("a{run=~`${run:regex}`} > $other", values) == "a{run=~`(x\\(1\\)|y)`} > $other"


def test_a_zero_in_place_of_nothing_is_no_data() -> None:
    parts = ["count(a == 1)", "sum(b)"]
    expr = f"{parts[0]} or vector(0)", f"({parts[1]} or 0 * max(c)) and d"
    assert [list(unfilled(one)) for one in expr] == [[parts[0]], [parts[1]]]
    assert list(unfilled("a or b")) == []
