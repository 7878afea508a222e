"""A run's configuration as flat entries of printable text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.configuration import flat
from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Mapping


def setting(value: Any) -> str:
    """Return a configuration value as printable text."""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def result(value: Any) -> str:
    """Return a result of a run as printable text."""
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else setting(value)


def config(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the last attempt that has one, flat."""
    configs = (attempt.get("config") for attempt in reversed(run["attempt_list"]))
    return next((flat(config) for config in configs if config is not None), {})
