"""What a client may say of itself, cut to what the page and the history can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from trackside.wire import Identity

MOST = 2**31 - 1
"""Ranks and attempts beyond are taken for this one."""

LABELS = ("run", "name", "host", "git_commit", "framework", "job_id")
"""What of an identity becomes a label."""


def bounded(identity: Identity, label_bytes: int) -> Identity:
    """The same with every text short enough for a label, and every number one that can be kept."""
    texts = {name: cut(getattr(identity, name), label_bytes) for name in LABELS}
    gpus = tuple(cut(gpu, 64) for gpu in identity.gpus[:64])
    numbers = {name: min(getattr(identity, name), MOST) for name in ("attempt", "rank", "world", "local_world")}
    return replace(identity, **texts, **numbers, boot=cut(identity.boot, 64), gpus=gpus)


def cut(text: str, size: int) -> str:
    """*text* cut to *size* bytes of UTF-8, at a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
