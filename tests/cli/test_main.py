"""The command line as a process: its output, and its end if it cannot start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
from processes import DEADLINE, ROOT, clean_environ, command, eventually, http, run_here

from trackside_daemon import __version__
from trackside_daemon.cli.commands.daemon import GROUPS, USUAL
from trackside_daemon.history.database import Database
from trackside_daemon.history.schema import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processes import Daemon


NEEDS_KEYS = (
    "tcp://0.0.0.0:1: other machines reach it, so clients need keys: make them with `trackside keys DIR` and start with"
    " --push.keys=DIR"
)
NEEDS_PORT = (
    "--push.keys is for TCP clients, but there is no TCP endpoint; add one, such as --push.endpoint=tcp://0.0.0.0:21791"
)
NO_PROCFS = "path.procfs: /no/such is no procfs: it does not exist; set it to where the host's /proc is mounted"
NEEDS_GROUP = (
    "--push.group: there is no group nobody-has-this; make it with: groupadd --system nobody-has-this, or name another"
)


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command until it exits."""
    return processes.run(command(*arguments), env=clean_environ({"COLUMNS": "80", **(environ or {})}))


def flags_of(place: Path) -> list[str]:
    """Return the flags of a daemon whose files are all in one directory."""
    (place / "history").mkdir(exist_ok=True)
    return [
        f"--push.endpoint=ipc://{place}/push.sock",
        "--web.listen-address=127.0.0.1:0",
        f"--storage.path={place}/history",
    ]


def refusal(place: Path, *flags: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the only line of a daemon that cannot start; its exit status is 2."""
    ended = run("daemon", *flags_of(place), "--no-collector.gpu", *flags, environ=environ)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("trackside: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.removeprefix("trackside: ").rstrip("\n")


def commands() -> list[str]:
    return re.findall(r"^  ([a-z][a-z-]+)  ", run_here("--help").stdout, re.MULTILINE)


def test_it_prints_its_version() -> None:
    ended = run_here("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"trackside {__version__}\n", "")


def test_no_line_of_the_list_of_commands_is_cut_off() -> None:
    assert not re.search(r"[^\]]\.\.\.$", run_here("--help").stdout, re.MULTILINE)


def test_the_list_of_commands_has_groups_in_columns_of_one_width() -> None:
    _, *parts = re.split(r"^(\w+):\n", run_here("--help").stdout, flags=re.MULTILINE)
    assert parts[::2] == ["Options", "Run", "Look", "Explain", "Keep", "Notify", "Administer"]
    widths = {
        len(line) - len(re.sub(r"^  \S+ +", "", line)) for part in parts[3::2] for line in part.split("\n") if line
    }
    assert len(widths) == 1


def test_every_command_has_help_with_an_example_that_can_be_copied() -> None:
    names = commands()
    assert {"daemon", "demo", "check-config"} <= set(names)
    for name in names:
        ended = run_here(name, "--help", environ={"COLUMNS": "80"})
        assert ended.returncode == 0
        example = re.search(rf"^  Example: (trackside {name}\b.*)$", ended.stdout, re.MULTILINE)
        assert example is not None, ended.stdout
        known = set(re.findall(r"--[\w.-]+", ended.stdout.replace(example[0], "")))
        assert set(re.findall(r"--[\w.-]+", example[1])) <= known


def test_the_help_of_the_daemon_has_the_usual_options_in_groups_and_help_all_has_those_of_every_collector() -> None:
    usual, whole = (run_here("daemon", flag, environ={"COLUMNS": "80"}).stdout for flag in ("--help", "--help-all"))
    options = [set(re.findall(r"^  (--[a-z.-]+)", text, re.MULTILINE)) for text in (usual, whole)]
    groups = [re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE) for text in (usual, whole)]
    assert groups[0] == groups[1] == ["Options", *dict.fromkeys(GROUPS.values())]
    assert 20 <= len(options[0]) <= 25
    assert {
        "--config.file",
        "--require-gpu",
        *(f"--{name}" for name in USUAL if not name.endswith(".enabled")),
    } <= options[0]
    assert options[0] < options[1]
    assert {"--collector.cpu", "--path.procfs", "--capture.kineto", "--storage.synchronous"} <= options[1] - options[0]


def test_without_a_command_it_shows_what_there_is() -> None:
    ended = run_here()
    assert ended.returncode == 2
    assert "Usage: trackside" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["daemon", "--sample.intervall=1s"], "--sample.interval"),
        (["daemon", "--collector.gpu.skipp=x"], "--collector.gpu.skip"),
        (["daemon", "--alerts.sinks.webhook.url=x"], "or by $TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL"),
        (["daemon", "--storage.path"], "requires an argument."),
        (["deamon"], "daemon"),
        (["daemon", "now"], "now"),
    ],
)
def test_wrong_usage_names_what_was_perhaps_meant(arguments: list[str], message: str) -> None:
    ended = run_here(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (["--sample.interval=soon"], {}, "--sample.interval: 'soon' is not a duration such as 1s, 500ms or 1h30m"),
        (
            ["--config.file=/no/such.yml"],
            {},
            "/no/such.yml: no such file or directory; give a YAML file with --config.file",
        ),
        ([], {"TRACKSIDE_RUN__LINGER": "x"}, "TRACKSIDE_RUN__LINGER: 'x' is not a duration such as 1s, 500ms or 1h30m"),
        (
            ["--web.listen-address=nowhere"],
            {},
            "web.listen-address: 'nowhere' is not HOST:PORT, such as 127.0.0.1:21790",
        ),
        (
            ["--push.endpoint=tcp://0.0.0.0:1"],
            {},
            NEEDS_KEYS,
        ),
        (["--push.keys=/no/such"], {}, NEEDS_PORT),
        (
            ["--push.endpoint=tcp://127.0.0.1:0", "--push.keys=/no/such"],
            {},
            "--push.keys: /no/such/daemon.key: no such file or directory; make it with: trackside keys /no/such",
        ),
        (["--push.group=nobody-has-this"], {}, NEEDS_GROUP),
        (["--path.procfs=/no/such"], {}, NO_PROCFS),
        ([], {"TRACKSIDE_PATH__ROOTFS": ""}, "TRACKSIDE_PATH__ROOTFS: '' is not an absolute path, such as /data"),
    ],
)
def test_a_wrong_setting_is_one_line(place: Path, flags: list[str], environ: dict[str, str], message: str) -> None:
    assert refusal(place, *flags, environ=environ) == message


def test_a_wrong_file_is_one_line(place: Path) -> None:
    (place / "t.yml").write_text("sample: {intervall: 1s}\n")
    expected = f"{place}/t.yml: sample.intervall: no such setting; did you mean sample.interval?"
    assert refusal(place, f"--config.file={place}/t.yml") == expected


def test_a_port_in_use_is_one_line_and_no_socket_is_left_for_clients_to_wait_at(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        message = refusal(place, f"--web.listen-address=127.0.0.1:{other.getsockname()[1]}")
    assert f"is in use by {Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()}); stop it, or use" in message
    assert not (place / "push.sock").exists()


def test_a_directory_that_cannot_be_written_is_one_line(place: Path) -> None:
    (place / "file").write_text("")
    message = refusal(place, f"--push.endpoint=ipc://{place}/file/push.sock")
    assert message.startswith(f"{place}/file/push.sock.lock: not a directory; make its directory writable for uid ")


def test_a_token_that_cannot_be_written_is_one_line_and_no_socket_is_left(place: Path) -> None:
    (place / "push.token").mkdir()
    assert (
        refusal(place)
        == f"{place}/push.token: is a directory; the daemon stores the API's token there, next to the socket"
    )
    assert not (place / "push.sock").exists()


def test_a_second_daemon_on_a_socket_is_one_line_and_the_first_continues(daemon: Daemon) -> None:
    message = refusal(daemon.directory)
    assert message.startswith(f"{daemon.endpoint.removeprefix('ipc://')}: another trackside daemon listens there (pid ")
    assert f"(pid {daemon.process.pid})" in message
    assert daemon.get("/-/ready").status_code == 200
    assert daemon.api("runs").status_code == 200, "its token is still there"


def no_directory(place: Path) -> tuple[str, str]:
    return f"{place}/a/b", f"{place}/a/b: no such directory; make it with mkdir -p {place}/a/b, or name another with"


def a_file(place: Path) -> tuple[str, str]:
    (place / "file").write_text("")
    return f"{place}/file", f"{place}/file is not a directory; name one with"


def below_a_file(place: Path) -> tuple[str, str]:
    (place / "file").write_text("")
    return f"{place}/file/more", f"{place}/file/more: not a directory; name another directory with"


@pytest.mark.parametrize("option", ["--storage.path", "--storage.jsonl"])
@pytest.mark.parametrize("make", [no_directory, a_file, below_a_file])
def test_a_place_that_nothing_can_be_written_to_is_one_line(
    place: Path, option: str, make: Callable[[Path], tuple[str, str]]
) -> None:
    path, message = make(place)
    assert refusal(place, f"{option}={path}") == f"{message} {option}=DIR"
    assert not (place / "push.sock").exists()
    (place / "t.yml").write_text(f"{option.strip('-')}: {path}\n")
    assert run_here("check-config", str(place / "t.yml")).stderr == f"trackside: {message} {option}=DIR\n"


def test_a_missing_directory_is_made_when_its_parent_exists(start_daemon: Callable[..., Daemon], place: Path) -> None:
    (place / "t.yml").write_text(f"storage.path: {place}/new\nstorage.jsonl: {place}/lines\n")
    ended = run_here("check-config", str(place / "t.yml"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")
    assert not (place / "new").exists()
    start_daemon(f"--storage.path={place}/new", f"--storage.jsonl={place}/lines", "--no-collector.gpu")
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in ("new", "lines")] == [0o700] * 2


def test_a_second_daemon_on_a_history_is_one_line_and_the_first_continues(daemon: Daemon, tmp_path: Path) -> None:
    message = refusal(tmp_path, f"--storage.path={daemon.history}")
    assert message.startswith(f"{daemon.history}: another trackside process writes its history there ")
    assert f"(pid {daemon.process.pid})" in message
    assert message.endswith("give this daemon another directory with --storage.path=DIR")
    assert daemon.api("runs").status_code == 200


def test_a_history_of_a_newer_trackside_is_one_line_and_stays_as_it_is(place: Path) -> None:
    (place / "history").mkdir()
    file = place / "history" / "history.db"
    newer = [*MIGRATIONS, ("of the future", ["CREATE TABLE future (id INTEGER PRIMARY KEY)"])]
    Database(place / "history", migrations=newer).close()
    message = refusal(place)
    assert message.startswith(f"{file}: written by a newer trackside (schema {len(newer)}, this one supports ")
    assert message.endswith("install that one, or name another directory with --storage.path")
    assert {one.name for one in file.parent.iterdir()} == {"history.db", "history.lock"}, "it is not set aside"
    Database(place / "history", migrations=newer).close()


def test_a_file_that_is_no_history_is_set_aside_and_a_new_one_begins(
    start_daemon: Callable[..., Daemon], place: Path
) -> None:
    (place / "history").mkdir()
    (place / "history" / "history.db").write_text("no database at all\n" * 1000)
    daemon = start_daemon("--no-collector.gpu")
    assert daemon.api("runs").json()["runs"] == []
    (aside,) = (place / "history").glob("history.db.damaged-*")
    assert aside.read_text().startswith("no database")
    assert any(aside.name in line and "level=error" in line for line in daemon.log)


def test_requiring_a_gpu_where_there_is_none_is_one_line(place: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver")
    assert refusal(place, "--require-gpu") == ("--require-gpu: libnvidia-ml.so.1 not found; install the NVIDIA driver")
    assert sorted(one.name for one in place.iterdir()) == ["history", "push.kineto", "push.sock.lock"]


def test_a_command_that_waits_for_a_gpu_can_be_stopped(place: Path) -> None:
    (place / "pynvml.py").write_text("import time\ntime.sleep(1000)\n")
    environ = clean_environ({"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])})
    flags = [*flags_of(place), "--require-gpu"]
    with subprocess.Popen(command("daemon", *flags), env=environ, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        eventually(children.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_link_to_the_dashboard_is_printed_again(daemon: Daemon) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    done = processes.run(command("open"), env=environ)
    address, _, token = done.stdout.rstrip("\n").partition("/#token=")
    assert (done.returncode, done.stderr, address) == (0, "", daemon.url)
    assert http.get(f"{daemon.url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_a_file_is_checked_and_its_settings_are_shown(place: Path) -> None:
    (place / "t.yml").write_text("sample: {interval: 500ms}\nweb: {allowed-hosts: [a, b], public-read: true}\n")
    ended = run_here("check-config", "--settings", str(place / "t.yml"))
    assert (ended.returncode, ended.stderr) == (0, "")
    shown = ended.stdout.splitlines()
    for line in ("sample.interval: 0.5", "web.allowed-hosts: a, b", "web.public-read: true", "run.linger: 60.0"):
        assert line in shown


@pytest.mark.parametrize(("text", "message"), [("smaple: {}", "did you mean sample?"), ("a: [", "not YAML: line 1")])
def test_what_is_wrong_with_a_file_is_one_line(place: Path, text: str, message: str) -> None:
    (place / "t.yml").write_text(text)
    ended = run_here("check-config", str(place / "t.yml"))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert message in ended.stderr


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_every_line_of_the_log_is_in_the_format_that_was_asked_for(
    start_daemon: Callable[..., Daemon], style: str
) -> None:
    environ = {"TRACKSIDE_SAMPLE_INTERVAL": "1s", "TRACKSIDE_TAGS": "a", "TRACKSIDE_ENDPOINT": "tcp://10.0.0.9:1"}
    daemon = start_daemon(f"--log.format={style}", "--log.level=debug", environ=environ)
    with socket.create_connection(("127.0.0.1", int(daemon.url.rpartition(":")[2]))) as rude:
        rude.sendall(b"nonsense\r\n\r\n")
        rude.recv(1000)
    assert daemon.stop() == 0
    if style == "json":
        messages = [json.loads(line)["msg"] for line in daemon.log]
    else:
        found = [re.fullmatch(r"time=\S+Z level=\w+ msg=(.*)\n", line) for line in daemon.log]
        assert all(found), daemon.log
        messages = [one[1].strip('"') for one in found if one is not None]
    assert f"trackside {__version__} serves {daemon.url}" in " ".join(messages)
    assert "stopping on SIGTERM" in messages
    (elsewhere,) = [one for one in messages if "does not listen" in one]
    assert elsewhere.endswith("start it with --push.endpoint=tcp://10.0.0.9:1")
    assert [one for one in messages if one.startswith("TRACKSIDE_")] == [
        "TRACKSIDE_SAMPLE_INTERVAL is not a setting and is ignored; did you mean TRACKSIDE_SAMPLE__INTERVAL?"
    ]


def test_on_a_terminal_it_prints_a_link_that_opens_the_dashboard(place: Path) -> None:
    ours, theirs = os.openpty()
    flags = [*flags_of(place), "--no-collector.gpu"]
    with processes.start(
        command("daemon", *flags), env=clean_environ(), stdout=theirs, stderr=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        with os.fdopen(ours) as terminal:
            found = re.fullmatch(r"dashboard: (http://127\.0\.0\.1:\d+)/#token=(\S+)", terminal.readline().strip())
            assert found is not None
            answer = http.get(f"{found[1]}/api/v1/status", headers={"Authorization": f"Bearer {found[2]}"})
            assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0


def test_the_readme_shows_no_command_that_fails_to_parse() -> None:
    shown = re.findall(r"^trackside (check-config|daemon)\b(.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    for name, flags in shown:
        assert run_here(name, *flags.split("#")[0].split(), "--help").returncode == 0
