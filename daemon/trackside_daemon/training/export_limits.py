"""Limits of what clients may export, and their identities cut to these."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trackside.redact import redact_text
from trackside_daemon.model.families.training import REJECTIONS, SERIES_REJECTED
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside.wire import Identity, ProcessInfo

MOST = 2**31 - 1  # the highest rank, attempt and pid; larger numbers count as this one
NUMBERS = ("attempt", "rank", "local_rank", "world", "local_world", "pid")
LABELS = ("run", "name", "host", "git_commit", "framework", "job_id")  # the fields of an identity that become labels

# New runs of one owner: so many at once, and so many a second.
BURST = 128.0
RATE = 2.0

log = logging.getLogger("trackside")


class Limits(NamedTuple):
    """The most that is on the page at once; `training_families.SERIES_REJECTED` counts the rest.

    Attributes:
        runs: Live runs; as many ended runs stay.
        ranks: Ranks of a run with series of their own; of more ranks there are statistics.
        keys: Keys of one rank, without those that have their own family, and values of its layers.
        series: Series of such keys and values, of all ranks.
        label_bytes: Length of a label's value in UTF-8.
        sessions: Sessions of all runs.
        layers: Names of the layers that have series, with ``*`` and ``?``.
    """

    runs: int = 64
    ranks: int = 64
    keys: int = 1000
    series: int = 10_000
    label_bytes: int = 256
    sessions: int = 2048
    layers: tuple[str, ...] = ()


class OwnerRate:
    """The rate of something for each owner, of new runs by default: *burst* at once, and *rate* a second."""

    def __init__(self, burst: float = BURST, rate: float = RATE) -> None:
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

    def add(self, reason: str, subject: str, limit: int) -> bool:
        """Count one more, and return False, the answer to whether it may be exported."""
        if not self._counts[reason]:
            log.warning(
                "%s is over the limit of %d (%s): it is not on /metrics, nor are further ones", subject, limit, reason
            )
        self._counts[reason] += 1
        return False

    def samples(self) -> list[Sample]:
        """Return the counts."""
        return [Sample(SERIES_REJECTED, (reason,), count) for reason, count in self._counts.items()]


def bounded(identity: Identity, label_bytes: int) -> Identity:
    """Return an identity with texts that may be labels, without secrets, and numbers that the history can store."""
    texts = {name: redacted(getattr(identity, name), label_bytes) for name in LABELS}
    gpus = tuple(cut(gpu, 64) for gpu in identity.gpus[:64])
    numbers = {name: min(getattr(identity, name), MOST) for name in NUMBERS}
    return replace(identity, **texts, **numbers, boot=cut(identity.boot, 64), gpus=gpus)


def numbered(name: str, label_bytes: int) -> Iterator[str]:
    """Yield a run's name, then the name with each number from 2, in *label_bytes* bytes of UTF-8."""
    yield name
    yield from (f"{cut(name, label_bytes - 8)}-{number}" for number in count(2))


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
    """Return a client's text without secrets, cut as by `cut`; clients redact, but not older ones and other programs."""
    return cut(redact_text(cut(text, 4 * size)), size)


def cut(text: str, size: int) -> str:
    """Return *text* cut to *size* bytes of UTF-8, at a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
