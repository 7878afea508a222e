"""States and severities as numbers, so that one series has one color and text at each time."""

from __future__ import annotations

from grafana.panels import value_texts

from trackside_daemon.model.records import ENDS

STATES = (*reversed(ENDS), "starting", "running", "stalled")
"""Several nodes show the highest: live before ended states, stalled first among those, and the worst end before better ones."""

STATE_COLORS = {
    "finished": "semi-dark-blue",
    "stopped": "yellow",
    "lost": "orange",
    "failed": "red",
    "starting": "light-blue",
    "stalled": "dark-orange",
    "running": "green",
}
STATE_TEXTS = value_texts({number: (name, STATE_COLORS[name]) for number, name in enumerate(STATES, 1)})

SEVERITIES = {"info": "blue", "warning": "orange", "critical": "red"}
SEVERITY_TEXTS = value_texts({0: ("over", "text")} | dict(enumerate(SEVERITIES.items(), 1)))


def state(family: str, by: str) -> str:
    """Return a query for the number of the state of each of *by*; *family* is a selector such as ``family{RUN}``."""
    return _numbered(family, "state", STATES, by)


def severity(family: str, by: str) -> str:
    """Return a query for the number of the severity of each of *by*, 0 once it has ended; *family* as in `state`."""
    return _numbered(family, "severity", tuple(SEVERITIES), by, f"{family} == 0 or ")


def _numbered(family: str, label: str, names: tuple[str, ...], by: str, ended: str = "") -> str:
    terms = (f'({family[:-1]}, {label}="{name}"}} == 1) + {index}' for index, name in enumerate(names))
    return f"max by ({by}) ({ended}{' or '.join(terms)})"
