"""The dashboard on a terminal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message

from trackside_daemon.model.text import shown
from trackside_daemon.terminal import snapshot
from trackside_daemon.terminal.frame import Frame, Told, columns, frame
from trackside_daemon.terminal.once import colourless
from trackside_daemon.terminal.panes import FilterLine, Help, Pane
from trackside_daemon.terminal.polling import Answer, Asking, Daemon
from trackside_daemon.terminal.runs import first_shown
from trackside_daemon.terminal.styled_lines import Line, fitted
from trackside_daemon.terminal.view import View, Window

if TYPE_CHECKING:
    from pathlib import Path

    from textual import events
    from textual.app import ComposeResult
    from textual.widgets import Input

KEYS = "q quit  s snapshot  r reset  / filter  Enter this run alone  +/- zoom  ? help"
ZOOM = 2.0
SHORTEST = 6
"""Of a terminal with fewer lines the last ones are not to be seen."""


class Top(App[None]):
    """`trackside top`.

    Args:
        daemon: Whom it asks.
        interval: Seconds from one question to the next.
        directory: Where snapshots go; None for the working one.
    """

    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Pane { width: 100%; text-wrap: nowrap; }
    #status { dock: bottom; height: 1; }
    FilterLine { dock: bottom; height: 1; border: none; padding: 0; display: none; }
    FilterLine > .input--cursor { color: ansi_default; background: ansi_default; text-style: reverse; }
    Help { align: center middle; }
    Help > Static { width: auto; max-width: 100%; height: auto; border: round ansi_default; padding: 0 1; }
    """
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("s", "save", "snapshot"),
        Binding("r", "reset", "reset"),
        Binding("slash", "filter", "filter"),
        Binding("question_mark", "help", "help"),
        Binding("up,k", "choose(-1)", "up"),
        Binding("down,j", "choose(1)", "down"),
        Binding("pageup", "choose(-10)", "up"),
        Binding("pagedown", "choose(10)", "down"),
        Binding("enter", "enlarge", "this run alone"),
        Binding("escape", "shrink", "back"),
        Binding("left", "pan(-0.5)", "back"),
        Binding("right", "pan(0.5)", "on"),
        Binding("plus,equals_sign", "zoom(0.5)", "fewer steps"),
        Binding("minus", "zoom(2.0)", "more steps"),
    ]

    class Answered(Message):
        """The daemon has answered, or has not."""

        def __init__(self, answer: Answer) -> None:
            super().__init__()
            self.answer = answer

    def __init__(self, daemon: Daemon, interval: float = 1.0, directory: Path | None = None) -> None:
        if colourless():
            os.environ["NO_COLOR"] = "1"
        super().__init__(ansi_color=True)
        self.view = View()
        self._directory = directory
        self._said: Told | None = None
        self._trouble = ""
        self._silent_since = time.time()
        self._note: Line = []
        self._panes = {name: Pane(id=name) for name in (*Frame._fields, "status")}
        self._filter = FilterLine(compact=True, placeholder="a part of a run's name, id or state")
        self._asking = Asking(
            daemon, self.view.question, lambda answer: self.post_message(self.Answered(answer)), interval
        )

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield from self._panes.values()
        yield self._filter

    def on_mount(self) -> None:
        """See Textual."""
        self._draw()
        self._asking.start()

    def on_unmount(self) -> None:
        """See Textual."""
        self._asking.end()

    def on_top_answered(self, message: Answered) -> None:
        """Draw what the daemon has said; what it said before stays when it says nothing."""
        said, trouble, asked = message.answer
        if trouble and not self._trouble:
            self._silent_since = asked
        self._trouble = shown(trouble)
        if said is not None:
            self._said = said
            self.view.follow(said.overview)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """See Textual."""
        self.view.columns = columns(event.size.width)
        self._draw()
        self._asking.now()

    def on_pane_clicked(self, message: Pane.Clicked) -> None:
        """Choose the run that was clicked."""
        runs = self.view.runs(self._overview)
        height = len(self._frame().runs)
        place = first_shown(len(runs), self.view.place(runs), height) + message.row - 1
        if message.pane == "runs" and message.row and place < len(runs):
            self.view.choose(str(runs[place].get("id")))
            self._changed()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is typed."""
        self.view.filter = message.value
        self.view.follow(self._overview)
        self._changed()

    def on_input_submitted(self, _message: Input.Submitted) -> None:
        """Keep the filter, and give the keys back."""
        self._filter.display = False
        self.set_focus(None)
        self._draw()

    def action_choose(self, by: int) -> None:
        """The run so many further down."""
        self.view.move(self._overview, by)
        self._changed()

    def action_enlarge(self) -> None:
        """The chosen run alone, or the list again."""
        self.view.large = not self.view.large
        self._changed()

    def action_shrink(self) -> None:
        """The list."""
        self.view.large = False
        self._changed()

    def action_reset(self) -> None:
        """All steps."""
        self.view.window = Window()
        self._changed()

    def action_zoom(self, factor: float) -> None:
        """More or fewer steps."""
        self.view.window = self.view.window.scaled(self._last_step, factor)
        self._changed()

    def action_pan(self, share: float) -> None:
        """Other steps."""
        self.view.window = self.view.window.moved(self._last_step, share)
        self._changed()

    def action_filter(self) -> None:
        """Have a filter typed."""
        self._filter.display = True
        self._filter.focus()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(Help())

    def action_save(self) -> None:
        """Write a snapshot, and say where."""
        if self._said is None:
            self._note = [("nothing to save yet", "warning")]
        else:
            try:
                self._note = [(f"saved {shown(snapshot.save(self._said, self._directory))}", "good")]
            except OSError as error:
                self._note = [
                    (f"not saved: {shown(error.filename)}: {(error.strerror or str(error)).lower()}", "critical")
                ]
        self._draw()

    @property
    def _overview(self) -> Any:
        return self._said.overview if self._said is not None else {}

    @property
    def _last_step(self) -> float:
        return self.view.last_step(self._overview)

    def _changed(self) -> None:
        """Draw what is looked at now, and ask for it."""
        self._note = []
        self._draw()
        self._asking.now()

    def _frame(self) -> Frame:
        said = self._said or Told({})
        return frame(said, self.view, self.size.width, max(SHORTEST, self.size.height - 1))

    def _draw(self) -> None:
        if self._said is not None:
            for name, lines in self._frame()._asdict().items():
                self._panes[name].draw(lines)
        self._panes["status"].draw([fitted(self._status(), self.size.width)])

    def _status(self) -> Line:
        """Trouble, what was just done, what is looked at, or the keys."""
        if self._trouble:
            since = time.strftime("%H:%M:%S", time.localtime(self._silent_since))
            return [(f"no answer since {since}, trying on: {self._trouble}", "critical")]
        if self._note:
            return self._note
        looked = [f"filter {shown(self.view.filter)!r}"] if self.view.filter else []
        steps, end = self.view.window
        if steps is not None:
            looked.append(f"{steps:.0f} steps{'' if end is None else f' to {end:.0f}'}")
        return [
            ("".join(f"{one}  " for one in looked), "info"),
            ("asking the daemon" if self._said is None else KEYS, "dim"),
        ]
