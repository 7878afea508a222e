"""The limits of what clients may export, and who is exported when one is reached: each owner gets the same share."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from trackside.redact import redact_text
from trackside.wire import Identity, ProcessInfo
from trackside_daemon.model.families.training import REJECTIONS, SERIES_REJECTED
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.session import Owner
from trackside_daemon.model.state import OF_STATISTICS
from trackside_daemon.model.text import cut_bytes
from trackside_daemon.training.rank import RankStatus
from trackside_daemon.training.run import RunStatus

MAX_INT32 = 2**31 - 1  # the highest rank, attempt and pid; larger numbers count as this one
IDENTITY_NUMBERS = ("attempt", "rank", "local_rank", "world", "local_world", "pid")
IDENTITY_LABELS = ("run", "name", "host", "git_commit", "framework", "job_id")  # its fields that become labels

# New runs of one owner: so many at once, and so many a second.
NEW_RUNS_BURST = 128.0
NEW_RUNS_RATE = 2.0

log = logging.getLogger("trackside")


class PageLimits(NamedTuple):
    """The most that is on the page at once; `families.training.SERIES_REJECTED` counts the rest."""

    runs: int = 64  # live runs; as many ended runs stay
    ranks: int = 64  # ranks of a run with series of their own; of more ranks there are statistics
    keys: int = 1000  # keys of one rank, without those that have their own family, and values of its layers
    series: int = 10_000  # series of such keys and values, of all ranks
    label_bytes: int = 256  # length of a label's value in UTF-8
    sessions: int = 2048  # sessions of all runs
    layers: tuple[str, ...] = ()  # names of the layers that have series, with ``*`` and ``?``


class OwnerRate:
    """The rate of something for each owner, of new runs by default: *burst* at once, and *rate* a second."""

    def __init__(self, burst: float = NEW_RUNS_BURST, rate: float = NEW_RUNS_RATE) -> None:
        self._burst, self._rate = burst, rate
        self._owners: dict[str, tuple[float, float]] = {}

    def admit(self, owner: str, now: float, amount: float = 1.0) -> bool:
        """Return whether an owner may have an amount more at *now*, in monotonic seconds, and count it."""
        admitted = self._left(owner, now) >= amount
        self.charge(owner, now, amount * admitted)
        return admitted

    def charge(self, owner: str, now: float, amount: float) -> None:
        """Count an amount that an owner has had at *now*, also beyond the limit: the next ones wait until it is made up for."""
        self._owners[owner] = self._left(owner, now) - amount, now

    def _left(self, owner: str, now: float) -> float:
        left, then = self._owners.get(owner, (self._burst, now))
        return min(self._burst, left + self._rate * (now - then))


class Rejections:
    """Counts, by reason, what is over a limit; the first of each reason is logged."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(REJECTIONS, 0)

    def count(self, reason: str, subject: str, limit: int) -> None:
        """Count one more."""
        if not self._counts[reason]:
            log.warning(
                "%s is over the limit of %d (%s): it is not on /metrics, nor are further ones", subject, limit, reason
            )
        self._counts[reason] += 1

    def samples(self) -> list[Sample]:
        """Return the counts."""
        return [Sample(SERIES_REJECTED, (reason,), number) for reason, number in self._counts.items()]


def bounded(identity: Identity, label_bytes: int) -> Identity:
    """Return an identity with texts that may be labels, without secrets, and numbers that the history can store."""
    texts = {name: redacted(getattr(identity, name), label_bytes) for name in IDENTITY_LABELS}
    gpus = tuple(cut_bytes(gpu, 64) for gpu in identity.gpus[:64])
    numbers = {name: min(getattr(identity, name), MAX_INT32) for name in IDENTITY_NUMBERS}
    return replace(identity, **texts, **numbers, boot=cut_bytes(identity.boot, 64), gpus=gpus)


def numbered(name: str, label_bytes: int) -> Iterator[str]:
    """Yield a run's name, then the name with each number from 2, in *label_bytes* bytes of UTF-8."""
    yield name
    yield from (f"{cut_bytes(name, label_bytes - 8)}-{number}" for number in count(2))


def pod(about: ProcessInfo | None, label_bytes: int) -> tuple[str, str, str]:
    """Return pod, namespace and container, short enough for labels; empty where unknown."""
    if about is None:
        return "", "", ""
    return (
        redacted(about.k8s_pod, label_bytes),
        redacted(about.k8s_namespace, label_bytes),
        redacted(about.k8s_container, label_bytes),
    )


def redacted(text: str, size: int) -> str:
    """Return a client's text without secrets, cut as by `cut_bytes`; clients redact, but not older ones and other programs."""
    return cut_bytes(redact_text(cut_bytes(text, 4 * size)), size)


# Series of keys in memory, of all runs, as a multiple of those that may be on the page: ranks that share statistics.
STORED_FACTOR = 10


class Admission:
    """Admits what is exported, within the limits; counts and logs what is not.

    Args:
        limits: The limits.
        runs: All runs that are exported; the collection may change.

    Attributes:
        rejections: What was over a limit.
    """

    def __init__(self, limits: PageLimits, runs: Collection[RunStatus]) -> None:
        self.rejections = Rejections()
        self._limits = limits
        self._runs = runs
        self._new_attempts = OwnerRate()

    def session(self, identity: Identity, owner: Owner) -> bool:
        """Return whether a session may be exported."""
        used = self._used(lambda run: len(run.sessions))
        if is_over := _is_over(self._limits.sessions, used, owner):
            self.rejections.count("sessions", f"a session of run {identity.name}", self._limits.sessions)
        return not is_over

    def run(
        self, identity: Identity, before: RunStatus | None, owner: Owner, now: float
    ) -> tuple[bool, RunStatus | None]:
        """Return whether a new run, or an attempt that replaces the one *before*, may be exported, and which run leaves.

        *now* is in monotonic seconds: an owner may open attempts at the rate of `OwnerRate`, since each writes to the log.
        """
        live = [run for run in self._runs if run is not before and not run.ended]
        leaving = None
        if len(live) >= self._limits.runs:
            leaving = _displaced(live, owner)
            if leaving is None:
                self.rejections.count("runs", f"run {identity.name}", self._limits.runs)
                return False, None
        if not self._new_attempts.admit(owner.id, now):
            self.rejections.count("runs", f"one more attempt of run {identity.name} at once", int(NEW_RUNS_BURST))
            return False, None
        if leaving is not None:
            self.rejections.count("runs", f"run {leaving.name}", self._limits.runs)
        return True, leaving

    def ended_run(self) -> RunStatus | None:
        """Return the run that leaves if as many have ended as may be alive: of the owner with the most, the first one."""
        ended = [run for run in self._runs if run.ended]
        if len(ended) < self._limits.runs:
            return None
        counts = Counter(run.owner.id for run in ended)
        first = min(ended, key=lambda run: (-counts[run.owner.id], run.until or 0.0))
        self.rejections.count("runs", f"the end of run {first.name}", self._limits.runs)
        return first

    def key(self, run: RunStatus, rank: RankStatus, key: str) -> bool:
        """Return whether a key of a rank may have a series."""
        limits, rejections = self._limits, self.rejections
        if len(key.encode()) > limits.label_bytes:
            rejections.count("label_length", f"key {key[:40]}…", limits.label_bytes)
            return False
        if rank.keys >= limits.keys:
            rejections.count("keys", f"key {key} of run {run.name}", limits.keys)
            return False
        on_page = self._used(lambda one: 0 if one.forgotten else self._series(one))
        stored = self._used(lambda one: 0 if one.forgotten else one.value_series)
        is_new = key not in run.keys or not self._has_statistics(run)
        is_over = _is_over(STORED_FACTOR * limits.series, stored, run.owner)
        if is_over or (is_new and _is_over(limits.series, on_page, run.owner)):
            rejections.count("series", f"key {key} of run {run.name}", limits.series)
            return False
        run.keys.add(key)
        run.value_series += 1
        run.value_ranks += not rank.keys
        return True

    def _has_statistics(self, run: RunStatus) -> bool:
        """Return whether the page has statistics over the ranks of a run, and not each rank, as `State` decides it."""
        return run.value_ranks > self._limits.ranks

    def _series(self, run: RunStatus) -> int:
        """Return how many series of keys a run has on the page, at most."""
        return OF_STATISTICS * len(run.keys) if self._has_statistics(run) else run.value_series

    def _used(self, amount: Callable[[RunStatus], int]) -> Counter[str]:
        """Return how much of a limit each owner uses, by the *amount* of each run."""
        used: Counter[str] = Counter()
        for run in self._runs:
            used[run.owner.id] += amount(run)
        return used


def _displaced(runs: Sequence[RunStatus], owner: Owner) -> RunStatus | None:
    """Return the run that leaves the page for a new one of an owner; None if the new one stays off the page.

    The owner with the most runs gives one up to an owner with fewer, until all have the same share. Runs whose process no
    connection has identified go first, then the newest.
    """
    counts = Counter(run.owner.id for run in runs)
    most = max(counts.values())
    if most > counts[owner.id] + 1:
        candidates = [run for run in runs if counts[run.owner.id] == most]
    else:
        candidates = [run for run in runs if run.owner.id == owner.id and owner.verified and not run.owner.verified]
    return min(reversed(candidates), key=lambda run: run.owner.verified, default=None)


def _is_over(limit: int, used: Mapping[str, int], owner: Owner) -> bool:
    """Return whether an owner may not use more: the limit is reached, and the owner has as much as each other may have."""
    return sum(used.values()) >= limit and used.get(owner.id, 0) >= limit // len({*used, owner.id})
