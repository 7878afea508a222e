"""`trackside top --once`, as scripts and `watch` start it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import processes
import pytest
from processes import DEADLINE, clean_environ, command
from terminal.fake import overview, run

if TYPE_CHECKING:
    from terminal.fake import Fake


def once(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run the command without a terminal; return its status and output."""
    done = processes.run(
        command("top", *arguments),
        env=clean_environ({"TRACKSIDE_ENDPOINT": "ipc:///nowhere/push.sock", "XDG_RUNTIME_DIR": "/nowhere", **environ}),
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
    )
    return done.returncode, done.stdout, done.stderr


def on_terminal(*arguments: str, status: int = 0, **environ: str) -> str:
    """Return the output of the command on a terminal, error messages included."""
    ours, theirs = pty.openpty()
    process = processes.start(
        command("top", *arguments), env=clean_environ(environ), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    assert process.wait(DEADLINE) == status
    return written.decode()


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_frame_is_text_as_wide_as_columns(fake: Fake, columns: int) -> None:
    fake.overview = overview(runs=[run(f"run-{number}") for number in range(40)])
    status, printed, complaints = once("--once", f"--url={fake.url}", COLUMNS=str(columns))
    assert (status, complaints) == (0, "")
    lines = printed.splitlines()
    assert columns - 4 < max(map(len, lines)) <= columns
    assert "\x1b" not in printed
    assert all(f"run-{number} " in printed for number in range(40)), "without a height there is room for all"
    assert "critical NonFinite" in printed
    assert int(fake.asked[-1]["points"][0]) <= 2 * columns


def test_it_is_no_higher_than_lines(fake: Fake) -> None:
    fake.overview = overview(runs=[run(f"run-{number}") for number in range(40)])
    _, printed, _ = once("--once", f"--url={fake.url}", COLUMNS="80", LINES="24")
    assert len(printed.splitlines()) == 23


def test_only_a_terminal_that_wants_it_gets_colour(fake: Fake) -> None:
    asked = ("--once", f"--url={fake.url}")
    assert "\x1b[1;31mcritical" in on_terminal(*asked, TERM="xterm")
    assert "\x1b" not in on_terminal(*asked, TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in on_terminal(*asked, TERM="dumb")


def test_a_terminal_without_a_screen_gets_a_remedy() -> None:
    reported = (
        "trackside: this terminal ($TERM) cannot draw a screen; --once prints one frame, for example with watch\r\n"
    )
    assert on_terminal(TERM="dumb", status=2) == reported


def test_letters_that_an_encoding_has_not_are_escaped(fake: Fake) -> None:
    status, printed, complaints = once("--once", f"--url={fake.url}", PYTHONIOENCODING="ascii")
    assert (status, complaints) == (0, "")
    assert "gpt-small" in printed
    assert printed.isascii()


def test_no_daemon_is_one_line_and_status_2() -> None:
    unused = "http://127.0.0.1:9"
    reported = f"trackside: {unused}: the daemon does not answer: connection refused\n"
    assert once("--once", f"--url={unused}") == (2, "", reported)
    reported = "trackside: no daemon answers here; start one with trackside daemon, or give another with --url=URL\n"
    assert once("--once") == (2, "", reported)


def test_a_wrong_token_is_one_line_and_status_2(fake: Fake) -> None:
    fake.token = "another"
    status, printed, complaints = once("--once", f"--url={fake.url}")
    assert (status, printed) == (2, "")
    assert complaints.count("\n") == 1
    assert complaints.endswith("--url also accepts the link that the daemon prints, with #token=…\n")


@pytest.mark.parametrize(
    ("arguments", "environ", "reported"),
    [
        ((), {}, "top needs a terminal; without one, use --once"),
        (("--interval=never",), {}, "--interval: 'never' is not a duration from 100ms to 1h, such as 1s"),
        (("--interval=0s",), {}, "--interval: '0s' is not a duration from 100ms to 1h, such as 1s"),
    ],
)
def test_invalid_options_are_one_line(arguments: tuple[str, ...], environ: dict[str, str], reported: str) -> None:
    assert once(*arguments, **environ) == (2, "", f"trackside: {reported}\n")


def test_an_overview_of_another_version_is_one_line(fake: Fake) -> None:
    fake.overview = {"runs": {}}
    status, printed, complaints = once("--once", f"--url={fake.url}")
    assert (status, printed) == (2, "")
    assert complaints == "trackside: the daemon's overview has no runs: the daemon is of another version\n"


def test_other_commands_do_not_load_textual() -> None:
    code = (
        "import sys; from trackside_daemon import cli; "
        "sys.exit('textual' in sys.modules or any('.terminal' in one for one in sys.modules if 'trackside' in one))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)
    code = "import sys; from trackside_daemon.terminal import once; sys.exit('textual' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)
