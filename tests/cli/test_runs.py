"""The history's commands as processes: without a daemon, and with one that answers at its routes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import processes
import pytest
from bridges.directories import events, file_name
from histories import BEGIN, History, column, finished, history, opened
from processes import DEADLINE, clean_environ, command, run_here
from scripted_recorder import CapturesHarness

from trackside.wire import ProcessInfo
from trackside_daemon.alerts.firing_alerts import FiringAlerts
from trackside_daemon.alerts.silences import Silences
from trackside_daemon.alerts.test_alert import AlertTester
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.run import best, metrics
from trackside_daemon.documents.run import document as run_document
from trackside_daemon.documents.text import write
from trackside_daemon.history.console.files import ConsoleWriter
from trackside_daemon.history.database import FILE, Database
from trackside_daemon.history.directory import lock_history
from trackside_daemon.history.files.export import export
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert, Event
from trackside_daemon.model.session import Owner
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.questions.question import Live
from trackside_daemon.web.api.agents import AgentsApi
from trackside_daemon.web.api.alerts import AlertsApi
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.daemon import DaemonApi, GpuApi
from trackside_daemon.web.api.history import HistoryApi
from trackside_daemon.web.api.history_access import HistoryAccess
from trackside_daemon.web.api.machine_history import MachineApi, MachineHistory
from trackside_daemon.web.api.openapi import document
from trackside_daemon.web.api.overview.handlers import OverviewApi
from trackside_daemon.web.api.overview.overview import Overview
from trackside_daemon.web.api.overview.rates import RateTracker
from trackside_daemon.web.api.processes import ProcessesApi
from trackside_daemon.web.api.state_json import live_runs
from trackside_daemon.web.api.waits import Waits
from trackside_daemon.web.app import WebApp
from trackside_daemon.web.http.address import listen
from trackside_daemon.web.http.auth_token import Token
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.server import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Message, Receive, Scope, Send

LAUNCH = "0123456789abcdef"
EVIL = "evil\x1b[31m\x07\n\u202ename"


class Answer:
    """Exit status and output of a command."""

    def __init__(self, ended: subprocess.CompletedProcess[Any]) -> None:
        self.status = ended.returncode
        self.bytes: bytes = ended.stdout
        self.out = self.bytes.decode()
        self.errors: str = ended.stderr.decode()

    def refusal(self, status: int = 2) -> str:
        """Return its only line on standard error."""
        assert (self.status, self.out) == (status, ""), (self.out, self.errors)
        assert self.errors.startswith("trackside: ")
        assert self.errors.count("\n") == 1, self.errors
        return self.errors.removeprefix("trackside: ").rstrip("\n")


class Place:
    """A directory with a history, and the environment of commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.history = directory / "history"
        self.socket = directory / "run" / "trackside" / "push.sock"
        self.socket.parent.mkdir(parents=True)

    def run(self, *arguments: str, where: bool = True, answer: str = "", columns: int = 80) -> Answer:
        """Run the command on this history."""
        more = [f"--storage.path={self.history}"] if where else []
        places = {"XDG_RUNTIME_DIR": str(self.directory / "run"), "XDG_STATE_HOME": str(self.directory / "state")}
        environ = {"COLUMNS": str(columns), **places}
        return Answer(run_here(*arguments, *more, environ=environ, answer=answer, text=False))

    def format_address(self, form: str, run: str) -> bytes:
        """Read the export of a run from the file of the history."""
        database = Database(self.history)
        try:
            return b"".join(export(database, run, form))  # type: ignore[arg-type]
        finally:
            database.close()


def fill(one: History) -> None:
    """Write three runs: one of two attempts and two ranks, one that failed with an evil name, one that is running."""
    one.put(
        [
            opened("aaaa1111", name="gpt-small", config={"lr": 0.1, "model": {"layers": 2}}, tags=("prod",)),
            column("aaaa1111", ["train/loss", "eval/accuracy"], 10),
            finished("aaaa1111", state="failed", cause="OutOfMemoryError"),
            *(opened("aaaa1111", name="gpt-small", attempt=1, rank=rank, world=2, total_steps=40) for rank in (0, 1)),
            column("aaaa1111", ["train/loss"], 20, attempt=1),
            column("aaaa1111", ["other"], 5, attempt=1, rank=1),
            finished("aaaa1111", attempt=1, after=3723),
            Event("aaaa1111", 0, BEGIN + 5, "checkpoint", 0, 5, {"path": "\x1b]0;x", "bytes": 7}),
            Alert("LossSpike", "warning", BEGIN + 7, "aaaa1111", {}, "loss jumped", "", BEGIN + 17),
            opened("bbbb2222", name=EVIL, started=BEGIN + 5000, config={"lr": 0.2, "model": {"layers": 2}}),
            column("bbbb2222", ["train/loss", "größe"], 3),
            finished("bbbb2222", state="failed", cause="line\nbreak"),
            opened("bbbb3333", name="gpt-small-2", started=BEGIN + 9000, about=ProcessInfo(launch=LAUNCH)),
        ]
    )


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A history that no daemon has open."""
    place = Place(tmp_path)
    with history(place.history) as one:
        fill(one)
        one.wait_until_packed()
    return place


class Site:
    """The daemon's own pages over a history.

    Args:
        one: The history.
        token: The token that opens the pages.
        breaks: True if exports break off before their end.

    Attributes:
        asked: The requests, by method and path, in order.
        state: The newest values.
    """

    def __init__(self, one: History, token: Token, *, breaks: bool) -> None:
        self.state = state = State()
        live = Live(CostSection, lambda: 1.1, lambda: live_runs(state, time.monotonic()))
        kept = HistoryAccess(one.database, one.writer, live)
        overview = Overview(state, RateTracker(state), FiringAlerts(), one.database)
        captures = CapturesApi(CapturesHarness(one.database, one.writer).captures, kept, lambda _: 0)
        pages = WebApp(
            state,
            sources=(),
            ready=lambda: True,
            access=kept,
            apis=[
                DaemonApi(lambda: {"version": "0", "storage_path": str(one.directory)}, token, lambda: None, document),
                HistoryApi(kept, lambda *_: (frozenset(), []), lambda *_: frozenset(), audit=lambda _: None),
                AlertsApi(kept, Silences(), AlertTester(), lambda _: None, ()),
                captures,
                AgentsApi(kept, captures, Waits(lambda _: {}), actions=False),
                GpuApi(Nvml(), lambda: None),
                MachineApi(MachineHistory(state, bytes), kept),
                ProcessesApi(tuple, state, Path("/proc")),
                OverviewApi(state, kept, overview),
            ],
        )
        self._app = pages.build(token=token, hosts=(), public_read=False)
        self._breaks = breaks
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        self.asked.append(f"{scope['method']} {scope['path']}")

        async def endless(message: Message) -> None:
            if message["type"] == "http.response.start" or message.get("more_body"):
                await send(message)

        broken = self._breaks and scope["path"].endswith("/export")
        await self._app(scope, receive, endless if broken else send)


@contextmanager
def answering(place: Place, *, breaks: bool = False) -> Iterator[Site]:
    """Yield a server that answers like the daemon, with its address next to the push socket."""
    with history(place.history) as one:
        token = Token(place.socket.with_suffix(".token"), place.socket.with_name("api.token"))
        site = Site(one, token, breaks=breaks)
        listener = listen("127.0.0.1:0")
        place.socket.with_suffix(".address").write_text(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        server = WebServer(site, listener, ConfigFile(""))
        server.start()
        try:
            yield site
        finally:
            server.stop()
            token.remove()


@pytest.fixture(params=["file", "daemon"])
def asked(request: pytest.FixtureRequest, here: Place) -> Iterator[Place]:
    """A history that is read from its file in one case and through the API in the other."""
    if request.param == "file":
        yield here
    else:
        with answering(here) as api:
            yield here
            assert api.asked[0] == "GET /api/v1/status"
            assert len(api.asked) > 1


@pytest.fixture
def asked_with_three(here: Place) -> Place:
    """Three more runs of one name."""
    with history(here.history) as one:
        for number in range(3):
            about = ProcessInfo(command=("python", "train.py", "--lr", str(number)))
            one.put(
                [
                    opened(f"t{number}", name="train", started=BEGIN + 10_000 + number, about=about),
                    column(f"t{number}", ["loss"], number + 2),
                ]
            )
    return here


def test_runs_are_a_table_the_newest_first_that_fits_80_columns(here: Place) -> None:
    answer = here.run("runs")
    lines = answer.out.splitlines()
    assert answer.status == 0
    assert not answer.errors or "no daemon answers" in answer.errors
    assert lines[0].split() == ["ID", "NAME", "STATE", "STARTED", "TOOK", "STEP", "LOSS", "TAGS"]
    assert [line.split()[0] for line in lines[1:]] == ["bbbb3333", "bbbb2222", "aaaa1111"]
    assert re.search(r"gpt-small +finished +2023-11-1\d +1 h 18 min +19 +19 +prod$", lines[3])
    assert max(map(len, lines)) <= 80


def test_live_runs_are_listed_whether_the_limit_cuts_them_off_or_they_are_not_written(here: Place) -> None:
    with answering(here) as api:
        for name, id_ in (("gpt-small", "aaaa1111"), ("new", "cccc4444")):
            info = (name, id_, "1", "1", "host", "", "", "", "", "")
            samples = [Sample(f.RUN_INFO, info, 1.0), Sample(f.STATE, (name, "running"), 1.0)]
            api.state.update(Batch(f"training:{id_}", [*samples, Sample(f.STEP, (name, "0"), 30.0)]))
        answer = here.run("runs", "--limit=1")
        assert answer.status == 0
        assert [line.split()[1] for line in answer.out.splitlines()[1:]] == ["new", "gpt-small-2", "gpt-small"]
        assert "these are the newest 1;" in answer.errors
        listed = json.loads(here.run("runs", "--limit=1", "--json").out)["runs"]
        assert len({frozenset(run) for run in listed if "host" in run}) == 1
        assert [run["tags"] for run in listed] == [[], [], ["prod"]]


def test_runs_of_several_users_are_listed_with_them(here: Place) -> None:
    with history(here.history) as one:
        run = opened("cccc4444", started=BEGIN + 9500)
        one.put([replace(run, owner=Owner(*owner)) for owner in (("uid:7", "7"), ("uid:7", "bob"), ("uid:8", "eve"))])
    lines = here.run("runs").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "STARTED", "TOOK", "STEP", "LOSS", "USER", "TAGS"]
    assert lines[1].split()[-1] == "bob"
    assert "user      bob\n" in here.run("show", "cccc4444").out
    assert json.loads(here.run("show", "cccc4444", "--json").out)["user"] == "bob"


def test_what_steers_a_terminal_is_escaped_everywhere(here: Place) -> None:
    for arguments in (("runs",), ("show", "bbbb2222"), ("compare", "aaaa1111", "bbbb2222"), ("show", "aaaa1111")):
        out = here.run(*arguments, columns=200).out
        assert out.replace("\n", "").isprintable(), arguments
    assert r"evil\x1b[31m\x07\n\u202ename" in here.run("runs", columns=200).out
    assert here.run("show", EVIL).status == 0


def test_runs_are_chosen_by_name_tag_state_and_time(asked: Place) -> None:
    for flags, ids in (
        (["--name=gpt"], ["bbbb3333", "aaaa1111"]),
        (["--name=bbbb"], ["bbbb3333", "bbbb2222"]),
        (["--tag=prod"], ["aaaa1111"]),
        (["--state=failed"], ["bbbb2222"]),
        (["--since=7d"], []),
        (["--until=7d", "--limit=2"], ["bbbb3333", "bbbb2222"]),
        (["--since=2023-11-01", "--until=2023-11-30T10:00:00Z"], ["bbbb3333", "bbbb2222", "aaaa1111"]),
        (["--until=2023-11-13"], []),
        (["--since=2023-11-01T08:00", "--until=2023-11-30T10:00:59"], ["bbbb3333", "bbbb2222", "aaaa1111"]),
    ):
        found = json.loads(asked.run("runs", "--json", *flags).out)
        assert [run["id"] for run in found["runs"]] == ids, flags


def test_a_query_selects_runs_to_list_compare_export_and_delete(asked: Place, tmp_path: Path) -> None:
    assert [run["id"] for run in json.loads(asked.run("runs", "lr>=0.1 -gpt-small", "--json").out)["runs"]] == [
        "bbbb2222"
    ]
    assert asked.run("runs", "lr=0.3").errors == "trackside: no run has lr=0.3; the nearest is lr=0.2\n"
    assert "lr" in asked.run("compare", "--query", "lr>0").out
    answer = asked.run("export", "--query", "lr>0", "--format", "jsonl", "--output", str(tmp_path / "out"))
    assert (answer.status, answer.errors) == (0, "")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"aaaa1111.jsonl", "bbbb2222.jsonl"}
    assert asked.run("delete", "--query", "lr=0.2", "--yes").out.startswith("deleted: ")
    again = asked.run("delete", "--query", "lr=7", "--yes")
    assert (again.status, again.errors) == (
        0,
        "trackside: nothing to delete: --query: no run has lr=7; the nearest is lr=0.1\n",
    )
    assert len(json.loads(asked.run("runs", "--json").out)["runs"]) == 2


def test_a_query_that_selects_nothing_changes_nothing(here: Place) -> None:
    for arguments, error in (
        (["delete", "--yes"], "name runs, or select them with --query"),
        (["delete", "gpt-small", "--query", "lr=0.1", "--yes"], "name runs, or select them with --query; not both"),
        (["export", "--query", "lr=0.1"], "--query: name the directory for the files with --output"),
        (["runs", "lr>soon"], "query: lr>soon: 'soon' is no number"),
    ):
        assert here.run(*arguments).refusal() == error


def test_no_runs_are_no_error(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with history(place.history):
        pass
    assert (place.run("runs").status, place.run("runs").errors) == (0, "trackside: no runs yet\n")
    assert json.loads(place.run("runs", "--json").out) == {"runs": []}
    assert place.run("why").refusal() == "the history has no runs yet"


def test_a_run_is_shown_with_its_metrics_attempts_configuration_alerts_and_events(asked: Place) -> None:
    out = asked.run("show", "gpt-small").out
    for line in (
        r"run       gpt-small  aaaa1111",
        r"state     finished, 2 attempts",
        r"duration  1 h 18 min",
        r"step      19 of 40",
        r"git       0123abc",
        r"host      node-1, 2 ranks",
        r"metrics of rank 0 \(2 ranks: --rank N shows another\):",
        r"  train/loss +19 +0 +7\.833 +5\.52 +0 +19 +19 +30",
        r"  eval/accuracy +9\.1 +9\.1 +4\.6 +\S+ +0\.1 +9\.1 +9 +10",
        r" +0  .* 1 min +failed \(OutOfMemoryError\)",
        r"  lr +0\.1",
        r"  model\.layers +2",
        r"  warning   LossSpike  7 s    10 s    loss jumped",
        r"  5 s       0     5  checkpoint  path=\\x1b\]0;x bytes=7",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), (line, out)
    assert re.search(r"^  other +4 ", asked.run("show", "gpt-small", "--rank", "1").out, re.MULTILINE)
    found = json.loads(asked.run("show", "aaaa", "--json").out)
    assert (found["id"], len(found["attempt_list"]), len(found["metrics"])) == ("aaaa1111", 2, 4)
    assert (len(found["events"]), len(found["alerts"])) == (1, 1)
    for metric in found["metrics"]:
        metric["nonfinite"] = 3 if metric["key"] == "other" else 0
    assert "NaN or infinite:\n  other 3 of rank 1\n" in "\n".join(write(run_document(found, [], None, 0.0)))


def test_without_a_run_the_newest_is_shown(here: Place) -> None:
    assert json.loads(here.run("show", "--json").out)["id"] == "bbbb3333"
    assert json.loads(here.run("why", "--json").out)["run"] == "bbbb3333"


def test_the_output_of_a_command_is_printed(asked: Place) -> None:
    answer = asked.run("show", "gpt-small", "--console")
    assert answer.status == 2
    assert "run gpt-small has no output: start its command with trackside run --console" in answer.errors
    writer = ConsoleWriter(asked.history, LAUNCH)
    writer.write(b"\x1b[32mstep\t1\x1b[0m\r\n\xc2\x9b31m\xe2\x80\xaeevil\nlast")
    writer.close()
    assert asked.run("show", "bbbb3333", "--console").out == "step    1\n\\x9b31m\\u202eevil\nlast\n"


def test_runs_are_put_side_by_side(here: Place) -> None:
    out = here.run("compare", "gpt-small", "bbbb2222").out
    assert re.search(r"^  lr +0\.1 +0\.2$", out, re.MULTILINE)
    assert "model.layers" not in out
    assert re.search(r"^  train/loss final +19 +2$", out, re.MULTILINE)
    assert re.search(r"^  größe final +- +2\.1$", out, re.MULTILINE)
    found = json.loads(here.run("compare", "gpt-small", "bbbb2222", "--json").out)
    assert found["configuration"] == {"lr": [0.1, 0.2]}
    assert [one and one["best"] for one in found["metrics"]["eval/accuracy"]] == [9.1, None]


def test_a_long_key_does_not_widen_the_table_and_only_so_many_metrics_are_shown(here: Place) -> None:
    with history(here.history) as one:
        one.put([opened("wide"), column("wide", ["k" * 500, "loss", "more"], 3)])
    answer = here.run("show", "wide", "--limit=2", columns=10_000)
    assert "trackside: 2 of 3 metrics are shown; --limit N shows more" in answer.errors
    (row,) = [line for line in answer.out.splitlines() if line.startswith("  kkk")]
    assert len(row) < 200
    assert re.search(r"^  loss ", answer.out, re.MULTILINE)
    assert "more" not in answer.out


def test_a_directory_without_runs_is_refused(here: Place) -> None:
    empty = here.directory / "empty"
    empty.mkdir()
    answered = here.run("import", str(empty)).refusal()
    assert answered.startswith(
        f"{empty}: there are no runs in this directory; these are read: event files of TensorBoard"
    )


def test_runs_of_other_tools_are_imported_without_a_daemon(tmp_path: Path) -> None:
    place = Place(tmp_path / "new")
    place.history.mkdir()
    check_imports(place)


def test_runs_of_other_tools_are_imported_by_a_daemon(asked: Place) -> None:
    check_imports(asked)


def test_a_directory_of_exports_is_imported(asked: Place, tmp_path: Path) -> None:
    out = tmp_path / "exports"
    (out / "more").mkdir(parents=True)
    for form, run in (("jsonl", "aaaa1111"), ("json", "bbbb2222"), ("csv", "aaaa1111")):
        path = out / ("more" if form == "json" else "") / f"{run}.{form}"
        asked.run("export", run, "--format", form, "--output", str(path))
    (out / "other.json").write_text('{"a": 1}')
    (out / "damaged.jsonl").write_text('{"kind":"run","id":"x"}\n')
    new = Place(tmp_path / "new")
    new.history.mkdir()
    answer = new.run("import", str(out))
    assert answer.status == 2
    assert [re.sub(" as run.*, ", " ", line) for line in answer.out.splitlines()] == [
        f"imported: {out}/{name} samples" for name in ("aaaa1111.csv 45", "aaaa1111.jsonl 45", "more/bbbb2222.json 6")
    ]
    for form, run in (("jsonl", "aaaa1111"), ("json", "bbbb2222")):
        assert new.run("export", run, "--format", form).bytes == asked.run("export", run, "--format", form).bytes
    again = new.run("import", str(out))
    assert (again.out, "3 of 3 runs are in the history already" in again.errors) == ("", True)
    (out / "again.jsonl").write_bytes((out / "aaaa1111.jsonl").read_bytes())
    there = asked.run("import", str(out))
    assert there.out.count("imported: ") == 1
    assert "1 of 4 runs are left out, with the id of another one there: " in there.errors
    assert f"{out}/again.jsonl has that of {out}/aaaa1111.jsonl" in there.errors
    assert "2 of 4 runs are in the history already" in there.errors


def check_imports(place: Place) -> None:
    """Check that the runs in a directory are imported once."""
    runs = place.directory / "runs"
    for name in ("exp1", "exp2"):
        events(runs / name / file_name(), range(30))
    with (runs / "exp2" / file_name()).open("ab") as file:
        file.write(b"torn")
    answer = place.run("import", str(runs), "--name", "tb")
    assert answer.status == 0
    assert re.fullmatch(rf"(imported: {runs}/exp\d as run [0-9a-f]{{12}}, 30 samples\n){{2}}", answer.out)
    assert "left out: 1 incomplete last record of 4 bytes: " in answer.errors
    assert place.run("import", str(runs)).errors == f"trackside: {runs}: 2 of 2 runs are in the history already\n"
    shown = json.loads(place.run("show", "tb/exp1", "--json").out)
    (metric,) = shown["metrics"]
    assert (metric["key"], metric["count"], metric["last"], shown["state"]) == ("loss", 30, 14.5, "finished")
    assert place.run("import", str(runs), "--id", "x").refusal().startswith("--id: there are 2 runs in")
    assert place.run("import", f"{runs}/none").refusal() == f"{runs}/none: no such file or directory"


def test_a_name_that_is_given_twice_means_its_two_newest_runs(asked_with_three: Place) -> None:
    answer = asked_with_three.run("compare", "train", "train")
    assert re.search(r"^ +train \(t2\) +train \(t1\)$\n", answer.out, re.MULTILINE)
    assert re.search(
        r"^differences:\n  command +python train.py --lr 2 +python train.py --lr 1$", answer.out, re.MULTILINE
    )
    assert re.search(r"^  loss final +3 +2$", answer.out, re.MULTILINE)
    found = json.loads(asked_with_three.run("compare", "train", "train", "train", "--json").out)
    assert [run["id"] for run in found["runs"]] == ["t2", "t1", "t0"]
    assert found["commands"] == [f"python train.py --lr {number}" for number in (2, 1, 0)]
    assert asked_with_three.run("compare", *["train"] * 4).refusal() == (
        "run train is given 4 times, but 3 runs have this name; give ids: trackside runs"
    )


def test_many_runs_are_compared_in_as_many_tables_as_they_need(here: Place) -> None:
    with history(here.history) as one:
        for number in range(9):
            name = f"a-run-with-a-long-name-of-its-own-{number}"
            one.put(
                [opened(f"c{number}", name=name, config={"seed": number}), column(f"c{number}", ["loss"], number + 1)]
            )
    answer = here.run("compare", *(f"c{number}" for number in range(9)))
    assert max(map(len, answer.out.splitlines())) <= 80
    seeds = re.findall(r"^  seed +(.*)$", answer.out, re.MULTILINE)
    assert " ".join(seeds).split() == [str(number) for number in range(9)]
    assert len(seeds) > 1
    assert "…" not in answer.out


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_an_export_is_what_the_history_writes_on_standard_output_or_into_a_file(asked: Place, form: str) -> None:
    answer = asked.run("export", "gpt-small", "--format", form)
    asked.run("export", "gpt-small", "--format", form, "--output", str(asked.directory / "out"))
    assert (answer.status, answer.errors) == (0, "")
    assert (asked.directory / "out").read_bytes() == answer.bytes == asked.format_address(form, "aaaa1111")


def test_a_reader_that_has_enough_ends_an_export_silently(here: Place) -> None:
    with history(here.history) as one:
        one.put([opened("long"), column("long", ["x"], 100_000)])
    flags = ("export", "long", f"--storage.path={here.history}")
    with processes.start(
        command(*flags), env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"attempt,rank,step,time,x\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(DEADLINE)


def test_an_export_that_breaks_off_leaves_no_file_and_is_reported(here: Place) -> None:
    with answering(here, breaks=True):
        answer = here.run("export", "gpt-small", "--output", str(here.directory / "out"))
    assert "the daemon closed the connection, so the output is incomplete" in answer.refusal(1)
    assert [path.name for path in here.directory.iterdir() if path.name.startswith("out")] == []


def test_on_a_terminal_an_export_into_a_file_shows_how_far_it_is(here: Place) -> None:
    ours, theirs = os.openpty()
    out = here.directory / "out.csv"
    flags = ("export", "gpt-small", f"--storage.path={here.history}", f"--output={out}")
    with processes.start(command(*flags), env=clean_environ({"TERM": "xterm"}), stderr=theirs) as process:
        os.close(theirs)
        assert process.wait(DEADLINE) == 0
    assert "45/45" in os.read(ours, 100_000).decode()
    os.close(ours)
    assert out.read_bytes() == here.format_address("csv", "aaaa1111")


def test_files_are_imported_and_guesses_are_reported(asked: Place) -> None:
    file = asked.directory / "löss.csv"
    file.write_text("step,loss\n0,2.5\n1,2.25\n")
    answer = asked.run("import", str(file), "--name", "löss", "--id", "new")
    assert (answer.status, answer.out) == (0, f"imported: {file} as run new, 2 samples\n")
    again = asked.run("import", str(file), "--id", "new")
    assert (
        again.refusal()
        == f"{file}: run 'löss' (new) is in the history already; to import it again, give it another id: --id NEW"
    )
    rows = list(csv.reader(io.StringIO(asked.run("export", "löss").out)))
    assert [row[4] for row in rows] == ["loss", "2.5", "2.25"]


def test_a_file_that_is_nested_without_end_is_one_line(here: Place) -> None:
    file = here.directory / "deep.jsonl"
    file.write_text('{"a":' + "[" * 200_000 + "\n")
    assert here.run("import", str(file)).refusal() == f"{file}: line 1: nested too deeply"


def test_a_bad_file_among_good_ones_is_reported_and_the_good_ones_are_imported(asked: Place) -> None:
    for name, text in (("one", "step,x\n0,1\n"), ("bad", "step,x\n0,much\n"), ("two", "step,x\n0,2\n")):
        (asked.directory / f"{name}.csv").write_text(text)
    files = [str(asked.directory / f"{name}.csv") for name in ("one", "bad", "two", "none")]
    answer = asked.run("import", *files)
    assert answer.status == 2
    assert len(answer.out.splitlines()) == 2
    assert f"{files[1]}: line 2: a number is expected for 'x', not 'much'" in answer.errors
    assert f"{files[3]}: no such file" in answer.errors
    assert {run["name"] for run in json.loads(asked.run("runs", "--json").out)["runs"]} >= {"one", "two"}


def test_a_run_is_pinned_and_let_go_again(asked: Place) -> None:
    assert asked.run("pin", "gpt-small").out == "pinned: gpt-small (aaaa1111)\n"
    assert "* pinned" in asked.run("runs").out
    assert asked.run("pin", "aaaa", "--off").out == "unpinned: gpt-small (aaaa1111)\n"
    assert "pinned" not in asked.run("runs").out


def test_deleting_asks_first(asked: Place) -> None:
    for answer in ("", "n\n"):
        ended = asked.run("delete", "gpt-small", answer=answer)
        assert (ended.status, ended.out) == (2, "")
        assert "nothing was deleted; --yes deletes without confirmation" in ended.errors
    assert asked.run("delete", "gpt-small", answer="y\n").out == "deleted: gpt-small (aaaa1111)\n"
    assert asked.run("delete", "bbbb2222", "--yes").status == 0
    ended = asked.run("delete", "bbbb3333", "--yes")
    left = [run["id"] for run in json.loads(asked.run("runs", "--json").out)["runs"]]
    if asked.socket.with_suffix(".address").exists():
        reported = "run 'bbbb3333' has not ended; it can be deleted when it has"
        assert (ended.refusal(), left) == (reported, ["bbbb3333"])
    else:
        assert (ended.status, left) == (0, [])


def test_a_daemon_that_is_named_is_the_only_one_that_a_deletion_asks(here: Place) -> None:
    with answering(here) as api:
        url, token = (here.socket.with_suffix(end).read_text().strip() for end in (".address", ".token"))
        ended = here.run("delete", "bbbb2222", "--yes", f"--url={url}/#token={token}", where=False)
        assert ended.out.startswith("deleted: ")
        assert "GET /api/v1/status" not in api.asked  # by which a local one is found


def test_an_unknown_or_ambiguous_run_is_one_line(asked: Place) -> None:
    assert asked.run("show", "nosuch").refusal().startswith("run 'nosuch': there is none; newest: gpt-small-2")
    assert "several ids begin with it: bbbb3333, bbbb2222" in asked.run("delete", "bbbb", "--yes").refusal()


def test_wrong_usage_is_one_line(here: Place) -> None:
    for arguments, error in (
        (["runs", "--since=soon"], "--since: 'soon' is neither a duration such as 7d or 12h, nor a date such as"),
        (["runs", "--since=20261101T080000"], "--since: '20261101T080000' is neither"),
        (["runs", "--since=2026-W45-7"], "--since: '2026-W45-7' is neither"),
        (["runs", "--since=2026-11-01T08"], "--since: '2026-11-01T08' is neither"),
        (["runs", "--until=9999-12-31"], "--until: '9999-12-31' is neither"),
        (["runs", "--since=0001-01-01"], "--since: '0001-01-01' is neither"),
        (["export", "gpt-small", "--format=xml"], "--format: 'xml' is not one of csv, json, jsonl"),
        (["report", "gpt-small", "--format=pdf"], "--format: 'pdf' is not one of text, markdown, html, csv, json"),
        (["report", *map(str, range(21))], "21 runs are too many for one report; name at most 20"),
        (["import", "a", "b", "--id=x"], "--id is valid for one file only, because each run needs a distinct id"),
        (["runs", "--url=http://127.0.0.1:1"], "--url and --storage.path name two histories; give only one"),
    ):
        assert here.run(*arguments).refusal().startswith(error), arguments


def test_a_report_is_written_in_each_format(here: Place) -> None:
    for form, begins in (("html", "<!DOCTYPE html>"), ("md", "# gpt-small, evil"), ("json", '{"reports": [')):
        file = here.directory / f"report.{form}"
        answer = here.run("report", "aaaa1111", "bbbb2222", "-o", str(file))
        assert (answer.status, answer.out) == (0, f"written: {file}\n")
        assert file.read_text().startswith(begins)
    answer = here.run("report", "aaaa1111", "-o", "-", "--format=md")
    assert answer.out.startswith("# gpt-small\n")
    assert "written" not in answer.out


def test_the_plots_of_a_report_are_files_of_their_own(here: Place) -> None:
    file, plots = here.directory / "report.md", here.directory / "plots"
    answer = here.run("report", "aaaa1111", "bbbb2222", "-o", str(file), f"--plots={plots}")
    assert (answer.status, answer.out) == (0, f"written: {file}\nwritten: 3 charts to {plots}\n")
    names = ("1-train_loss", "2-eval_accuracy", "3-gr_e")
    assert sorted(path.name for path in plots.iterdir()) == [
        f"{name}{end}" for name in names for end in ("-dark.png", "-dark.svg", ".png", ".svg")
    ]


def test_without_a_history_the_command_names_where_it_searched(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.run("runs").refusal().startswith(f"{place.history}/{FILE}: there is no history here yet;")


def test_why_warns_about_a_live_run_without_a_daemon(here: Place) -> None:
    assert here.run("why", "bbbb3333").errors.startswith("trackside: no daemon answers: the run was alive")
    assert here.run("why", "aaaa1111").errors == ""


def test_a_file_that_cannot_be_written_is_one_line(here: Place) -> None:
    error = here.run("export", "gpt-small", "--output=/nowhere/x.csv").refusal(1)
    assert error == "/nowhere/x.csv: no such file or directory"
    error = here.run("report", "gpt-small", "--output=/nowhere/x.html").refusal(1)
    assert error == "/nowhere/x.html: no such file or directory"


def test_what_a_daemon_holds_that_cannot_be_asked_is_not_changed(here: Place) -> None:
    lock = lock_history(here.history)
    error = here.run("pin", "gpt-small").refusal()
    lock.close()
    assert f"a daemon or a command (pid {os.getpid()}) writes this history, and no daemon answers; wait" in error


def test_the_address_of_a_daemon_that_is_gone_means_the_file(here: Place) -> None:
    here.socket.with_suffix(".address").write_text("http://127.0.0.1:1\n")
    here.socket.with_suffix(".token").write_text("x\n")
    assert here.run("runs").status == 0


def test_a_daemon_with_another_history_is_not_asked(here: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    with history(other.history) as one:
        one.put([opened("elsewhere")])
    with answering(here) as api:
        flags = [f"--storage.path={other.history}", "--json"]
        assert [run["id"] for run in json.loads(here.run("runs", *flags, where=False).out)["runs"]] == ["elsewhere"]
        assert api.asked == ["GET /api/v1/status"]
        assert "gpt-small" in here.run("runs", where=False).out


def test_a_daemon_elsewhere_is_asked_with_the_link_that_it_prints(here: Place) -> None:
    with answering(here):
        address, token = (here.socket.with_suffix(f".{one}").read_text().strip() for one in ("address", "token"))
        here.socket.with_suffix(".address").unlink()
        assert "gpt-small" in here.run("runs", f"--url={address}/#token={token}", where=False).out
        refused = here.run("runs", f"--url={address}", where=False).refusal()
        assert refused.startswith(f"{address}: the API requires 'Authorization: Bearer TOKEN' with the token in ")
        assert refused.endswith("; --url also accepts the link that the daemon prints, with #token=…")
    error = here.run("runs", "--url=http://127.0.0.1:1", where=False).refusal(1)
    assert error == "http://127.0.0.1:1: the daemon does not answer: connection refused"
    assert "is not an address such as" in here.run("runs", "--url=ftp://x", where=False).refusal()


def test_a_token_is_printed_and_rotated_with_and_without_a_daemon(here: Place) -> None:
    with answering(here):
        other = f"--storage.path={here.directory / 'other'}"
        assert (
            here.run("token", other, where=False)
            .refusal()
            .endswith("no such file or directory; a daemon with this history makes it")
        )
        first = here.run("token").out.strip()
        assert first == here.socket.with_suffix(".token").read_text().strip()
        second = here.run("token", "--rotate").out.strip()
        assert second == here.socket.with_suffix(".token").read_text().strip() != first
        assert here.run("token", where=False).out.strip() == second
    stored = here.history / "api.token"
    stored.write_text(second)
    assert here.run("token").out.strip() == second
    assert here.run("token", "--rotate").out == f"{stored} is deleted; the next daemon makes a new token\n"
    assert not stored.exists()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("loss", 1), ("train/loss_ce", 1), ("valError", 1), ("perplexity", 1), ("step_time", 1), ("eval/accuracy", 2),
        ("top5_acc", 2), ("f1", 2), ("bleu_score", 2), ("lr", None), ("glossary", None), ("grad_norm", None),
        ("reward", 2), ("reward_std", None), ("rewards/accuracy/std", None),
    ],
)  # fmt: skip
def test_the_best_value_of_a_metric_depends_on_the_words_of_its_name(key: str, expected: int | None) -> None:
    assert best(key, 1, 2) == expected


def test_an_unknown_state_or_rank_is_refused(asked: Place) -> None:
    assert asked.run("runs", "--state", "runing").refusal().startswith("--state runing: a run is starting, running,")
    assert asked.run("show", "gpt-small", "--rank", "9").refusal() == "--rank 9: the ranks of run gpt-small are 0, 1"


@pytest.mark.parametrize(("cut", "known"), [(3, True), (1, True), (3, False)])
def test_the_standard_deviation_of_a_key_is_that_of_all_attempts(cut: int, *, known: bool) -> None:
    values = [5.0, 1.0, 4.0, 2.5, 9.0]
    parts = [values[:cut], values[cut:]]
    attempts = [
        {
            "key": "loss",
            "rank": 0,
            "attempt": number,
            "last": part[-1],
            "last_step": 0,
            "min": min(part),
            "max": max(part),
        }
        | {"mean": fmean(part), "std": pstdev(part) if known or number else None, "count": len(part)}
        for number, part in enumerate(parts)
    ]
    (found,) = metrics({"metrics": attempts})
    assert found["std"] == (pytest.approx(pstdev(values)) if known else None)


def test_the_mean_of_a_key_weighs_each_attempt_by_its_finite_samples() -> None:
    same = {"key": "loss", "rank": 0, "last": 1.0, "last_step": 0, "min": 0.0, "max": 10.0, "std": 0.0, "count": 100}
    attempts = [
        {**same, "attempt": 0, "mean": 10.0, "nonfinite": 99},
        {**same, "attempt": 1, "mean": 0.0, "nonfinite": 1},
    ]
    (found,) = metrics({"metrics": attempts})
    assert (found["mean"], found["count"]) == (pytest.approx(0.1), 200)
