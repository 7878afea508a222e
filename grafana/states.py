"""States and severities as numbers, so that one series has a colour and a text at each moment."""

from __future__ import annotations

from grafana.panels import texts

from trackside_daemon.model.records import ENDS

STATES = (*reversed(ENDS), "starting", "running", "stalled")
"""Of several nodes the last counts: what lives before what has ended, of that what stands still, the worst end before the better."""

_COLORS = {
    "finished": "semi-dark-blue",
    "stopped": "yellow",
    "lost": "orange",
    "failed": "red",
    "starting": "light-blue",
    "stalled": "dark-orange",
    "running": "green",
}
STATE_TEXTS = texts({number: (name, _COLORS[name]) for number, name in enumerate(STATES, 1)})

SEVERITIES = {"info": "blue", "warning": "orange", "critical": "red"}
SEVERITY_TEXTS = texts({0: ("over", "text")} | dict(enumerate(SEVERITIES.items(), 1)))


def state(family: str, by: str) -> str:
    """A query: the number of the state in which each of *by* is, from a selector with a token, such as ``family{RUN}``."""
    return _numbered(family, "state", STATES, by)


def severity(family: str, by: str) -> str:
    """A query: the number of the severity at which each of *by* fires, 0 once it is over; *family* as of `state`."""
    return _numbered(family, "severity", tuple(SEVERITIES), by, f"{family} == 0 or ")


def _numbered(family: str, label: str, names: tuple[str, ...], by: str, over: str = "") -> str:
    ways = (f'({family[:-1]}, {label}="{name}"}} == 1) + {before}' for before, name in enumerate(names))
    return f"max by ({by}) ({over}{' or '.join(ways)})"
