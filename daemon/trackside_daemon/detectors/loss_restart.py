"""A loss that begins anew where the training went back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Finding


class LossRestart:
    """A loss that begins anew where the training went back."""

    alerts: tuple[str, ...] = ("LossRestart",)

    def take(self, column: Column, context: Context) -> Iterator[Finding]:  # noqa: ARG002  not built yet
        """Nothing yet."""
        yield from ()
