"""Gradients that explode or vanish."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Finding


class Gradient:
    """Gradients that explode or vanish."""

    alerts: tuple[str, ...] = (
        "GradientExplosion",
        "GradientVanishing",
    )

    def take(self, column: Column, context: Context) -> Iterator[Finding]:  # noqa: ARG002  not built yet
        """Nothing yet."""
        yield from ()
