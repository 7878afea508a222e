"""Textual widgets: panes of styled lines, the input of the filter, and the help."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from trackside_daemon.terminal.styled_lines import Line

# Textual's styles by ours.
TEXTUAL_STYLES = {
    "title": "bold",
    "dim": "dim",
    "good": "ansi_green",
    "info": "ansi_cyan",
    "warning": "ansi_yellow",
    "critical": "bold ansi_red",
    "selected": "reverse",
}

HELP = """\
up, down     select a run, or a process
Enter, Esc   expand the selected run, and go back to the list
+, -         show fewer or more steps in the plots
left, right  move back or forward by half a window
r            show all steps
p            show processes and histories, and go back
<, >         sort the processes by another column, or as a tree
i            reverse the order of that column
e            end the selected process, after a confirmation
c            record 10 steps of the selected run, and show where
             their time goes
/            filter runs or processes; Esc clears the filter
s            save a snapshot (JSON) in the working directory
?            show this help
q            quit

The numbers next to a plot are its lowest and highest value.
A ! below the curve marks steps with NaN or infinite values;
press + to see more detail. With several ranks, the plots show
the lowest rank. In the list, > marks the selected run, and
RATE is that of all ranks together.\
"""


class Pane(Static):
    """Pane of styled lines."""

    class Clicked(Message):
        """A line was clicked.

        Attributes:
            pane: Id of the pane.
            row: Index of the line.
        """

        def __init__(self, pane: str, row: int) -> None:
            super().__init__()
            self.pane = pane
            self.row = row

    def draw(self, lines: Sequence[Line]) -> None:
        """Replace the lines."""
        self.styles.height = len(lines)
        self.display = bool(lines)
        parts = [
            (text, TEXTUAL_STYLES[style]) if style else text
            for number, line in enumerate(lines)
            for text, style in (*([("\n", "")] if number else []), *line)
        ]
        # Not a string, in which Textual would interpret brackets in a run's name as markup.
        self.update(Content.assemble(*parts))

    def on_click(self, event: events.Click) -> None:
        """Post the line that was clicked."""
        self.post_message(self.Clicked(self.id or "", event.y))


class FilterLine(Input):
    """Input of the filter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "all runs")]

    def action_leave(self) -> None:
        """Clear the filter."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class ReportPane(ModalScreen[None]):
    """Lines of text, which scroll; Escape, Enter and q close them."""

    AUTO_FOCUS = "ScrollableContainer"  # which gets the keys
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,c", "dismiss", "close")]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._text = "\n".join(lines)

    def compose(self) -> ComposeResult:
        """See Textual."""
        with ScrollableContainer():
            yield Static(self._text, markup=False)


class Confirmation(ModalScreen[bool]):
    """Question that only the key y answers with yes."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(f"{self._question}\n\ny  yes        any other key  no", markup=False)

    def on_key(self, event: events.Key) -> None:
        """See Textual."""
        event.stop()
        if self.is_current:
            self.dismiss(event.key == "y")


class Help(ModalScreen[None]):
    """Help on the keys; any key closes it."""

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(HELP, markup=False)

    def on_key(self, event: events.Key) -> None:
        """See Textual."""
        event.stop()
        self._close_help()

    def on_click(self) -> None:
        """See Textual."""
        self._close_help()

    def _close_help(self) -> None:
        # Keys pressed before the first one was handled all arrive here.
        if self.is_current:
            self.dismiss()
