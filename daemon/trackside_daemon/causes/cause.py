"""A cause: what it is, and what was found of it in a run or in a slow-down."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from trackside_daemon.causes.facts import Facts
from trackside_daemon.causes.readings import Readings, Rise
from trackside_daemon.causes.verdict import Verdict
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.text import duration, percent
from trackside_daemon.model.time_ledger import ACCOUNTS, Ledger

LEAST_SHARE = 0.01  # a cause below this share of the wall time is noise
MEASURED = 0.9  # share of lost seconds that is gained at least if they were measured as such
LISTED_SHARE, LISTED_SECONDS = 0.05, 60.0  # a cause below both is not worth anybody's time


class Evidence(NamedTuple):
    """A line of text that shows a cause."""

    text: str  # the line
    # Path and query of the API that returns the alert, the capture or the series behind it; empty for none.
    path: str = ""


class Cause(NamedTuple):
    """A cause of lost time or trouble that was found in a run."""

    cause: str  # its name, in snake case
    summary: str  # one line for people
    evidence: tuple[Evidence, ...]  # lines that show it
    advice: str  # the first thing to try
    check: str  # how to check afterwards
    # Wall seconds that the run would be shorter by at most; None if that is not measured.
    lost_seconds: float | None = None
    low: float | None = None  # the least of the interval in which the gain is expected
    high: float | None = None  # the most
    gpu_hours: float | None = None  # GPU hours that it cost, if they are not those of all ranks for the lost seconds


class LostTime:
    """The lost time of a run by account. Causes draw their seconds from it, so that no second has two causes.

    Args:
        facts: The run.
        accounts: Its seconds by account.
        connection: The history, in a transaction.
        tails: Logs of streams.
        verdict: What stops the run.

    Attributes:
        whole: Seconds by account, means over the ranks, and *left* what no cause has drawn of them.
        by_rank: Seconds of each rank.
        found: The causes so far.
    """

    def __init__(
        self, facts: Facts, accounts: Ledger, connection: sqlite3.Connection, tails: LogTails, verdict: Verdict
    ) -> None:
        self.facts = facts
        self.whole = accounts.whole
        self.left = dict(accounts.whole)
        self.by_rank = accounts.by_rank
        self.connection = connection
        self.tails = tails
        self.verdict = verdict
        self.found: list[Cause] = []

    def draw(self, seconds: float, *accounts: str, least: float = LEAST_SHARE) -> float:
        """Move up to so many seconds out of the accounts, in this order; nothing, and return 0, below the *least* share."""
        found = min(seconds, sum(self.left.get(account, 0.0) for account in accounts))
        if found <= 0 or found < least * self.facts.wall:
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


class Kind(NamedTuple):
    """One cause: its words, and its questions."""

    name: str  # its name, in snake case
    happened: str = ""  # what happened, in the words of a summary
    advice: str = ""  # the first thing to try
    check: str = ""  # how to check afterwards
    # The accounts of the ledger that have its seconds, in the order in which it draws from them.
    accounts: tuple[str, ...] = ()
    # The share of the lost seconds that is gained at least; the rest may be hidden behind other work, or needed.
    low: float = 0.0
    least: float = LEAST_SHARE  # the share of the wall time from which it matters
    usual: float = 0.0  # seconds of its accounts in each attempt below which they are no loss
    alerts: tuple[str, ...] = ()  # the alerts that are evidence of it
    lost: Callable[[Kind, LostTime], Iterator[Cause]] | None = None  # yields what it cost over a run, against nothing
    families: tuple[Metric, ...] = ()  # the families that *rose* reads
    # Yields what it explains of a slow-down, against the time before or other ranks.
    rose: Callable[[Readings], Iterator[Rise]] | None = None

    def draw(self, time: LostTime, seconds: float) -> float:
        """Draw seconds from the accounts of this cause; return 0 if they do not matter."""
        return time.draw(seconds, *self.accounts, least=0.0 if self.name in time.verdict.causes else self.least)

    def found(self, time: LostTime, lost: float | None, *evidence: Evidence, **changes: Any) -> Cause:
        """Return this cause as found in a run, with its lost seconds also in the summary, and its alerts as evidence.

        Args:
            time: The run.
            lost: The seconds that it cost; None if that is not measured.
            evidence: Lines that show it.
            changes: Fields that differ from those of the kind.
        """
        shown = (*alert_evidence(time.facts, *self.alerts), *evidence)
        cause = Cause(self.name, self.happened, shown, self.advice, self.check)._replace(**changes)
        if lost is None:
            return cause
        share = lost / time.facts.wall if time.facts.wall else 0.0
        summary = f"{cause.summary}: {percent(share)} of the time, {duration(lost)} at most"
        return cause._replace(summary=summary, lost_seconds=lost, low=self.low * lost, high=lost)


def drawn_accounts(kind: Kind, time: LostTime) -> Iterator[tuple[float, Evidence]]:
    """Yield what a cause lost of its own accounts, of what other causes left of them, and the line that shows it; or nothing."""
    facts = time.facts
    whole = sum(time.left.get(account, 0.0) for account in kind.accounts)
    attempts = len({span.attempt for span in facts.spans})
    if whole > attempts * kind.usual and (lost := kind.draw(time, whole)):
        names = " and ".join(ACCOUNTS[account] for account in kind.accounts)
        yield lost, Evidence(f"{names}: {duration(whole)} of {duration(facts.wall)}", f"{facts.api}/diagnosis")


def of_accounts(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the cause if its accounts lost a share of the time that matters."""
    for lost, account in drawn_accounts(kind, time):
        yield kind.found(time, lost, account)


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
    lost, wall = cause.lost_seconds, facts.wall
    # The gain is at most what was lost. The noise of the steps is none of seconds that were measured as such.
    if cause.low is not None and cause.high is not None and cause.low >= MEASURED * cause.high:
        noise = 0.0
    return {
        **cause._asdict(),
        "listed": lost is None or lost >= min(LISTED_SHARE * wall, LISTED_SECONDS),
        "low": None if cause.low is None else max(0.0, cause.low - noise),
        "evidence": [evidence._asdict() for evidence in cause.evidence],
        "gpu_hours": hours,
        "cost": None if hours is None or price is None else hours * price,
        "estimated_joules": estimated,
    }
