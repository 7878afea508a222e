"""Causes of lost time and trouble, and the seconds that they share without overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.model.text import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.model.metric import Metric
    from trackside_daemon.model.time_ledger import Ledger

LEAST_SHARE = 0.01  # a cause below this share of the wall time is not worth anybody's time


class Evidence(NamedTuple):
    """A line of text that shows a cause.

    Attributes:
        text: The line.
        path: Path and query of the API that returns the alert, the capture or the series behind it; empty for none.
    """

    text: str
    path: str = ""


class Cause(NamedTuple):
    """A cause of lost time or trouble.

    Attributes:
        cause: Its name, in snake case.
        summary: One line for people.
        evidence: Lines that show it.
        advice: The first thing to try.
        check: How to check afterwards.
        lost_seconds: Wall seconds that the run would be shorter by at most; None if that is not measured.
        low: The least of the interval in which the gain is expected.
        high: The most.
        gpu_hours: GPU hours that it cost, if they are not those of all ranks for the lost seconds.
    """

    cause: str
    summary: str
    evidence: tuple[Evidence, ...]
    advice: str
    check: str
    lost_seconds: float | None = None
    low: float | None = None
    high: float | None = None
    gpu_hours: float | None = None


class Pools:
    """The seconds of the ledger's accounts. Causes draw from them, so that no second has two causes.

    Args:
        ledger: Seconds by account.
        wall: The wall time.

    Attributes:
        whole: Means over the ranks, and *left* what no cause has drawn of them.
        by_rank: Seconds of each rank.
    """

    def __init__(self, ledger: Ledger, wall: float) -> None:
        self.whole = ledger.whole
        self.left = dict(ledger.whole)
        self.by_rank = ledger.by_rank
        self.wall = wall

    def draw(self, seconds: float, *accounts: str, least: float = LEAST_SHARE) -> float:
        """Move up to so many seconds out of the accounts, in this order; nothing, and return 0, below the *least* share."""
        found = min(seconds, sum(self.left.get(account, 0.0) for account in accounts))
        if found <= 0 or found < least * self.wall:
            return 0.0
        rest = found
        for account in accounts:
            moved = min(rest, self.left.get(account, 0.0))
            self.left[account] = self.left.get(account, 0.0) - moved
            rest -= moved
        return found

    @property
    def drawn(self) -> float:
        """The seconds that causes have drawn."""
        return sum(self.whole.values()) - sum(self.left.values())

    def priced(self, cause: Cause, lost: float, low: float) -> Cause:
        """Return a cause with its lost seconds, also in the summary; *low* is the share of them that is gained at least."""
        share = lost / self.wall if self.wall else 0.0
        summary = f"{cause.summary}: {percent(share)} of the time, {duration(lost)} at most"
        return cause._replace(summary=summary, lost_seconds=lost, low=low * lost, high=lost)


def alert_evidence(facts: Facts, *names: str) -> Iterator[Evidence]:
    """Yield the alerts of the run with these names, the newest three."""
    alerts = [alert for alert in facts.alerts if alert["alert"] in names]
    for alert in alerts[-3:]:
        yield Evidence(f"alert {alert['id']} {alert['alert']}: {alert['summary']}", f"/api/v1/alerts/{alert['id']}")


def series_evidence(facts: Facts, text: str, family: Metric) -> Evidence:
    """Return evidence that a series of the machine shows in the time of the run."""
    window = f"from={facts.run['started']:.0f}&to={facts.ended:.0f}"
    return Evidence(text, f"/api/v1/series?run={facts.run['id']}&key={family.name}&by=time&{window}")


def as_json(cause: Cause, facts: Facts, noise: float, price: float | None, joules: float | None) -> dict[str, Any]:
    """Return a cause as JSON, with the GPU hours that it cost, and their cost if a GPU hour has a price.

    Args:
        cause: The cause.
        facts: The run.
        noise: Seconds by which runs without a change differ: the expected gain is as uncertain, besides all else.
        price: The price of a GPU hour.
        joules: The energy of the run; ``estimated_joules`` is its share of it by time.
    """
    hours = cause.gpu_hours
    if hours is None and cause.lost_seconds is not None:
        hours = cause.lost_seconds * facts.ranks / 3600
    estimated = None
    if joules is not None and cause.lost_seconds is not None and facts.wall:
        estimated = joules * min(1.0, cause.lost_seconds / facts.wall)
    return {
        **cause._asdict(),
        "low": None if cause.low is None else max(0.0, cause.low - noise),
        "high": None if cause.high is None else min(facts.wall, cause.high + noise),
        "evidence": [evidence._asdict() for evidence in cause.evidence],
        "gpu_hours": hours,
        "cost": None if hours is None or price is None else hours * price,
        "estimated_joules": estimated,
    }
