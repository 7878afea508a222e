"""The parts of the screen that are not text alone: lines in their colours, the line for a filter, the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from trackside_daemon.terminal.styled_lines import Line

STYLES = {
    "title": "bold",
    "dim": "dim",
    "good": "ansi_green",
    "info": "ansi_cyan",
    "warning": "ansi_yellow",
    "critical": "bold ansi_red",
    "chosen": "reverse",
}
"""What Textual calls the inks."""

HELP = """\
up, down     choose a run
Enter, Esc   the chosen run alone, and back
+, -         fewer or more steps in the plots
left, right  back and on by half a window
r            all steps again
/            filter by name, id or state; Esc ends it
s            save a snapshot (JSON) in the working directory
?            this page
q            quit

In a plot, ! below the curve is a stretch of steps with NaN
or infinities; + looks closer. The numbers beside a plot are
its extremes. With several ranks it is of the lowest.
In the list, > is the run that is plotted, and its rate that
of all ranks together.\
"""


class Pane(Static):
    """Lines."""

    class Clicked(Message):
        """A line was clicked.

        Attributes:
            pane: The id of the pane.
            row: The number of the line.
        """

        def __init__(self, pane: str, row: int) -> None:
            super().__init__()
            self.pane = pane
            self.row = row

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these instead."""
        self.styles.height = len(lines)
        self.display = bool(lines)
        parts = [
            (text, STYLES[ink]) if ink else text
            for number, line in enumerate(lines)
            for text, ink in (*([("\n", "")] if number else []), *line)
        ]
        self.update(Content.assemble(*parts))

    def on_click(self, event: events.Click) -> None:
        """Say which line it was."""
        self.post_message(self.Clicked(self.id or "", event.y))


class FilterLine(Input):
    """Where a filter is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "all runs")]

    def action_leave(self) -> None:
        """No filter."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class Help(ModalScreen[None]):
    """The keys; any of them ends it."""

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(HELP, markup=False)

    def on_key(self, event: events.Key) -> None:
        """See Textual."""
        event.stop()
        self._leave()

    def on_click(self) -> None:
        """See Textual."""
        self._leave()

    def _leave(self) -> None:
        """Keys that were pressed before the first of them was seen all come here."""
        if self.is_current:
            self.dismiss()
