"""The dashboard by Textual's pilot, in front of a fake daemon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE

from trackside_daemon.cli.commands.top import ReconnectingDaemon
from trackside_daemon.terminal.app import Top
from trackside_daemon.terminal.frame import ScreenFrame
from trackside_daemon.terminal.panes import Pane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from terminal.fake import Fake
    from textual.pilot import Pilot


def driven(
    fake: Fake,
    play: Callable[[Pilot[None], Top], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    directory: Path | None = None,
) -> None:
    """Run the dashboard with a short interval; after the first plot, run the test's actions."""

    async def run() -> None:
        app = Top(ReconnectingDaemon(fake.url), 0.05, directory)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: plotted(app))
            await play(pilot, app)

    asyncio.run(run())


def plotted(app: Top) -> bool:
    """Return whether the series of the displayed run have arrived, or there is no run."""
    return "step" in text(app, "plots") or "no run" in text(app, "runs")


def text(app: Top, *panes: str) -> str:
    """Return the text of some panes, or of the whole screen."""
    names = panes or [name for name in (*ScreenFrame._fields, "status") if app.query_one(f"#{name}").display]
    return "\n".join(str(app.query_one(f"#{name}", Pane).content) for name in names)


async def until(pilot: Pilot[None], check: Callable[[], Any]) -> None:
    """Wait until something is so."""

    async def wait() -> None:
        while not check():
            await pilot.pause(0.01)

    try:
        await asyncio.wait_for(wait(), DEADLINE)
    except asyncio.TimeoutError:
        pytest.fail(f"did not come true within {DEADLINE:g} s: {check}")
