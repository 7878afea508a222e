"""Measure what agents that wait cost the daemon: 1,000 calls of the tool wait at once, for a live run that makes no step."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from processes import Daemon, eventually

import trackside
from bench.table import head, machine, verdict

WAITERS = 1000
SECONDS = 15


def main() -> None:
    """Print the table."""
    machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        daemon = Daemon(Path(place))
        run = trackside.init("waited-for", id="waited-for", endpoint=daemon.endpoint)
        run.push(step=1, loss=1.0)
        eventually(lambda: "waited-for" in daemon.api("runs").text)
        head("limit", "measured", "target", "")
        try:
            asyncio.run(_measure(daemon, Path(place)))
        finally:
            run.finish()
            daemon.stop()


async def _measure(daemon: Daemon, place: Path) -> None:
    token = (place / "push.token").read_text().strip()
    before = await _cpu(daemon)
    waiting = [await _wait(daemon.url, token) for _ in range(WAITERS)]
    await asyncio.sleep(2)
    during = await _cpu(daemon)
    answered = sum(bool(reader._buffer) for reader, _ in waiting)  # type: ignore[attr-defined]
    for _, writer in waiting:
        writer.close()
    verdict(
        f"CPU of the daemon with {WAITERS:,} waiters, less that without",
        f"{during - before:.2f} % of a core",
        "<= 1 %",
        met=during - before <= 1,
    )
    verdict("answers that came meanwhile", str(answered), "0", met=not answered)


async def _cpu(daemon: Daemon) -> float:
    """Return the CPU time of the daemon in percent of a core, over some seconds."""
    process = psutil.Process(daemon.process.pid)
    begun, used = time.monotonic(), process.cpu_times()
    await asyncio.sleep(SECONDS)
    now = process.cpu_times()
    return 100 * (now.user + now.system - used.user - used.system) / (time.monotonic() - begun)


async def _wait(url: str, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    params = {"name": "wait", "arguments": {"run": "waited-for", "timeout_seconds": 600}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    writer.write(
        b"POST /api/v1/mcp HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (address.netloc.encode(), token.encode(), len(body), body)
    )
    await writer.drain()
    return reader, writer


if __name__ == "__main__":
    main()
