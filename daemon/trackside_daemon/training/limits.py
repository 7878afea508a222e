"""What may be shown and kept of clients, and what they say of themselves cut to that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trackside_daemon.model.metric import Sample
from trackside_daemon.training.families import REJECTIONS, SERIES_REJECTED

if TYPE_CHECKING:
    from trackside.wire import Identity, ProcessInfo

MOST = 2**31 - 1
"""Ranks and attempts beyond are taken for this one."""

LABELS = ("run", "name", "host", "git_commit", "framework", "job_id")
"""What of an identity becomes a label."""

log = logging.getLogger("trackside")


class Limits(NamedTuple):
    """What may be on the page at once; what is over it is counted in `families.SERIES_REJECTED`.

    Attributes:
        runs: Live ones; as many may have ended.
        keys: Of one rank, without a family of their own.
        series: Of such keys in all.
        label_bytes: Length of a label's value in UTF-8.
        sessions: Of all these runs.
    """

    runs: int = 64
    keys: int = 1000
    series: int = 10_000
    label_bytes: int = 256
    sessions: int = 1024


class Rejections:
    """What is over a limit: counted by reason, and the first of each logged."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(REJECTIONS, 0)

    def add(self, reason: str, what: str, limit: int) -> bool:
        """One more; False, as what is asked whether it may be."""
        if not self._counts[reason]:
            log.warning(
                "%s is over the limit of %d (%s): not on /metrics, and so are further ones", what, limit, reason
            )
        self._counts[reason] += 1
        return False

    def samples(self) -> list[Sample]:
        """How many, by reason."""
        return [Sample(SERIES_REJECTED, (reason,), count) for reason, count in self._counts.items()]


def bounded(identity: Identity, label_bytes: int) -> Identity:
    """The same with every text short enough for a label, and every number one that can be kept."""
    texts = {name: cut(getattr(identity, name), label_bytes) for name in LABELS}
    gpus = tuple(cut(gpu, 64) for gpu in identity.gpus[:64])
    numbers = {name: min(getattr(identity, name), MOST) for name in ("attempt", "rank", "world", "local_world")}
    return replace(identity, **texts, **numbers, boot=cut(identity.boot, 64), gpus=gpus)


def pod(about: ProcessInfo | None, label_bytes: int) -> tuple[str, str, str]:
    """Pod, namespace and container of who tells them, short enough for labels."""
    told = ("", "", "") if about is None else (about.k8s_pod, about.k8s_namespace, about.k8s_container)
    first, second, third = (cut(name, label_bytes) for name in told)
    return first, second, third


def cut(text: str, size: int) -> str:
    """*text* cut to *size* bytes of UTF-8, at a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
