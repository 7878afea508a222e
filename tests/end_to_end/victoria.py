"""Debian's VictoriaMetrics as a process, which scrapes, accepts remote writes, or both."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

from end_to_end.queries import Queries
from processes import eventually, http, terminated


class Victoria(Queries):
    """VictoriaMetrics on a free port, which shows a sample as soon as it has it, as a context manager.

    Args:
        directory: The directory for its configuration, log and storage.
        target: ``http://HOST:PORT`` whose ``/metrics`` is scraped each second; None for none.
        scrape: Further settings of the scrape, such as ``sample_limit``, or ``file_sd_configs`` in place of a target.

    Attributes:
        process: The process of the server.
    """

    def __init__(self, directory: Path, target: str | None = None, **scrape: object) -> None:
        directory.mkdir(exist_ok=True)
        flags = []
        if target is not None:
            scrape["static_configs"] = [{"targets": [target.removeprefix("http://")]}]
        if scrape:
            job = {"job_name": "trackside", **scrape}
            config = directory / "victoria.yml"  # JSON is YAML
            config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
            flags.append(f"-promscrape.config={config}")
        with (directory / "victoria.log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    "victoria-metrics",
                    f"-storageDataPath={directory / 'victoria'}",
                    "-httpListenAddr=127.0.0.1:0",
                    "-search.latencyOffset=0s",
                    "-search.disableCache",
                    *flags,
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self.url = f"http://127.0.0.1:{eventually(self._port)}"
            eventually(lambda: http.get(f"{self.url}/health").status_code == 200)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Victoria:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        terminated(self.process)

    def _port(self) -> int | None:
        """Return the port, which the log does not show when it was chosen by the kernel."""
        assert self.process.poll() is None, "victoria-metrics did not start; see victoria.log"
        place = Path("/proc", str(self.process.pid))
        sockets = set()
        for link in (place / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(link.readlink().name)
        for line in (place / "net" / "tcp").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                return int(local.rpartition(":")[2], 16)
        return None
