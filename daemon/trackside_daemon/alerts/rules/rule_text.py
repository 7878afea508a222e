"""The rules as YAML that a person reads, commits and compares: as a rule file of Prometheus, or as a manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from trackside_daemon import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.alerts.rules.rule_file import Group

HEAD = f"""\
# Made by trackside {__version__}:
#   {{command}}
# Do not edit it: change the configuration of the daemons, and make it anew. Prometheus 2.42 or later reads it.
#
# trackside.recording    runs over all of their nodes and ranks
# trackside.seldom       the same over a day
# trackside.thresholds   what the daemon's thresholds and alerts.rules say, judged by Prometheus
# trackside.detectors    what the daemon finds in every step; what `trackside silence` silences is left out here, and
#                        here alone: silence the others in Alertmanager
# trackside.fleet        daemons that are down, runs that have vanished; Watchdog always fires
"""
WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Lists set in, and texts of several lines as such."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  PyYAML's own
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  nothing is written as a reference
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > WIDTH - 20 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def prometheus(groups: Sequence[Group], command: str) -> str:
    """A rule file.

    Args:
        groups: As `trackside_daemon.alerts.rules.rule_file.groups` makes them.
        command: How it is made, for the comment at its top.
    """
    return _written({"groups": list(groups)}, command)


def kubernetes(groups: Sequence[Group], command: str, labels: Mapping[str, str], namespace: str) -> str:
    """A manifest of the Prometheus operator, with *labels* by which it chooses what it reads."""
    metadata: dict[str, Any] = {"name": "trackside"}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/name": "trackside", **labels}
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    return _written({**kind, "metadata": metadata, "spec": {"groups": list(groups)}}, command)


def _written(document: Mapping[str, Any], command: str) -> str:
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
    deep = " " * (4 if "spec" in document else 2)
    spaced = re.sub(rf"(?<!rules:)\n({deep}- name:|{deep}    - alert:)", r"\n\n\1", body)
    return HEAD.format(command=command) + "\n" + spaced
