"""Prometheus with the configurations of deploy/prometheus for more than one machine.

Addresses differ from there, no Alertmanager is configured, and intervals and `batch_send_deadline` are a second to
shorten the tests.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml
from end_to_end.listening import Listening
from end_to_end.queries import Queries
from processes import ROOT, eventually, http

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy" / "prometheus"


def shipped(name: str) -> dict[str, Any]:
    """Return a configuration in the package."""
    written: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return written


def write_targets(directory: Path, *addresses: str, **labels: str) -> None:
    """Write the file of targets of a configuration in *directory*: ``HOST:PORT`` each, and their labels."""
    (directory / "targets").mkdir(parents=True, exist_ok=True)
    written = directory / "targets" / "trackside-test.new"
    written.write_text(json.dumps([{"targets": addresses, "labels": labels}]))
    written.rename(written.with_suffix(".json"))


class Shipped(Listening, Queries):
    """Prometheus with one of the configurations, as a context manager.

    Args:
        directory: The directory for its configuration and storage; the next one in it continues with the storage.
        name: The name of the configuration.
        flags: Further flags.
        changes: Changes of the configuration, by its top-level keys.
    """

    def __init__(self, directory: Path, name: str, *flags: str, **changes: object) -> None:
        directory.mkdir(exist_ok=True)
        config = {**shipped(name), **changes}
        times = {key: "1s" for key in config["global"] if key.endswith("_interval")}
        config["global"] = {**config["global"], **times}
        if "rule_files" in config:
            config.update(rule_files=[str(DEPLOY / rules) for rules in config["rule_files"]], alerting={})
        file = directory / name  # JSON is YAML
        file.write_text(json.dumps(config))
        super().__init__("prometheus", f"--config.file={file}", *flags)
        eventually(lambda: http.get(f"{self.url}/-/ready").status_code == 200)

    def __enter__(self) -> Shipped:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def by_files(directory: Path) -> Shipped:
    """Return the Prometheus for many machines."""
    return Shipped(directory, "prometheus-file-sd.yml", *_here(directory))


def central(directory: Path, port: int = 0) -> Shipped:
    """Return the Prometheus that agents write to, at a port."""
    return Shipped(directory, "prometheus-central.yml", *_here(directory, port), "--web.enable-remote-write-receiver")


def agent(directory: Path, *receivers: str) -> Shipped:
    """Return an agent that writes to URLs; call `say_targets` before you start it."""
    [write] = shipped("prometheus-agent.yml")["remote_write"]
    write["queue_config"]["batch_send_deadline"] = "1s"
    return Shipped(
        directory,
        "prometheus-agent.yml",
        "--enable-feature=agent",
        f"--storage.agent.path={directory / 'agent'}",
        "--storage.remote.flush-deadline=1s",  # the receiver may have ended before
        "--web.listen-address=127.0.0.1:0",
        remote_write=[{**write, "name": url, "url": url} for url in receivers],
    )


def _here(directory: Path, port: int = 0) -> tuple[str, str]:
    return f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}"
