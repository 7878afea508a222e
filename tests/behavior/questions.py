"""All questions about the recorded history, and their answers as readable texts that depend on nothing but the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import time
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

import pytest
from behavior.recorded_history import RUNS, RecordingDaemon, record
from click.testing import CliRunner
from typer.main import get_command
from web.conftest import Site

from trackside_daemon import __version__
from trackside_daemon.cli.main import COMMANDS, app, load
from trackside_daemon.cli.run import summary
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.file_source import FileSource
from trackside_daemon.cli.sources.source import SourceError
from trackside_daemon.diagnosis.accounts import read_goodput
from trackside_daemon.history.read import reader
from trackside_daemon.model.metric import Batch
from trackside_daemon.questions import table
from trackside_daemon.questions.question import InvalidError, Question, parse
from trackside_daemon.web.api import history_access
from trackside_daemon.web.api.history_access import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.cli.run.command_daemon import CommandDaemon
    from trackside_daemon.cli.run.signal_forwarding import Signals

WIDTH = 120
DIGITS = 12
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
ASSET = re.compile(
    r"(?<=<style>).*?(?=</style>)|(?<=<script>).*?(?=</script>)|(?<=id=\"data\">).*?(?=</script>)|(?<='sha256-)[^']*",
    re.DOTALL,
)
"""A style sheet or a script in a page, its data, which the answer of the report has too, or a checksum of one of them."""

COMMON: dict[str, tuple[str, ...]] = {
    "overview": ("/overview",),
    "runs": ("/runs", "/runs?config=true&metric=loss&tag=paper", "/runs?state=failed&limit=1"),
    "keys": ("/keys",),
    "comparison": (
        "/comparison?run=slow-loader&baseline=baseline",
        "/comparison?run=nan&baseline=baseline&key=grad_norm",
        "/comparison?run=slow-loader",
    ),
    "captures": ("/captures",),
    "series": (
        "/series?run=baseline&run=slow-loader&key=loss&points=5",
        "/series?run=straggler&key=loss&points=3&ranks=band",
        "/series?run=nan&key=loss&points=4&mean=true",
    ),
    "events": ("/events?limit=5",),
    "alerts": ("/alerts?firing=true", "/alerts?evidence=false"),
    "silences": ("/silences",),
    "machine": (
        "/machine",
        "/machine?run=baseline&key=trackside_host_cpu_seconds_total&points=2",
        "/code?run=baseline&run=nan",
    ),
    "processes": ("/processes",),
    "status": ("/status",),
    "openapi": ("/openapi.json",),
}
"""Questions that are about no single run, by the name of the file with the answers."""

OF_RUN = ("", "/diagnosis", "/performance?points=8", "/series?key=loss&points=6", "/report?size=2000")
"""Questions about each run."""

MORE_OF_RUN = {
    "baseline": ("/console", "/stacks", "/ping", "/diagnosis?key=lr", "/batches"),
    "benchmark": ("/export?format=jsonl", "/export?format=csv"),
    "captured": ("/captures",),
    "checkpoints": ("/checkpoints", "/checkpoints?metric=grad_norm"),
    "layers": (
        "/layers?points=3",
        "/layers?kind=attention&value=logit&points=2",
        "/layer-values",
        "/layers/head?points=2",
    ),
    "media": ("/media", "/media/6655008d51f460d925e7474d.txt"),
}
"""Further questions about some runs."""

CAPTURES = tuple(f"0000000000a{number}" for number in (0, 1, 2, 3, 4, 9))

NOT_ASKED = {
    "/runs/{id}/report/file": "it has the answer of /report, as a document",
    "/stream": "it has the answer of /overview, once a second",
    "/fleet": "it is of other machines; tests/end_to_end/test_fleet.py has it",
    "/captures/{capture}/files/{file}": "the captures have no files",
}
"""Endpoints that are not asked, with the reasons."""

AGENT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tools/list", {}),
    ("tools/call", {"name": "runs", "arguments": {"limit": 3}}),
    ("tools/call", {"name": "why", "arguments": {"run": "straggler"}}),
    ("tools/call", {"name": "why", "arguments": {"run": "stalled"}}),
    ("tools/call", {"name": "compare", "arguments": {"runs": ["slow-loader"], "baseline": ["baseline"]}}),
    ("tools/call", {"name": "rank", "arguments": {"runs": ["slow-loader", "baseline"]}}),
    ("tools/call", {"name": "series", "arguments": {"run": "nan", "keys": ["loss"], "points": 5}}),
)
"""Messages of an agent: method and parameters."""

COMMANDS_OF_RUN = (
    ("show", "RUN"),
    ("show", "RUN", "--resources"),
    ("why", "RUN"),
    ("report", "RUN", "--format", "md", "--output", "-"),
    ("alerts", "--run", "RUN"),
)
"""Commands about each run."""

COMMANDS_OF_ALL = (
    ("runs",),
    ("runs", "--state", "failed", "--sort=-loss"),
    ("compare", "baseline", "slow-loader"),
    ("compare", "baseline", "slow-loader", "--format", "md"),
    ("compare", "baseline", "slow-loader", "--format", "csv"),
    ("compare", "baseline", "slow-loader", "nan", "--group-by", "name", "--fail-if", "loss > 1.1 * baseline"),
    ("report", "baseline", "slow-loader", "--format", "md", "--output", "-"),
    ("alerts",),
    ("captures", "captured"),
    ("checkpoints", "checkpoints"),
    ("layers", "layers"),
    ("replay", "nan", "--summary"),
    ("replay", "spike"),
    ("replay", "spike", "--explain", "LossSpike", "--at", "222"),
)
"""Commands that are about no single run."""


PAGES = {"report": ("straggler",), "report-of-two": ("baseline", "slow-loader"), "report-of-benchmark": ("benchmark",)}
"""Runs of reports as HTML, by the name of the file."""

REFUSED: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/runs/none", None),
    ("GET", "/runs?limit=-1", None),
    ("GET", "/runs?since=yesterday", None),
    ("GET", "/runs/nan/series", None),
    ("GET", "/runs/nan/series?key=none", None),
    ("GET", "/runs/layers/layers?kind=none", None),
    ("GET", "/runs/nan/performance?points=100000", None),
    ("GET", "/comparison?run=nan&baseline=none", None),
    ("GET", "/captures/none", None),
    ("GET", "/alerts/999", None),
    ("GET", "/nothing", None),
    ("POST", "/runs/live/captures", {"kind": "profile", "seconds": 100_000}),
    ("POST", "/runs/live/captures", {"kind": "none"}),
    ("POST", "/silences", {"for": 1e9}),
    ("POST", "/alerts/test", {"severity": "none"}),
    ("POST", "/alerts/999/dismiss", {}),
    ("DELETE", "/runs/live", None),
    ("DELETE", "/silences/none", None),
)
"""Requests that are refused: method, path and body."""


@contextmanager
def answering(place: Path) -> Iterator[Asked]:
    """Record the history in an empty directory, and yield a source that answers questions about it: in UTC, at the moment of its end."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TRACKSIDE_")]:
            patch.delenv(name)
        patch.setenv("TRACKSIDE_ALERTS__THRESHOLDS__STRAGGLER_RATIO", "1.25")  # that of the pages
        patch.setenv("XDG_RUNTIME_DIR", str(place))
        patch.setenv("COLUMNS", str(WIDTH))
        patch.setenv("TZ", "UTC")
        patch.setattr(socket, "gethostname", lambda: "node-1")
        time.tzset()
        daemon = RecordingDaemon(place)
        patch.setattr(time, "time", lambda: daemon.now.wall)
        record(daemon)
        alerts = daemon.firing.now()
        daemon.close()
        patch.setattr(time, "monotonic", lambda: daemon.now.monotonic)
        patch.setattr(history_access, "MAX_REST_SECONDS", 0.0)  # seconds that a thread rests after a question
        site = Site(place / "history", daemon.state)
        site.firing.accept(Batch("alerts", records=alerts))
        try:
            yield Asked(daemon, site, place / "history")
        finally:
            site.history.stop()
            site.history.close()
    time.tzset()


class Asked:
    """Answers questions about the history, through HTTP and by commands.

    Args:
        daemon: The daemon that recorded it.
        site: The pages.
        directory: The directory of the history.
    """

    def __init__(self, daemon: RecordingDaemon, site: Site, directory: Path) -> None:
        self._daemon, self._site, self._directory = daemon, site, directory
        self._client = site.client()
        self._answers: dict[str, Any] = {}  # of the API, where nothing changes

    def answers(self) -> dict[str, str]:
        """Return the content of each file by its path; that of ``goodput.json``, which is compared with others, by run."""
        found = {f"api/{name}.json": self._asked(paths) for name, paths in COMMON.items()}
        found["api/capture.json"] = self._asked([f"/captures/{id_}" for id_ in CAPTURES])
        found["api/alert.json"] = self._asked([f"/alerts/{number}" for number in self._alerts()])
        found["api/message.json"] = self._answered()
        found["api/refused.json"] = self._refused()
        with self._site.history.database.reading() as connection:
            shares = {run: read_goodput(connection, reader.resolve(connection, run)) or {} for run in RUNS}
        found["goodput.json"] = json.dumps({run: list(of_run.values()) for run, of_run in shares.items()})
        for run in RUNS:
            paths = (*OF_RUN, *MORE_OF_RUN.get(run, ()))
            found[f"api/runs/{run}.json"] = self._asked(f"/runs/{run}{path}" for path in paths)
            found[f"text/runs/{run}.txt"] = self._printed(
                [[run if word == "RUN" else word for word in words] for words in COMMANDS_OF_RUN]
            )
        found["text/all.txt"] = self._printed(COMMANDS_OF_ALL)
        for name, words in PAGES.items():
            options = ("--format", "html", "--output", "-")
            found[f"text/{name}.html"] = _run("report", [*words, *options, "--storage.path", str(self._directory)])
        found["text/alerts.txt"] = self._printed([("alerts", "show", str(number)) for number in self._alerts()])
        return {path: self._plain(text) for path, text in found.items()}

    def faces(self, runs: Collection[str]) -> dict[str, list[Any]]:
        """Return the answers of the API, of `ApiSource` and of `FileSource` by question, and by message of an agent those of both."""
        paths = [path for paths in COMMON.values() for path in paths]
        paths += [f"/runs/{run}{path}" for run in runs for path in (*OF_RUN, *MORE_OF_RUN.get(run, ()))]
        paths += [f"/captures/{CAPTURES[0]}", *(f"/alerts/{number}" for number in self._alerts())]
        paths += [path for method, path, _ in REFUSED if method == "GET"]
        sources = _InProcess(self._get), FileSource(self._directory, pytest.fail)
        found = {}
        for path in paths:
            place, _, query = path.partition("?")
            if (kind := _question_of(place)) is None:
                continue
            answer = self._get(path).json()
            expected = answer["error"]["message"] if "error" in answer else answer
            found[path] = [expected]
            try:
                question = parse(kind[0], kind[1], parse_qsl(query, keep_blank_values=True))
            except InvalidError as error:
                found[path].append(str(error))
            else:
                found[path] += [_asked_of(source, question) for source in sources]
        for number, (method, params) in enumerate(AGENT):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            answer = self._client.ask("POST", "/api/v1/mcp", headers=self._site.key, json=message).json()
            found[json.dumps(message)] = [answer, sources[1].answer_agent(json.dumps(message).encode(), actions=False)]
        return found

    def why(self, run: str) -> dict[str, Any]:
        """Return what an agent is told of a run."""
        params = {"name": "why", "arguments": {"run": run}}
        message = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}).encode()
        answer = FileSource(self._directory, pytest.fail).answer_agent(message, actions=False)
        return dict(json.loads(answer["result"]["content"][0]["text"]))

    def summary(self) -> list[str]:
        """Return the lines of the closing summary of `trackside run`, as of a command that opened all runs."""
        lines: list[str] = []
        place = SimpleNamespace(
            source=FileSource(self._directory, pytest.fail), history=self._directory, died=0, log="daemon.log"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(summary, "MAX_RUNS", len(RUNS) + 1)
            nothing = "nothing was pushed; call trackside.push, or give --auto"
            ended = summary.CommandSummary("", cast("CommandDaemon", place), None, nothing)
            ended.report(cast("Signals", None), lines.append)
        return lines

    def _alerts(self) -> list[int]:
        """Return the ids of all alerts."""
        return [alert["id"] for alert in self._get("/alerts?evidence=false").json()["alerts"]]

    def _get(self, path: str) -> Any:
        if path not in self._answers:
            self._answers[path] = self._client.get(f"/api/v1{path}", headers=self._site.key)
        return self._answers[path]

    def _asked(self, paths: Iterable[str]) -> str:
        return readable({f"GET {path}": _content(self._get(path)) for path in paths})

    def _refused(self) -> str:
        found = {}
        for method, path, body in REFUSED:
            answer = self._client.ask(method, f"/api/v1{path}", headers=self._site.key, json=body)
            assert answer.status_code >= HTTPStatus.BAD_REQUEST, path
            found[f"{method} {path} {'' if body is None else json.dumps(body)}".rstrip()] = _content(answer)
        return readable(found)

    def _answered(self) -> str:
        found = []
        for number, (method, params) in enumerate(AGENT):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            answer = self._client.ask("POST", "/api/v1/mcp", headers=self._site.key, json=message).json()
            for part in answer["result"].get("content", ()):
                part["text"] = json.loads(part["text"])
            found.append({"message": message, "answer": answer})
        return readable(found)

    def _printed(self, commands: Iterable[Sequence[str]]) -> str:
        texts = []
        for words in commands:
            output = _run(words[0], [*words[1:], "--storage.path", str(self._directory)])
            texts.append(f"$ trackside {shlex.join(words)}\n{output}\n")
        return "".join(texts)

    def _plain(self, text: str) -> str:
        """Return a text without the directory, the version, what comes from files of the product, and digits that depend on Python."""
        text = text.replace(str(self._directory), "/history").replace(f'"{__version__}"', '"VERSION"')
        return NUMBER.sub(_shortened, ASSET.sub("…", text))


class _InProcess(ApiSource):
    """The source of a daemon in this process."""

    def __init__(self, get: Callable[[str], Any]) -> None:
        super().__init__("http://127.0.0.1:1", "")
        self._get = get

    def _json(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        answer = self._get(f"/{path}").json()
        if "error" in answer:
            raise SourceError(answer["error"]["message"])
        return dict(answer)


def _question_of(path: str) -> tuple[type[Question], dict[str, str]] | None:
    """Return the question that has this path, and the names in it; None if there is none."""
    for name in table.__all__:
        kind: type[Question] = getattr(table, name)
        if found := re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", kind.path), path):
            return kind, found.groupdict()
    return None


def _asked_of(source: ApiSource | FileSource, question: Question) -> Any:
    try:
        return json.loads(encode_json(source.ask(question)))
    except SourceError as error:
        return str(error)


def _shortened(number: re.Match[str]) -> str:
    """Return a number with twelve digits and ten decimals: the last ones of a sum depend on the version of Python."""
    if sum(map(str.isdecimal, number[0].partition("e")[0])) <= DIGITS:
        return number[0]
    return repr(round(float(f"{float(number[0]):.{DIGITS}g}"), 10))


_command = cache(load)  # reading a command's options takes 40 ms


def _run(name: str, arguments: list[str]) -> str:
    done = CliRunner().invoke(_command(name), arguments, prog_name=f"trackside {name}")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output + (f"exit status {done.exit_code}\n" if done.exit_code else "")


def _content(answer: Any) -> Any:
    """Return the JSON of an answer, the lines of other texts, and what is not a success with its status."""
    text = answer.text
    content: Any = text.splitlines()
    if answer.headers["content-type"].partition(";")[0] == "application/json":
        content = answer.json()
    return content if answer.status_code == 200 else {"status": answer.status_code, "body": content}


def readable(value: Any) -> str:
    """Return JSON with a line for each field and for each list of plain values."""
    return f"{_text(value, '')}\n"


def _text(value: Any, indent: str) -> str:
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        parts = [f"{inner}{json.dumps(key)}: {_text(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        return "[\n" + ",\n".join(f"{inner}{_text(one, inner)}" for one in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def helps() -> dict[str, str]:
    """Return the help of each command by the path of its file."""
    found = {"help/trackside.txt": _help(get_command(app), "trackside")}
    found["help/daemon-all.txt"] = _help(load("daemon"), "trackside daemon", "--help-all")
    for name in COMMANDS:
        command = load(name)
        found[f"help/{name}.txt"] = _help(command, f"trackside {name}")
        for under in getattr(command, "commands", ()):
            found[f"help/{name}-{under}.txt"] = _help(command, f"trackside {name}", under)
    return found


def _help(command: Any, program: str, *words: str) -> str:
    environ = {"COLUMNS": str(WIDTH)}
    return CliRunner(env=environ).invoke(command, [*words, "--help"], prog_name=program).output
