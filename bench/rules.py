"""Measure how long Prometheus evaluates the rules for the pages of many nodes.

A real daemon with 8 simulated GPUs and 8 ranks has a page. Listeners answer as many nodes with it, each with its own GPUs, and
a run for each 8 nodes. A real Prometheus per rule file scrapes them all at the same time, so that files can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import ROOT, clean_environ, eventually

from bench.daemons import fresh_daemon
from bench.table import head, row

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES_OF_RUN, RANKS, KEYS, INTERVAL = 8, 8, 30, 15


class Page:
    """The page of a daemon, as each of its listeners shows it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def of(self, node: int) -> bytes:
        """Return the page of a node: its uuids, its run and its ranks differ from those of other nodes."""
        text = self.text.replace('uuid="', f'uuid="{node:03d}-').replace(
            'run="bench"', f'run="bench-{node // NODES_OF_RUN}"'
        )
        first = node % NODES_OF_RUN * RANKS
        return re.sub(r'\brank="(\d+)"', lambda found: f'rank="{first + int(found[1])}"', text).encode()


async def _answer(page: Page, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = page.of(node)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def _listen(page: Page, nodes: int, ports: list[int]) -> None:
    servers = [
        await asyncio.start_server(lambda *pair, node=node: _answer(page, node, *pair), "127.0.0.1", 0)
        for node in range(nodes)
    ]
    ports += [server.sockets[0].getsockname()[1] for server in servers]
    await asyncio.Event().wait()


def _page(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return str(answer.read(), "utf-8")


def _ranks(endpoint: str) -> list[Any]:
    code = (
        "import sys, time, trackside\n"
        f"run = trackside.init('bench', id='bench', endpoint=sys.argv[1])\n"
        "step = 0\n"
        "while True:\n"
        "    with run.phase('forward'): pass\n"
        "    with run.phase('data'): pass\n"
        f"    run.push({{f'layer.{{key}}/grad_norm': 1.0 for key in range({KEYS})}}, step=step, tokens=100)\n"
        "    step += 1\n"
        "    time.sleep(1)\n"
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, endpoint],
            env=clean_environ({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}),
        )
        for rank in range(RANKS)
    ]


def _prometheus(place: Path, rules: Path, ports: list[int]) -> tuple[Any, int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    targets = [
        {"targets": [f"127.0.0.1:{one}"], "labels": {"instance": f"gpu{node}", "rack": f"r{node // 4}"}}
        for node, one in enumerate(ports)
    ]
    config = {
        "global": {"scrape_interval": f"{INTERVAL}s", "evaluation_interval": f"{INTERVAL}s"},
        "rule_files": [str(rules.resolve())],
        "scrape_configs": [{"job_name": "trackside", "static_configs": targets}],
    }
    place.mkdir()
    (place / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    command = ["prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
    log = (place / "log").open("w", encoding="utf-8")
    return subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log), port


def _asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)["data"]


def _evaluated(port: int) -> dict[str, dict[str, float]]:
    """Return the time of the last evaluation of each rule by group, in ms."""
    return {
        group["name"]: {
            f"{number} {rule['name']}": 1000 * rule["evaluationTime"] for number, rule in enumerate(group["rules"])
        }
        for group in _asked(port, "/api/v1/rules")["groups"]
    }


def _rows(found: list[dict[str, dict[str, float]]]) -> Iterator[tuple[str, float]]:
    for group in found[0]:
        yield group, sum(sum(one[group].values()) for one in found) / len(found)


def measure(files: list[Path], nodes: int, minutes: float, slowest: int) -> None:
    """Print the mean time of each group, and of the slowest rules, for each file."""
    page, ports = Page(""), list[int]()
    threading.Thread(target=asyncio.run, args=[_listen(page, nodes, ports)], daemon=True).start()
    with fresh_daemon("--collector.gpu.simulate=8") as daemon, tempfile.TemporaryDirectory() as place:
        ranks = _ranks(daemon.endpoint)
        started = []
        try:
            eventually(lambda: sum("rank_state" in line for line in _page(daemon.url).splitlines()) > RANKS)
            time.sleep(20)
            page.text = _page(daemon.url)
            print(f"{len(re.findall(r'^[a-z]', page.text, re.MULTILINE)):,} series and {len(page.text):,} bytes a node")
            started = [_prometheus(Path(place, str(number)), file, ports) for number, file in enumerate(files)]
            until, samples = time.monotonic() + 60 * minutes, [[] for _ in files]
            while time.monotonic() < until:
                time.sleep(INTERVAL)
                page.text = _page(daemon.url)
                # The windows of ten minutes are full.
                if until - time.monotonic() < 60 * min(2, minutes / 2):
                    for one, (_, port) in zip(samples, started, strict=True):
                        one.append(_evaluated(port))
        finally:
            for process in [*ranks, *(process for process, _ in started)]:
                process.terminate()
        for file, found in zip(files, samples, strict=True):
            rows = list(_rows(found))
            total = sum(value for _, value in rows)
            print(f"\n{file}: {total:.1f} ms, {total / nodes:.2f} ms a node")
            head("group", "ms")
            for name, value in rows:
                row(name, f"{value:.1f}")
            head("slowest rule", "ms")
            means = {
                rule: sum(one[group][rule] for one in found) / len(found)
                for group in found[0]
                for rule in found[0][group]
            }
            for rule in sorted(means, key=means.__getitem__)[: -slowest - 1 : -1]:
                row(rule, f"{means[rule]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "deploy/prometheus/trackside.rules.yml"])
    parser.add_argument("--nodes", type=int, default=48)
    parser.add_argument("--minutes", type=float, default=13)
    parser.add_argument("--slowest", type=int, default=12)
    given = parser.parse_args()
    measure(given.files, given.nodes, given.minutes, given.slowest)
