"""`trackside top` in a real terminal, tmux, with a real daemon and a training that pushes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT, clean_environ, command, eventually, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from processes import Daemon

TRAINING = """
import itertools, select, sys, time, trackside
run = trackside.init("[red]net[/]", total_steps=1_000_000)
for step in itertools.count(1):
    told = select.select([sys.stdin], [], [], 0.02)[0]
    run.push(step=step, loss=float("nan") if told else 0.625, tokens=512)
    if told:
        sys.stdin.readline()
"""


FIXED = re.compile(r"\x1b\[(?:\d+;)*(?:30|37|38|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
"""Black, white, a background, or a colour of no palette: some terminal has text of this colour on a ground of this colour."""


class Terminal:
    """A command in tmux.

    Args:
        directory: The directory for tmux's socket, and the command's working directory.
        environ: The command's environment.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str], *arguments: str) -> None:
        self._socket = str(directory / "tmux")
        self._environ = {**environ, "TERM": "xterm-256color"}
        script = f"{shlex.join(arguments)}; echo ended with $?; exec sleep 1h"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(directory), script)

    def shows(self, pattern: str) -> re.Match[str] | None:
        """Return the match of a pattern on the screen."""
        return re.search(pattern, self.screen(), re.MULTILINE)

    def screen(self, *flags: str) -> str:
        """Return the text on the screen."""
        return self._tmux("capture-pane", "-p", *flags)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def end(self) -> None:
        """Kill the tmux server."""
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self._environ,
            check=True,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=DEADLINE,
        ).stdout


@pytest.fixture
def terminal(place: Path) -> Iterator[Callable[..., Terminal]]:
    """A function that starts `trackside top` for the daemon of this directory."""
    started: list[Terminal] = []

    def start(daemon: Daemon, **environ: str) -> Terminal:
        here = {
            "TRACKSIDE_ENDPOINT": daemon.endpoint,
            "XDG_RUNTIME_DIR": "/nowhere",
            "PYTHONPATH": f"{ROOT / 'client'}:{ROOT / 'daemon'}",
            "LC_ALL": "C.UTF-8",
        }
        started.append(Terminal(place, clean_environ({**here, **environ}), *command("top", "--interval=200ms")))
        return started[-1]

    yield start
    for one in started:
        sys.stdout.write(one.screen("-e"))  # what was seen last, should the test have failed
        one.end()


def step(terminal: Terminal) -> int:
    """Return the step in the list of runs; 0 while there is none."""
    found = terminal.shows(r"^> \[red\]net\[/\] +running +(\d+) ")
    return int(found[1]) if found else 0


def test_a_training_is_watched_through_its_trouble_and_a_restart_of_the_daemon(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., subprocess.Popen[str]],
    terminal: Callable[..., Terminal],
    place: Path,
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=2")
    training = start_training(daemon, "-c", TRAINING)
    top = terminal(daemon)
    eventually(lambda: top.shows(r"^> \[red\]net\[/\] .* 0\.625 "))
    eventually(lambda: top.shows(r"^\[red\]net\[/\] +loss 0\.625 +tokens/s [\d.]+"))
    assert top.shows(r"^ ?0 [█░]+ +\d+ % ")
    seen = step(top)
    eventually(lambda: step(top) > seen)

    assert training.stdin is not None
    training.stdin.write("\n")
    training.stdin.flush()
    eventually(lambda: re.search(r"\x1b\[([\d;]+;)?31m(\x1b\[[\d;]+m)*critical", top.screen("-e")))  # bold or not

    top.press("s")
    eventually(lambda: top.shows(r"^saved .*trackside-top-"))
    (file,) = place.glob("trackside-top-*.json")
    assert json.loads(file.read_text())["overview"]["runs"][0]["name"] == "[red]net[/]"

    top.press("?")
    eventually(lambda: top.shows(r"^.*│ q +quit"))
    assert FIXED.findall(top.screen("-e")) == []
    top.press("x", "x", "x")
    eventually(lambda: not top.shows(r"│ q +quit"))
    top.press("/")
    eventually(lambda: top.shows(r"^part of a run's name"))
    top.press("e")
    eventually(lambda: top.shows(r"^e *$"))
    assert FIXED.findall(top.screen("-e")) == []
    top.press("Escape")

    top.resize(130, 40)
    eventually(lambda: top.shows(r"^  RUN .* RANKS .* ALERTS"))
    top.resize(80, 24)
    eventually(lambda: top.shows(r"^  RUN .* ALERTS") and not top.shows("RANKS"))

    daemon.stop()
    eventually(lambda: top.shows(r"^no answer since \d\d:\d\d:\d\d, retrying: "))
    assert step(top)
    start_daemon("--collector.gpu.simulate=2")
    eventually(lambda: top.shows(r"^q quit "))  # the daemon answers again, and the line is what it was
    seen = step(top)
    eventually(lambda: step(top) > seen)

    top.press("q")
    eventually(lambda: top.shows(r"^ended with 0$"))
    assert "Traceback" not in top.screen()


def test_one_frame_of_a_real_daemon_is_text(
    daemon: Daemon, start_training: Callable[..., subprocess.Popen[str]]
) -> None:
    start_training(daemon, "-c", TRAINING)

    def frame() -> str:
        environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "COLUMNS": "80"})
        done = run(command("top", "--once"), env=environ, encoding="utf-8")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    eventually(lambda: re.search(r"^> \[red\]net\[/\] +running +\d+ .* 0\.625 ", frame(), re.MULTILINE))
    printed = frame()
    assert max(map(len, printed.splitlines())) <= 80
    assert {one for one in printed if not one.isprintable()} == {"\n"}
