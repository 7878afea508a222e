"""A step that takes much longer than those before it, but for pauses that come by a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Finding


class SlowStep:
    """A step that takes much longer than those before it, but for pauses that come by a schedule."""

    alerts: tuple[str, ...] = ("SlowStep",)

    def take(self, column: Column, context: Context) -> Iterator[Finding]:  # noqa: ARG002  not built yet
        """Nothing yet."""
        yield from ()
