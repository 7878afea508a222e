"""The chain from a daemon to an inbox: Debian's Prometheus and Alertmanager with the packaged configuration.

Addresses differ from deploy/, and so do the times that the tests would wait for: `scrape_interval`,
`evaluation_interval` and `group_wait` are a second. With `hurried`, `group_interval` is a second too; after it,
Alertmanager notifies about resolved alerts.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import yaml
from end_to_end.alertmanager import Alertmanager, by_webhook, shipped
from end_to_end.inbox import Inbox
from end_to_end.listening import Listening
from processes import ROOT, eventually, http

if TYPE_CHECKING:
    from pathlib import Path

    from end_to_end.inbox import Letter

PROMETHEUS = ROOT / "deploy" / "prometheus"


class Road:
    """Prometheus, Alertmanager and an inbox in place of its receivers, as a context manager.

    Args:
        directory: The directory for their files.
        target: The daemon's ``http://HOST:PORT``.
        hurried: True to set `group_interval` to a second, too.
    """

    def __init__(self, directory: Path, target: str, *, hurried: bool = False) -> None:
        with ExitStack() as ends:
            self.inbox = Inbox()
            ends.callback(self.inbox.close)
            times = {"group_wait": "1s", **({"group_interval": "1s"} if hurried else {})}
            self.alertmanager = Alertmanager(directory / "am", by_webhook(shipped(), self.inbox.url, **times))
            ends.callback(self.alertmanager.stop)
            self.prometheus = _prometheus(directory, target, self.alertmanager.url)
            ends.callback(self.prometheus.stop)
            self._ends = ends.pop_all()

    def __enter__(self) -> Road:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def value(self, expression: str) -> float | None:
        """Return Prometheus' current value of an expression; None without a series."""
        answer = http.get(
            f"{self.prometheus.url}/api/v1/query",
            params={"query": expression},
        )
        assert answer.status_code == 200, answer.text
        result = answer.json()["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def letters_about(
        self, receiver: str, alert: str, status: str = "firing", *, run: str | None = None
    ) -> list[Letter]:
        """Return the messages to a receiver in which an alert has this status."""
        found = [letter for letter in self.inbox.of(receiver) if letter.has(alert, status)]
        return [one for one in found if run is None or one.body["groupLabels"].get("run") == run]


def _prometheus(directory: Path, target: str, alertmanager: str) -> Listening:
    config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {**config.get("global", {}), "scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job.update(scrape_interval="1s", static_configs=[{"targets": [target.removeprefix("http://")]}])
    address = alertmanager.removeprefix("http://")
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}
    config["rule_files"] = [str(PROMETHEUS / "trackside.rules.yml")]
    file = directory / "prometheus.yml"  # JSON is YAML
    file.write_text(json.dumps(config))
    running = Listening(
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'prometheus'}",
        "--web.listen-address=127.0.0.1:0",
    )
    eventually(lambda: http.get(f"{running.url}/-/ready").status_code == 200)
    return running
