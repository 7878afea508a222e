"""Debian's own Prometheus as a process that scrapes the daemon each second."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from end_to_end.listening import Listening
from end_to_end.queries import Queries
from processes import eventually, http

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Prometheus(Listening, Queries):
    """Prometheus on a free port, with one target, whose first scrape comes five seconds after the start.

    As a context manager it stops at the end of the block, and fails if any scrape has failed.

    Args:
        directory: The directory for its configuration and storage.
        target: ``http://HOST:PORT`` (or ``https``, with ``scheme="https"`` as a setting) whose ``/metrics`` is scraped.
        jobs: Further jobs with other settings for the target, by name.
        rules: Files with rules, which are evaluated each second.
        features: Feature flags, separated by commas.
        scrape: Further settings of the scrape, such as ``label_value_length_limit``.
    """

    def __init__(
        self,
        directory: Path,
        target: str,
        *,
        jobs: Mapping[str, Mapping[str, object]] | None = None,
        rules: Sequence[Path] = (),
        features: str = "",
        **scrape: object,
    ) -> None:
        static = [{"targets": [target.partition("://")[2]]}]
        every = {"trackside": scrape, **(jobs or {})}
        config = directory / "prometheus.yml"  # JSON is YAML
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": list(map(str, rules)),
                    "scrape_configs": [
                        {"job_name": name, "static_configs": static, **one} for name, one in every.items()
                    ],
                }
            )
        )
        super().__init__(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.level=debug",
            *([f"--enable-feature={features}"] if features else []),
        )
        eventually(lambda: http.get(f"{self.url}/-/ready").status_code == 200)

    def __enter__(self) -> Prometheus:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        complaints = self.complaints()
        self.stop()
        assert kind is not None or complaints == []

    def complaints(self) -> list[str]:
        """Return the log lines about failed scrapes; while there are none, `up` stays 1.

        Timeouts of scrapes are left out: on a busy machine a second is short.
        """
        wrong = re.compile(r"Scrape failed|Append failed|level=(warn|error)|[Ee]rror on ingesting")
        return [line for line in self.log if wrong.search(line) and "context deadline exceeded" not in line]
