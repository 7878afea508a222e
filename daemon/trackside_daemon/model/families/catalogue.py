"""Catalogue of the families that a rule can name: all except those of alerts, and the derived ones."""

from collections.abc import Iterator

from trackside_daemon.model.families import (
    cgroup,
    daemon,
    foreign,
    gpu,
    host,
    infiniband,
    nvml,
    process,
    ray,
    rl,
    training,
)
from trackside_daemon.model.metric import Metric

_MODULES = (cgroup, daemon, foreign, gpu, host, infiniband, nvml, process, ray, rl, training)


def catalogue() -> dict[str, Metric]:
    """Return the families by name."""
    return {metric.name: metric for module in _MODULES for metric in metrics(vars(module))}


def metrics(value: object) -> Iterator[Metric]:
    """Yield the families in a module's variables, however deep its tables are."""
    if isinstance(value, Metric):
        yield value
    elif isinstance(value, dict | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from metrics(part)
