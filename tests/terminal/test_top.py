"""`trackside top` by its keys."""

from __future__ import annotations

import json
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE
from terminal.driving import driven, text, until
from terminal.fake import BEGUN, Fake, alert, gpu, overview, process, run, serving
from textual.containers import ScrollableContainer
from textual.events import Key
from textual.geometry import Region

from trackside_daemon.cli.commands.top import ReconnectingDaemon
from trackside_daemon.cli.sources import daemon_lookup
from trackside_daemon.terminal.panes import Confirmation, FilterLine, Help, Pane, ReportPane
from trackside_daemon.terminal.polling import Poller, PollResult, UnansweredError
from trackside_daemon.terminal.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from textual.pilot import Pilot

    from trackside_daemon.terminal.app import Top


def chosen(app: Top) -> str:
    """Return the name of the run with the mark."""
    return next(line.split()[1] for line in text(app, "runs").splitlines() if line.startswith("> "))


def test_everything_is_visible_on_80_by_24(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        screen = text(app)
        for answered in (
            "gpu7",
            "cpu 34 % of 16",
            "mem 41G/128G",
            "/ 61 %",
            "gpt-small",
            "running",
            "2.125",
            "51.2ktok",
        ):
            assert answered in screen
        for answered in (
            "1 critical +1",
            "loss 1.5",
            "tokens/s 51.2k",
            "97 %",
            "71.3G/79.6G",
            "643W",
            "64C",
            "!power_cap",
        ):
            assert answered in screen
        assert "critical NonFinite" in screen
        lines = screen.splitlines()
        assert len(lines) == 24
        assert {len(line) for line in lines} == {80}

    driven(fake, play)


def test_arrows_choose_a_run_and_its_series_are_requested(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert chosen(app) == "gpt-small"
        await pilot.press("down")
        assert chosen(app) == "gpt-wide"
        await until(pilot, lambda: fake.asked[-1]["run"] == ["gpt-wide-1"])
        await until(pilot, lambda: "gpt-wide  loss 1.5" in text(app, "plots"))
        await pilot.press("down", "up", "up")
        assert chosen(app) == "gpt-small"

    driven(fake, play)


def test_a_click_chooses_a_run(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.click("#runs", offset=(5, 2))
        await pilot.pause()
        assert chosen(app) == "gpt-wide"

    driven(fake, play)


def test_a_chosen_run_stays_chosen_when_another_begins_and_gives_way_when_it_ends(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("down")
        fake.overview = overview(runs=[run("newest"), *fake.overview["runs"]])
        await until(pilot, lambda: "newest" in text(app, "runs"))
        assert chosen(app) == "gpt-wide"
        fake.overview = overview(runs=[run("newest")])
        await until(pilot, lambda: "gpt-wide" not in text(app, "runs"))
        assert chosen(app) == "newest"

    driven(fake, play)


def test_enter_gives_the_chosen_run_the_room_and_escape_gives_it_back(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        before = len(text(app, "plots").splitlines())
        await pilot.press("enter")
        assert "gpt-wide" not in text(app, "runs")
        assert len(text(app, "plots").splitlines()) > before
        assert "gpt-small  loss" in text(app, "plots")
        await pilot.press("escape")
        assert "gpt-wide" in text(app, "runs")

    driven(fake, play)


def test_the_window_is_narrowed_moved_and_reset_and_no_more_points_come_than_dots(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("plus")
        await until(pilot, lambda: fake.asked[-1].get("from") == ["500"] and "to" not in fake.asked[-1])
        await pilot.press("left")
        await until(pilot, lambda: (fake.asked[-1].get("from"), fake.asked[-1].get("to")) == (["250"], ["750"]))
        assert "500 steps to 750" in text(app, "status")
        await pilot.press("r")
        await until(pilot, lambda: "from" not in fake.asked[-1])
        assert all(int(one["points"][0]) <= 2 * 80 for one in fake.asked)
        assert "steps to" not in text(app, "status")

    driven(fake, play)


def test_a_filter_is_typed_retained_and_ended(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("slash", *"WIDE")
        await pilot.pause()
        assert "gpt-small" not in text(app, "runs")
        assert chosen(app) == "gpt-wide"
        await pilot.press("enter")
        assert app.query_one(FilterLine).display is False
        assert "filter 'WIDE'" in text(app, "status")
        await pilot.press("slash", *"qs")  # letters here, not keys
        await pilot.pause()
        assert "no run matches 'qs'" in text(app, "runs")
        await pilot.press("escape")
        await pilot.pause()
        assert "gpt-small" in text(app, "runs")
        assert app.view.filter == ""

    driven(fake, play)


def test_help_has_every_key_and_any_key_ends_it(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        fake.overview = overview(runs=[run("behind-the-help")])
        await until(pilot, lambda: "behind-the-help" in text(app, "runs"))
        for key in "qxx":
            app.screen.post_message(Key(key, key))
        await until(pilot, lambda: not isinstance(app.screen, Help))
        await pilot.pause()
        assert app.is_running

    driven(fake, play)


def test_c_records_the_chosen_run_once_and_shows_the_summary_which_scrolls(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("c", "c")
        assert "records 10 steps of gpt-small" in text(app, "status")
        fake.recorded = True
        await until(pilot, lambda: isinstance(app.screen, ReportPane))
        assert len(fake.begun) == 1
        scroll = app.screen.query_one(ScrollableContainer)
        await until(pilot, lambda: scroll.max_scroll_y > 10)
        await pilot.press("pagedown")
        await until(pilot, lambda: scroll.scroll_y > 0)
        await pilot.press("escape")
        assert not isinstance(app.screen, ReportPane)
        await until(pilot, lambda: "q quit" in text(app, "status"))

    driven(fake, play)


def test_processes_are_shown_sorted_and_ended_only_after_a_confirmation(fake: Fake) -> None:
    fake.processes = [process(12), process(13, parent=12, command="[b]loader"), process(14, run=None, role="gpu")]

    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("p")
        await until(pilot, lambda: "└ [b]loader" in text(app, "processes"))
        assert "▆" in text(app, "histories")
        assert not text(app, "runs") + text(app, "plots")
        assert len(text(app).strip("\n").splitlines()) <= 24
        await pilot.press("greater_than_sign")
        assert "▲PID" in text(app, "processes")
        await pilot.press("down", "down", "e")
        assert "process 14 is not of a training" in text(app, "status")
        await pilot.press("up", "up", "e")
        assert isinstance(app.screen, Confirmation)
        await pilot.press("enter")
        assert not isinstance(app.screen, Confirmation)
        assert not fake.ended, "only y is yes"
        await pilot.press("e", "y")
        await until(pilot, lambda: "not ended: " in text(app, "status"))
        await pilot.press("e", "y")
        await until(pilot, lambda: "sent SIGTERM to process 12" in text(app, "status"))
        assert fake.ended == [("/api/v1/processes/12/end", {"started": BEGUN})] * 2
        await pilot.click("#processes", offset=(5, 2))
        await until(pilot, lambda: "> 13" in text(app, "processes").replace("      ", ""))
        await pilot.press("slash", *"loader", "enter")
        assert "python train.py" not in text(app, "processes")
        await pilot.press("p")
        await until(pilot, lambda: "RUN" in text(app, "runs"))

    driven(fake, play)


SNAPSHOTS = "trackside-top-*.json"


def test_a_snapshot_is_a_file_with_the_data_and_overwrites_none(fake: Fake, tmp_path: Path) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("s", "s")
        files = sorted(tmp_path.glob(SNAPSHOTS))  # noqa: ASYNC240  a local directory
        assert len(files) == 2
        assert any(f"saved {file}" in text(app, "status").replace("\n", "") for file in files)
        answered = json.loads(files[0].read_text())
        assert answered["overview"] == fake.overview
        assert answered["run"] == "gpt-small-1"
        assert {one["key"] for one in answered["series"]} == {"loss", "tokens"}

    driven(fake, play, size=(200, 24), directory=tmp_path)


def test_a_snapshot_that_cannot_be_written_is_one_line(fake: Fake, tmp_path: Path) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("s")
        assert "not saved: " in text(app, "status")
        assert "no such file or directory" in text(app, "status")

    driven(fake, play, size=(300, 24), directory=tmp_path / "gone")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_q_ends_it(fake: Fake, key: str) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press(key)
        assert not app.is_running

    driven(fake, play)


def test_it_follows_the_terminal_s_size(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        fake.overview = overview(gpus=[gpu(number) for number in range(8)])
        await until(pilot, lambda: " 7 " in text(app, "gpus"))
        for width, height in ((160, 50), (80, 24), (60, 12)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = text(app).splitlines()
            assert {len(line) for line in lines} == {width}
            assert len(lines) == height
        await pilot.resize_terminal(160, 50)
        await until(pilot, lambda: int(fake.asked[-1]["points"][0]) > 80)
        assert "RANKS" in text(app, "runs")

    driven(fake, play, size=(80, 24))


PALETTE = {"critical": 1, "warning": 3, "info": 6, "running": 2}
"""The words that have a colour, and its number in a terminal's palette."""


def colours(app: Top, word: str) -> set[int | None]:
    """Return the numbers of the colours of a word on the screen; None stands for the terminal's default."""
    found = set()
    for pane in app.query(Pane):
        for strip in pane.render_lines(Region(0, 0, *pane.size)):
            for text_, style, _ in strip:
                if style is not None and word in text_:
                    found.add(style.color.number if style.color is not None else None)
    return found


def test_severities_have_colours_of_the_terminal_s_palette(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: all(colours(app, word) for word in PALETTE))
        assert {word: colours(app, word) - {None} for word in PALETTE} == {
            word: {number} for word, number in PALETTE.items()
        }

    driven(fake, play)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "xterm-mono")])
def test_without_colour_severity_is_a_word(fake: Fake, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    async def play(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: all(colours(app, word) for word in PALETTE))
        assert [colours(app, word) for word in PALETTE] == [{None}] * 4
        assert "critical NonFinite" in text(app, "alerts")
        assert "1 critical +1" in text(app, "runs")

    driven(fake, play)


def test_names_are_text_without_control_sequences(fake: Fake) -> None:
    fake.overview = overview(
        runs=[run("[red]x[/]"), run("a\x1b[31mb\nc"), run("損失")],
        alerts=[alert("critical", "Own", summary="[bold]\x07 it\tis", run="[@click=app.bell]y[/]")],
    )

    async def play(pilot: Pilot[None], app: Top) -> None:
        screen = text(app)
        for answered in ("[red]x[/]", r"a\x1b[31mb\nc", "損失", r"[@click=app.bell]y[/]: [bold]\x07 it\tis"):
            assert answered in screen
        assert len(screen.splitlines()) == 24
        assert 1 not in colours(app, "[red]x[/]")

    driven(fake, play)


def test_a_daemon_that_is_gone_is_one_line_and_its_last_data_stay(fake: Fake) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        fake.overview = None
        await until(pilot, lambda: "no answer since" in text(app, "status"))
        assert "retrying: " in text(app, "status")
        assert "gpt-small" in text(app, "runs")
        fake.token = "another"
        await until(pilot, lambda: "a token is needed" in text(app, "status"))
        fake.token = "secret"
        fake.overview = overview(runs=[run("back-again")])
        await until(pilot, lambda: "back-again" in text(app, "runs"))
        assert "no answer" not in text(app, "status")

    driven(fake, play, size=(160, 24))


def test_another_daemon_does_not_replace_one_that_is_gone(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACKSIDE_ENDPOINT", raising=False)
    places = [tmp_path / name / "push.sock" for name in ("first", "second")]
    monkeypatch.setattr(daemon_lookup, "_sockets", lambda _: places)
    with serving(Fake()) as other:
        for place, one in zip(places, (fake, other), strict=True):
            place.parent.mkdir()
            note(place, one)
        asked = ReconnectingDaemon("")
        assert asked.overview() == fake.overview
        fake.token = "gone"
        other.overview = overview(runs=[run("of-another")])
        with pytest.raises(UnansweredError, match="a token is needed"):
            asked.overview()
        with pytest.raises(UnansweredError) as reported:
            asked.overview()
        url = other.url.partition("/#")[0]
        file = places[0].with_suffix(".address")
        assert str(reported.value) == f"the daemon of {file} does not answer, but another does, at {url} (see --url)"
        with serving(Fake()) as restarted:
            note(places[0], restarted)
            assert asked.overview() == restarted.overview


def note(socket: Path, fake: Fake) -> None:
    """Write the files that a daemon puts next to its socket."""
    address, _, token = fake.url.partition("/#token=")
    socket.with_suffix(".address").write_text(address)
    socket.with_suffix(".token").write_text(token)
    socket.with_suffix(".token").chmod(0o600)


class Late:
    """A daemon that is not there at first."""

    def __init__(self) -> None:
        self.there = False

    def overview(self) -> dict[str, Any]:
        if not self.there:
            raise UnansweredError("nobody is there")
        return overview()

    def series(self, asked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        assert asked
        return []

    def machine(self, asked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        raise AssertionError(asked)

    def processes(self) -> list[dict[str, Any]]:
        raise AssertionError

    def end(self, pid: int, started: float) -> None:
        raise AssertionError(pid, started)

    def record(self, run: str) -> list[str]:
        return [run]


def test_the_poller_polls_on_demand_and_finds_a_daemon_that_starts_later() -> None:
    daemon, answers = Late(), SimpleQueue[PollResult]()
    poller = Poller(daemon, View(), answers.put, 3600.0)
    poller.start()
    assert answers.get(timeout=DEADLINE).error == "nobody is there"
    daemon.there = True
    poller.poll_now()
    answered = answers.get(timeout=DEADLINE).data
    assert answered is not None
    assert answered.overview == overview()
    poller.stop()
