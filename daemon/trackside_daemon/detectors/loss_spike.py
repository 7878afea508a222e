"""A loss that jumps for a sample or a few, and a batch that is hard."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Finding


class LossSpike:
    """A loss that jumps for a sample or a few, and a batch that is hard."""

    alerts: tuple[str, ...] = (
        "LossSpike",
        "LossHardBatch",
    )

    def take(self, column: Column, context: Context) -> Iterator[Finding]:  # noqa: ARG002  not built yet
        """Nothing yet."""
        yield from ()
