"""What may be shown and kept of clients, and what they say of themselves cut to that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

if TYPE_CHECKING:
    from trackside.wire import Identity

MOST = 2**31 - 1
"""Ranks and attempts beyond are taken for this one."""

LABELS = ("run", "name", "host", "git_commit", "framework", "job_id")
"""What of an identity becomes a label."""


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


def bounded(identity: Identity, label_bytes: int) -> Identity:
    """The same with every text short enough for a label, and every number one that can be kept."""
    texts = {name: cut(getattr(identity, name), label_bytes) for name in LABELS}
    gpus = tuple(cut(gpu, 64) for gpu in identity.gpus[:64])
    numbers = {name: min(getattr(identity, name), MOST) for name in ("attempt", "rank", "world", "local_world")}
    return replace(identity, **texts, **numbers, boot=cut(identity.boot, 64), gpus=gpus)


def cut(text: str, size: int) -> str:
    """*text* cut to *size* bytes of UTF-8, at a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
