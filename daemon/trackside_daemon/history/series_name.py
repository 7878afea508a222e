"""The name of a machine's series in the history, and its labels."""

import re
from collections.abc import Sequence

from trackside_daemon.model.metric import Metric

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def series_name(metric: Metric, labels: Sequence[str]) -> str:
    """Return the name and labels of a series as ``/metrics`` writes them."""
    pairs = sorted(zip(metric.labels, labels, strict=True))
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return f"{metric.name}{{{text}}}" if text else metric.name


def series_labels(name: str) -> dict[str, str]:
    """Return the labels of a series by its name, as `series_name` writes it."""
    return {label: _ESCAPED.sub(_unescape, text) for label, text in _LABEL.findall(name.partition("{")[2])}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
