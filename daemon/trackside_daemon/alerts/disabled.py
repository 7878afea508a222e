"""Alerts that the user has turned off."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from trackside_daemon.alerts.rules.query import Matcher
from trackside_daemon.config.near import near_name
from trackside_daemon.model.text import matches_wildcards
from trackside_daemon.model.troubles import PREFIX


class DisabledAlerts:
    """Alerts of ``alerts.off``.

    Args:
        names: ``NAME``, with or without the prefix that it has in Prometheus, or ``NAME@PATTERN`` to turn the alert off only for runs whose name matches, with ``*`` and ``?``.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._patterns: dict[str, list[str]] = {}
        for entry in names:
            name, _, pattern = entry.partition("@")
            self._patterns.setdefault(name.removeprefix(PREFIX), []).append(pattern)

    def patterns(self, alert: str) -> tuple[str, ...]:
        """Return the patterns of the runs for which an alert is off; an empty pattern means all runs."""
        return tuple(self._patterns.get(alert.removeprefix(PREFIX), ()))

    def other_runs(self, alert: str) -> tuple[Matcher, ...]:
        """Return what selects the runs for which an alert is not off, if it is off for some."""
        patterns = self.patterns(alert)
        return (Matcher("run", "|".join(map(run_regex, patterns)), "!~"),) if patterns else ()

    def contains(self, alert: str, labels: Mapping[str, str]) -> bool:
        """Return True if an alert with these labels is off."""
        patterns = self._patterns.get(alert.removeprefix(PREFIX))
        if patterns is None:
            return False
        run = labels.get("run", "")
        return any(not pattern or matches_wildcards(run, pattern) for pattern in patterns)


def unknown_names(names: Sequence[str], alerts: Collection[str]) -> Iterator[str]:
    """Yield a warning for each entry of *names* that turns nothing off because it is none of the *alerts*."""
    known = {alert.removeprefix(PREFIX) for alert in alerts}
    for name in dict.fromkeys(entry.partition("@")[0] for entry in names):
        if name.removeprefix(PREFIX) in known:
            continue
        yield f"alerts.off: {unknown_name(name, alerts)}"


def unknown_name(name: str, alerts: Collection[str]) -> str:
    """Return that there is no alert *name*, and which of the *alerts* has the nearest name."""
    plain = name.lower().removeprefix("trackside")
    return f"there is no alert {name!r:.80}{near_name(plain, alerts, 'docs/alerts.md lists them')}"


def run_regex(pattern: str) -> str:
    """Return a pattern of run names as a regular expression of Prometheus, which is anchored."""
    forms = {"*": ".*", "?": "."}
    return "".join(forms.get(letter) or re.escape(letter) for letter in pattern)
