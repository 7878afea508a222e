"""The name of a machine's series in the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.metric import Metric


def series_name(metric: Metric, labels: Sequence[str]) -> str:
    """Return the name and labels of a series as ``/metrics`` writes them."""
    pairs = sorted(zip(metric.labels, labels, strict=True))
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return f"{metric.name}{{{text}}}" if text else metric.name


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
