"""Textual application of `trackside top`."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from trackside.os_errors import os_error_text
from trackside_daemon.model.text import cut, shown
from trackside_daemon.terminal.frame import DaemonData, ScreenFrame, plot_columns, render_frame
from trackside_daemon.terminal.once import no_colour, save_snapshot
from trackside_daemon.terminal.panes import Confirmation, FilterLine, Help, Pane, ReportPane
from trackside_daemon.terminal.polling import PolledDaemon, Poller, PollResult, UnansweredError
from trackside_daemon.terminal.styled_lines import Line, first_visible, fit, to_float
from trackside_daemon.terminal.view import TREE, CpuShares, StepWindow, View, describe

KEYS = "q quit  p processes  c record  s snapshot  r reset  / filter  +/- zoom  ? help"
MACHINE_KEYS = "q quit  p runs  < > sort  i invert  e end  / filter  ? help"
MIN_LINES = 6  # lines of the lowest frame; a lower terminal cuts it off


class Top(App[None]):
    """`trackside top`.

    Args:
        daemon: Daemon to poll.
        interval: Seconds between two polls.
        directory: Directory of snapshots; None for the working directory.
    """

    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Pane { width: 100%; text-wrap: nowrap; }
    #status { dock: bottom; height: 1; }
    FilterLine { dock: bottom; height: 1; border: none; padding: 0; display: none; }
    FilterLine > .input--cursor { color: ansi_default; background: ansi_default; text-style: reverse; }
    Help, Confirmation { align: center middle; }
    Report { align: center middle; }
    Report > ScrollableContainer { width: auto; max-width: 100%; height: auto; max-height: 100%; border: round ansi_default; }
    Report Static { width: auto; padding: 0 1; text-wrap: nowrap; }
    Help > Static, Confirmation > Static { width: auto; max-width: 100%; height: auto; border: round ansi_default; padding: 0 1; }
    """
    AUTO_FOCUS = None  # otherwise the filter's input gets the keys
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),  # by default, Textual only shows how to quit
        Binding("c", "record", "record"),
        Binding("s", "save", "snapshot"),
        Binding("r", "reset", "reset"),
        Binding("slash", "filter", "filter"),
        Binding("question_mark", "help", "help"),
        Binding("up,k", "select(-1)", "up"),
        Binding("down,j", "select(1)", "down"),
        Binding("pageup", "select(-10)", "up"),
        Binding("pagedown", "select(10)", "down"),
        Binding("enter", "enlarge", "expand"),
        Binding("escape", "shrink", "back"),
        Binding("left", "pan(-0.5)", "back"),
        Binding("right", "pan(0.5)", "forward"),
        Binding("plus,equals_sign", "zoom(0.5)", "fewer steps"),
        Binding("minus", "zoom(2.0)", "more steps"),
        Binding("p", "machine", "processes"),
        Binding("less_than_sign", "sort(-1)", "sort"),
        Binding("greater_than_sign", "sort(1)", "sort"),
        Binding("i", "invert", "invert"),
        Binding("e", "end", "end"),
    ]

    class Polled(Message):
        """A poll has ended, with or without an answer."""

        def __init__(self, result: PollResult) -> None:
            super().__init__()
            self.result = result

    class Recorded(Message):
        """A capture has ended; its summary as lines of text."""

        def __init__(self, lines: Sequence[str]) -> None:
            super().__init__()
            self.lines = lines

    class Ended(Message):
        """A process was sent a signal, or not; the line to show."""

        def __init__(self, note: Line) -> None:
            super().__init__()
            self.note = note

    def __init__(self, daemon: PolledDaemon, interval: float = 1.0, directory: Path | None = None) -> None:
        if no_colour():
            # Textual reads this variable, but not the names of terminals without colour.
            os.environ["NO_COLOR"] = "1"
        # The terminal's palette instead of a theme of Textual.
        super().__init__(ansi_color=True)
        self.view = View()
        self._directory = directory
        self._data: DaemonData | None = None
        self._error = ""
        self._silent_since = time.time()
        self._note: Line = []
        self._daemon = daemon
        self._recording = False
        self._cpu_shares = CpuShares()
        self._panes = {name: Pane(id=name) for name in (*ScreenFrame._fields, "status")}
        self._filter = FilterLine(compact=True, placeholder="part of a run's name, id or state")
        # Textual permits post_message in any thread, such as the poller's, but not most other methods.
        self._poller = Poller(daemon, self.view, lambda result: self.post_message(self.Polled(result)), interval)

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield from self._panes.values()
        yield self._filter

    def on_mount(self) -> None:
        """See Textual."""
        self._draw()
        self._poller.start()

    def on_unmount(self) -> None:
        """See Textual."""
        self._poller.stop()

    def on_top_polled(self, message: Polled) -> None:
        """Draw the new data; after an error, the last data stay."""
        data, error, polled_at = message.result
        if error and not self._error:
            self._silent_since = polled_at
        self._error = shown(error)
        if data is not None:
            self._data = data
            self._cpu_shares.update(data.processes, polled_at)
            self.view.update_selection(data.overview)
        self._draw()

    def on_top_recorded(self, message: Recorded) -> None:
        """Show the summary of a capture."""
        self._recording, self._note = False, []
        self._draw()
        self.push_screen(ReportPane([shown(line) for line in message.lines]))

    def on_resize(self, event: events.Resize) -> None:
        """See Textual."""
        # The daemon reduces the series to the plot's width, so another width needs other data.
        self.view.columns, self.view.width = plot_columns(event.size.width), event.size.width
        self._draw()
        self._poller.poll_now()

    def on_pane_clicked(self, message: Pane.Clicked) -> None:
        """Select the run or process that was clicked."""
        if message.pane == "processes":
            self._select_process(message.row)
            return
        runs = self.view.matching_runs(self._overview)
        height = len(self._frame().runs)
        # The first line of the pane has the names of the columns.
        index = first_visible(len(runs), self.view.selected_index(runs), height) + message.row - 1
        if message.pane == "runs" and message.row and index < len(runs):
            self.view.select(str(runs[index].get("id")))
            self._view_changed()

    def _select_process(self, row: int) -> None:
        found = self.view.matching_processes(self._processes)
        selected = self.view.process_index(found)
        index = first_visible(len(found), selected, len(self._frame().processes)) + row - 1
        if row and index < len(found):
            self.view.move_process(self._processes, index - selected)
            self._draw()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Apply the filter while the user types."""
        self.view.filter = message.value
        self.view.update_selection(self._overview)
        self._view_changed()

    def on_input_submitted(self, _message: Input.Submitted) -> None:
        """Keep the filter, and hide its input."""
        self._filter.display = False
        self.set_focus(None)
        self._draw()

    def action_select(self, by: int) -> None:
        """Select the run or process that many lines further down."""
        if self.view.machine:
            self.view.move_process(self._processes, by)
        else:
            self.view.move_selection(self._overview, by)
        self._view_changed()

    def action_machine(self) -> None:
        """Show the machine's histories and processes, or the runs again."""
        self.view.machine = not self.view.machine
        self._view_changed()

    def action_sort(self, by: int) -> None:
        """Sort the processes by another column."""
        self.view.sort_by(by)
        self._draw()

    def action_invert(self) -> None:
        """Reverse the order of the processes."""
        self.view.is_reversed = not self.view.is_reversed
        self._draw()

    def action_end(self) -> None:
        """End the selected process, if the user confirms that."""
        found = self.view.matching_processes(self._processes)
        if not self.view.machine or not found:
            return
        process = found[self.view.process_index(found)]
        pid, started = process.get("pid"), to_float(process.get("started"))
        if not process.get("run") or not isinstance(pid, int) or started is None:
            self._note = [(f"process {shown(pid)} is not of a training: only those can be ended here", "warning")]
            self._draw()
            return

        def answered(answer: bool | None) -> None:
            if answer:
                threading.Thread(target=self._end, args=(pid, started), daemon=True).start()

        question = f"Send SIGTERM to process {cut(describe(process), 300)}?"
        self.push_screen(Confirmation(f"{question}\nA training saves nothing unless it handles the signal."), answered)

    def _end(self, pid: int, started: float) -> None:
        try:
            self._daemon.end(pid, started)
        except UnansweredError as error:
            note: Line = [(f"not ended: {shown(str(error))}", "critical")]
        else:
            note = [(f"sent SIGTERM to process {pid}", "good")]
        self.post_message(self.Ended(note))

    def on_top_ended(self, message: Ended) -> None:
        """Show whether the signal was sent."""
        self._note = message.note
        self._draw()
        self._poller.poll_now()

    def action_enlarge(self) -> None:
        """Expand the selected run, or show the list again."""
        self.view.enlarged = not self.view.enlarged
        self._view_changed()

    def action_shrink(self) -> None:
        """Show the list."""
        self.view.enlarged = False
        self._view_changed()

    def action_reset(self) -> None:
        """Show all steps."""
        self.view.window = StepWindow()
        self._view_changed()

    def action_zoom(self, factor: float) -> None:
        """Show more or fewer steps."""
        self.view.window = self.view.window.scaled(self._last_step, factor)
        self._view_changed()

    def action_pan(self, share: float) -> None:
        """Show earlier or later steps."""
        self.view.window = self.view.window.moved(self._last_step, share)
        self._view_changed()

    def action_filter(self) -> None:
        """Show the input of the filter."""
        self._filter.display = True
        self._filter.focus()

    def action_record(self) -> None:
        """Record some steps of the selected run, in a thread."""
        run = self.view.selected_run(self._overview)
        if run is not None and not self._recording:
            self._recording = True
            self._note = [(f"records 10 steps of {shown(run.get('name'))}; their summary follows", "info")]
            threading.Thread(target=self._record, args=(str(run.get("id")),), daemon=True).start()
        self._draw()

    def _record(self, run: str) -> None:
        try:
            lines = self._daemon.record(run)
        except UnansweredError as error:
            lines = [str(error)]
        self.post_message(self.Recorded(lines))

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(Help())

    def action_save(self) -> None:
        """Write a snapshot, and show its path."""
        if self._data is None:
            self._note = [("no data to save yet", "warning")]
        else:
            try:
                self._note = [(f"saved {shown(save_snapshot(self._data, self._directory))}", "good")]
            except OSError as error:
                self._note = [(f"not saved: {shown(error.filename)}: {os_error_text(error)}", "critical")]
        self._draw()

    @property
    def _overview(self) -> Any:
        return self._data.overview if self._data is not None else {}

    @property
    def _processes(self) -> Sequence[dict[str, Any]]:
        return self._data.processes if self._data is not None else ()

    @property
    def _last_step(self) -> float:
        return self.view.last_step(self._overview)

    def _view_changed(self) -> None:
        """Draw the new view, and fetch its data."""
        self._note = []
        self._draw()
        self._poller.poll_now()

    def _frame(self) -> ScreenFrame:
        data = self._data or DaemonData({})
        return render_frame(data, self.view, self.size.width, max(MIN_LINES, self.size.height - 1))

    def _draw(self) -> None:
        if self._data is not None:
            for name, lines in self._frame()._asdict().items():
                self._panes[name].draw(lines)
        self._panes["status"].draw([fit(self._status(), self.size.width)])

    def _status(self) -> Line:
        """Return the error, the result of the last action, or the filter and window with the keys."""
        if self._error:
            since = time.strftime("%H:%M:%S", time.localtime(self._silent_since))
            return [(f"no answer since {since}, retrying: {self._error}", "critical")]
        if self._note:
            return self._note
        active = [f"filter {shown(self.view.filter)!r}"] if self.view.filter else []
        steps, end = self.view.window
        if self.view.machine:
            active.append("tree" if self.view.order == TREE else f"by {self.view.order}")
        elif steps is not None:
            active.append(f"{steps:.0f} steps{'' if end is None else f' to {end:.0f}'}")
        return [
            ("".join(f"{text}  " for text in active), "info"),
            ("connecting to the daemon" if self._data is None else MACHINE_KEYS if self.view.machine else KEYS, "dim"),
        ]
