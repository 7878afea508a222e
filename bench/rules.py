"""Measure what the evaluation of the rules costs Prometheus for the pages of many nodes.

A real daemon with 8 simulated GPUs and 8 ranks has a page. Listeners answer as many nodes with it, each with its own GPUs, and
a run for each 8 nodes. A real Prometheus scrapes them for longer than the windows of ten minutes. Then it starts again without
scrapes, so that only the evaluation needs its CPU, and evaluates the rules of each file in turn, several times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil
import yaml
from processes import ROOT, clean_environ, eventually

from bench.daemons import fresh_daemon
from bench.table import head, row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NODES_OF_RUN, RANKS, KEYS, INTERVAL = 8, 8, 30, 15
ROUNDS, REPEATED = 3, 3
TRAINING = f"""
import sys, time, trackside
run = trackside.init("bench", id="bench", endpoint=sys.argv[1])
for step in range(10**6):
    with run.phase("data"), run.phase("forward"):
        run.push({{f"layer.{{key}}/grad_norm": 1.0 for key in range({KEYS})}}, step=step, tokens=100)
    time.sleep(1)
"""


def page_of(text: str, node: int) -> bytes:
    """Return the page of a node: its uuids, its run and its ranks differ from those of other nodes."""
    text = text.replace('uuid="', f'uuid="{node:03d}-').replace('run="bench"', f'run="bench-{node // NODES_OF_RUN}"')
    first = node % NODES_OF_RUN * RANKS
    return re.sub(r'\brank="(\d+)"', lambda found: f'rank="{first + int(found[1])}"', text).encode()


async def listen(page: list[str], nodes: int, ports: list[int]) -> None:
    """Answer each node's scrapes with the newest page."""

    async def answer(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = page_of(page[-1], node)
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    for node in range(nodes):
        server = await asyncio.start_server(lambda *pair, node=node: answer(node, *pair), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


@contextmanager
def prometheus(place: Path, config: Mapping[str, Any]) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """Yield a client of a Prometheus with this configuration, and its process."""
    (place / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    command = ["prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
    with (place / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stderr=log)
        try:
            read = place / "log"
            (port,) = eventually(lambda: re.findall(r'msg="Listening on" address=\S+:(\d+)', read.read_text()))
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                eventually(lambda: client.get("/-/ready").status_code == 200)
                yield client, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


class Rule(NamedTuple):
    """A rule of a file.

    Attributes:
        every: Evaluations of other groups for one of its group.
    """

    group: str
    name: str
    expr: str
    every: float


def rules_of(file: Path) -> list[Rule]:
    """Return the rules of a file, without those over a day."""
    seconds = {"30s": 30, "1m": 60}
    return [
        Rule(
            group["name"],
            f"{number} {rule.get('alert') or rule['record']}",
            rule["expr"],
            seconds.get(group.get("interval"), INTERVAL) / INTERVAL,
        )
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        if group.get("interval") != "5m"
        for number, rule in enumerate(group["rules"])
    ]


def fill(place: Path, file: Path, nodes: int, minutes: float) -> float:
    """Scrape the pages of the nodes; return the time of the last scrapes."""
    page, ports = [""], list[int]()
    threading.Thread(target=asyncio.run, args=[listen(page, nodes, ports)], daemon=True).start()
    with ExitStack() as ends:
        daemon = ends.enter_context(fresh_daemon("--collector.gpu.simulate=8"))
        for rank in range(RANKS):
            environ = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "XDG_STATE_HOME": str(place),
            }
            ends.callback(
                subprocess.Popen([sys.executable, "-c", TRAINING, daemon.endpoint], env=clean_environ(environ)).kill
            )
        eventually(lambda: daemon.get("/metrics").text.count("trackside_training_phase_seconds_total{") >= 2 * RANKS)
        page.append(daemon.get("/metrics").text)
        targets = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": f"gpu{node}"}} for node, port in enumerate(ports)
        ]
        config = {
            "global": {"scrape_interval": f"{INTERVAL}s", "evaluation_interval": f"{INTERVAL}s"},
            "rule_files": [str(file.resolve())],
            "scrape_configs": [{"job_name": "trackside", "static_configs": targets}],
        }
        with prometheus(place, config):
            until = time.monotonic() + 60 * minutes
            while time.monotonic() < until:
                time.sleep(INTERVAL)
                page.append(daemon.get("/metrics").text)
            print(f"{len(daemon.series(page[-1])):,} series and {len(page[-1]):,} bytes a node", flush=True)
            return time.time()


def measure(files: list[Path], nodes: int, minutes: float, slowest: int) -> None:
    """Print the cost of each group, and of the slowest rules, for each file."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        now = fill(place, files[0], nodes, minutes)
        with prometheus(place, {}) as (client, process):

            def evaluated(expr: str) -> tuple[float, int]:
                before = sum(process.cpu_times()[:2])
                for _ in range(REPEATED):
                    query = {"query": expr, "time": str(now), "stats": "all"}
                    answer = client.post("/api/v1/query", data=query).raise_for_status().json()
                samples = answer["data"]["stats"]["samples"]["totalQueryableSamples"]
                return 1000 * (sum(process.cpu_times()[:2]) - before) / REPEATED, samples

            # What each request costs without a rule.
            least = sum(evaluated("vector(1)")[0] for _ in range(100)) / 100
            cost: dict[Path, dict[Rule, float]] = defaultdict(lambda: defaultdict(float))
            samples: dict[Path, float] = defaultdict(float)
            for turn in range(ROUNDS):
                for file in files:
                    for rule in rules_of(file):
                        milliseconds, read = evaluated(rule.expr)
                        cost[file][rule] += (milliseconds - least) / ROUNDS / rule.every
                        samples[file] += 0 if turn else read / rule.every
            for file in files:
                report(file, cost[file], samples[file], nodes, slowest)


def report(file: Path, cost: Mapping[Rule, float], samples: float, nodes: int, slowest: int) -> None:
    """Print the tables of a file."""
    total = sum(cost.values())
    print(
        f"\n{file}: each {INTERVAL} s {samples:,.0f} samples and {total:.0f} ms of CPU, {total / nodes:.2f} ms a node"
    )
    groups: dict[str, float] = defaultdict(float)
    for rule, milliseconds in cost.items():
        groups[rule.group] += milliseconds
    head("group", "ms")
    for name, milliseconds in groups.items():
        row(name, f"{milliseconds:.1f}")
    head("slowest rule", "ms")
    for rule in sorted(cost, key=cost.__getitem__)[: -slowest - 1 : -1]:
        row(rule.name, f"{cost[rule]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "deploy/prometheus/trackside.rules.yml"])
    parser.add_argument("--nodes", type=int, default=48)
    parser.add_argument("--minutes", type=float, default=11)
    parser.add_argument("--slowest", type=int, default=12)
    given = parser.parse_args()
    measure(given.files, given.nodes, given.minutes, given.slowest)
