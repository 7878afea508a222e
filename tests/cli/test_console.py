"""The output that `trackside run --console` keeps: through a terminal or a pipe, bounded and without secrets."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from processes import clean_environ, run, start

from trackside_daemon.cli.run.console import HEADER, Backlog, keep
from trackside_daemon.history.console import lines
from trackside_daemon.history.console.files import ConsoleWriter, read, sweep
from trackside_daemon.history.console.lines import ColouredPart, Redactor, colored_parts, plain, select, split

if TYPE_CHECKING:
    from pathlib import Path

LAUNCH = "0123456789abcdef"
COPIED = """
import sys, time
from pathlib import Path
from trackside_daemon.cli.run.console import ConsoleCopy
from trackside_daemon.linux.child_process import Command
console = ConsoleCopy(Path(sys.argv[1]), sys.argv[2])
command = Command(["sh", "-c", sys.argv[3]], {}, console.streams)
console.start()
while command.status is None:
    time.sleep(0.005)
command.reap()
console.stop()
"""
SHOWS = "test -t 1 && test -t 2 && echo terminal; stty size <&1; echo error >&2; printf 'HF_TOKEN=hf_%s\\n' 0123456789012345678901234"


def test_a_terminal_stays_a_terminal_and_the_files_have_no_secret(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    script = [sys.executable, "-c", COPIED, str(tmp_path), LAUNCH, SHOWS]
    process = start(script, env=clean_environ(), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # EIO, at the end
        while data := os.read(ours, 4096):
            printed += data
    os.close(ours)
    assert process.wait() == 0
    assert printed.replace(b"\r\n", b"\n") == b"terminal\n33 77\nerror\nHF_TOKEN=hf_0123456789012345678901234\n"
    assert read(tmp_path, LAUNCH) == b"terminal\n33 77\nerror\nHF_TOKEN=[redacted]\n"


def test_files_stay_apart_and_a_reader_that_is_gone_ends_the_command(tmp_path: Path) -> None:
    script = [sys.executable, "-c", COPIED, str(tmp_path), LAUNCH, "test -t 1 || echo pipe; echo error >&2; yes"]
    with start(script, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"pipe\n"
        process.stdout.close()
        assert process.stderr.read() == b"error\n"
    assert process.returncode == 0
    assert {b"pipe", b"error", b"y"} == {*read(tmp_path, LAUNCH).splitlines()}


def test_a_command_never_waits_for_stored_output_and_dropped_output_is_counted(tmp_path: Path) -> None:
    """A stopped keeper reads nothing while the command prints 12 MiB, of which the newest 10 MiB wait."""
    stopped = COPIED.replace("console.start()", "pid = console._keeper._process.pid; os.kill(pid, 19); console.start()")
    stopped = stopped.replace("console.stop()", "os.kill(pid, 18); console.stop()")
    prints = f"yes 'one more line of the output' | head -c {12 << 20}; echo the end"
    script = [sys.executable, "-c", f"import os\n{stopped}", str(tmp_path), LAUNCH, prints]
    printed = run(script, check=True).stdout
    assert len(printed) == (12 << 20) + len("the end\n")
    kept = read(tmp_path, LAUNCH)
    (line,) = [line for line in kept.splitlines() if line.endswith(b"bytes of output were not kept]")]
    dropped = int(line[1:].split()[0].replace(b",", b""))
    assert 1 << 20 < dropped <= 3 << 20
    assert kept.endswith(b"the end\n")


def test_the_oldest_output_is_dropped_and_counted_by_stream() -> None:
    backlog = Backlog(10)
    for stream, data in ((1, b"aaaa"), (2, b"bbbb"), (1, b"cccc"), (2, b"dd")):
        backlog.put(stream, data)
    backlog.end()
    backlog.put(1, b"late")
    left = [(stream, dropped, bytes(data)) for stream, dropped, data in iter(backlog.get, None)]
    assert left == [(2, 0, b"bbbb"), (1, 4, b"cccc"), (2, 0, b"dd")]


def test_a_line_reports_how_much_was_dropped(tmp_path: Path) -> None:
    frames = [(1, 0, b"a\nstep"), (2, 0, b"x\n"), (1, 1234, b"9\nb\n"), (2, 0, b"y")]
    written = b"".join(HEADER.pack(stream, dropped, len(data)) + data for stream, dropped, data in frames)
    writer = ConsoleWriter(tmp_path, LAUNCH)
    keep(BytesIO(written + b"torn"), writer)
    writer.close()
    assert read(tmp_path, LAUNCH) == b"a\nx\nstep\n[1,234 bytes of output were not kept]\n9\nb\ny"


def test_a_full_disk_is_reported_and_the_command_continues(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("no directory")
    script = [sys.executable, "-c", COPIED, str(tmp_path), LAUNCH, "echo printed"]
    ended = run(script, check=True)
    assert ended.stdout == "printed\n"
    assert ended.stderr == "trackside: --console: the output is not kept whole: file exists\n"


def test_the_newest_output_is_retained(tmp_path: Path) -> None:
    writer = ConsoleWriter(tmp_path, LAUNCH, segment_bytes=100, kept_bytes=1000)
    whole = b"".join(b"line %04d\n" % number for number in range(1000))
    for begin in range(0, len(whole), 10):
        writer.write(whole[begin : begin + 10])
    writer.close()
    assert read(tmp_path, LAUNCH, 1000) == whole[-1000:]
    assert sum(path.stat().st_size for path in (tmp_path / "console").iterdir()) <= 1200
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "console").iterdir()} == {0o600}
    assert read(tmp_path, "../../etc/passwd") == read(tmp_path, "*") == b""
    sweep(tmp_path, {LAUNCH}, 9e9)
    assert read(tmp_path, LAUNCH)
    sweep(tmp_path, set(), 9e9)
    assert read(tmp_path, LAUNCH) == b""


def test_lines_are_what_a_terminal_shows() -> None:
    printed = b"\x1b[32mgreen\x1b[0m\r\n10%\r20%\rdone\n\x1b]0;title\x07\x08a\xff\nlast"
    assert list(map(plain, split(printed))) == [
        "green",
        "done",
        "a\ufffd",
        "last",
    ]
    assert split(b"") == []
    texts = [f"step {number}" for number in range(1, 101)]
    assert select(texts, 2) == ([(99, "step 99"), (100, "step 100")], 100, True)
    assert select(texts, 2, before=3) == ([(1, "step 1"), (2, "step 2")], 100, False)
    assert select(texts, 9, search="STEP 10") == ([(10, "step 10"), (100, "step 100")], 100, False)


@pytest.mark.parametrize(
    ("printed", "parts"),
    [
        ("plain", []),
        ("a\x1b[31mred\x1b[0m", [(1, 4, "red")]),
        ("\x1b[1;92mok\x1b[22mgo\x1b[m.", [(0, 2, "green bold"), (2, 4, "green")]),
        ("\x1b[38;5;3mlow\x1b[38;5;200mhigh\x1b[38;2;1;1;1mmany\x1b[48;5;1mback", [(0, 3, "yellow")]),
        ("\x1b[36ma\x08\x00b\x1b[39mc\x1b[38;5m\x1b[38m\x1b[;m\x1b[31", [(0, 2, "cyan")]),
        ("\x1b[34m" + "é" * 5000, [(0, lines.LINE, "blue")]),
    ],
)
def test_colours_are_parts_of_the_plain_line(printed: str, parts: list[tuple[int, int, str]]) -> None:
    (line,) = split(printed.encode())
    assert colored_parts(line) == [ColouredPart(*part) for part in parts]
    assert all(end <= len(plain(line)) for _, end, _ in parts)
    assert "\x1b" not in plain(line)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_secret_is_removed_however_the_output_is_cut(size: int) -> None:
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----\n"
    whole = b"a\r\nb\rAPI_KEY=0123456789abcdef\xff\n" + key + b"\x1b[31mpassword\x1b[0m:\nhunter4\nc password=hunter2"
    redactor = Redactor()
    pieces = [redactor.feed(whole[start : start + size]) for start in range(0, len(whole), size)]
    printed = b"".join([*pieces, redactor.feed(b"", end=True)])
    assert re.sub(rb"\x1b\[\d*m", b"", printed).split(b"\n") == [
        b"a\r",
        b"b\rAPI_KEY=[redacted]",
        b"[redacted]",
        b"password:",
        b"[redacted]",
        b"c password=[redacted]",
    ]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_private_key_without_an_end_costs_no_more_than_the_lines_that_may_be_its_own(size: int) -> None:
    body = b"".join(b"%064d\n" % number for number in range(20))
    whole = b"a\n-----BEGIN RSA PRIVATE KEY-----\n" + body + b"step 1 of 10\n" + b"b\n" * 50_000
    redactor = Redactor()
    pieces = [redactor.feed(whole[start : start + size]) for start in range(0, len(whole), size)]
    assert b"".join([*pieces, redactor.feed(b"", end=True)]) == b"a\n[redacted]\nstep 1 of 10\n" + b"b\n" * 50_000


def test_a_line_without_an_end_is_stored_in_pieces() -> None:
    redactor = Redactor()
    assert len(b"".join(redactor.feed(b"x" * 1000) for _ in range(100))) > 100_000 - 4 * lines.LINE
