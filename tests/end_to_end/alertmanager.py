"""Debian's own Alertmanager as a process, with the configuration of deploy/alertmanager."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import yaml
from end_to_end.listening import Listening
from processes import ROOT, eventually, http

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEPLOY = ROOT / "deploy" / "alertmanager"


def shipped() -> dict[str, Any]:
    """Return the configuration in the package."""
    written: dict[str, Any] = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text(encoding="utf-8"))
    return written


def routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a route and all routes below it."""
    yield route
    for below in route.get("routes", ()):
        yield from routes(below)


def by_webhook(config: dict[str, Any], url: str, **keys: str) -> dict[str, Any]:
    """Return the configuration with each receiver at ``URL/NAME``.

    *keys* replace settings of routes, such as ``group_wait``, where these are set.
    """
    config.pop("global", None)
    for receiver in config["receivers"]:
        resolved = receiver["name"] != "heartbeat"
        sent = {"url": f"{url}/{receiver['name']}", "send_resolved": resolved}
        reported = any(key.endswith("_configs") for key in receiver)
        receiver.clear()
        receiver.update({"name": sent["url"].rpartition("/")[2], **({"webhook_configs": [sent]} if reported else {})})
    for route in routes(config["route"]):
        route.update({key: text for key, text in keys.items() if key in route})
    return config


class Alertmanager(Listening):
    """A separate Alertmanager, on a free port.

    Args:
        directory: The directory for its configuration, templates and storage; the storage has the sent notifications.
        config: Its configuration.
    """

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        directory.mkdir(exist_ok=True)
        shutil.copy(DEPLOY / "trackside.tmpl", directory)
        file = directory / "alertmanager.yml"  # JSON is YAML
        file.write_text(json.dumps(config))
        super().__init__(
            "prometheus-alertmanager",
            f"--config.file={file}",
            f"--storage.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--cluster.listen-address=",
        )
        eventually(lambda: http.get(f"{self.url}/-/ready").status_code == 200)

    def post(self, *alerts: dict[str, str], resolved: bool = False) -> None:
        """Post alerts by their labels, which begin or end now; a name that begins with ``@`` is an annotation.

        Alertmanager would notify at once about an alert that began longer ago than `group_wait`, without the others of
        its group.
        """
        now = datetime.now(timezone.utc)
        starts, ends = (now - timedelta(seconds=1), now) if resolved else (now, now + timedelta(minutes=5))
        body = [
            {
                "labels": {name: text for name, text in one.items() if name[0] != "@"},
                "annotations": {name[1:]: text for name, text in one.items() if name[0] == "@"},
                "startsAt": starts.isoformat(),
                "endsAt": ends.isoformat(),
            }
            for one in alerts
        ]
        answer = http.post(f"{self.url}/api/v2/alerts", json=body)
        assert answer.status_code == 200, answer.text

    def active(self) -> list[dict[str, Any]]:
        """Return the alerts that are not resolved, as the API of Alertmanager shows them."""
        found: list[dict[str, Any]] = http.get(f"{self.url}/api/v2/alerts").json()
        return found
