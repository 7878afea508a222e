"""The product's answers are as recorded, to the byte: a change of code leaves them, or lists in its commit what differs.

`recorded` has the help of the commands, the API's and the commands' answers about one recorded history, and the findings of the
detectors over the logs of real trainings. Other tests hold the rest: tests/documentation and tests/deploy the generated pages and
rules, tests/grafana the dashboards, tests/collectors and tests/web the golden pages. ``--update-golden`` rewrites all of them; the
findings also need ``--soak``.
"""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from behavior import findings
from behavior.questions import MORE_OF_RUN, NOT_ASKED, Asked, answering, helps
from behavior.recorded_history import RUNS
from documents import NEW_TYPER

from bench.logs import PLACE
from trackside_daemon.terminal.frame import DaemonData, render_frame
from trackside_daemon.terminal.styled_lines import to_text
from trackside_daemon.terminal.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORDED = Path(__file__).with_name("recorded")
LINES = 40
"""Lines of a difference that are shown of each file."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with answering(tmp_path_factory.mktemp("behavior")) as asked:
        yield asked


@pytest.fixture(scope="module")
def summary(asked: Asked) -> list[str]:
    return asked.summary()


@pytest.fixture(scope="module")
def answers(asked: Asked) -> dict[str, str]:
    return asked.answers()


@pytest.mark.parametrize("folder", ["api", "api/runs", "text", "text/runs"])
def test_an_answer_about_the_recorded_history_is_as_recorded(
    answers: Mapping[str, str], folder: str, update_golden: bool
) -> None:
    compare(folder, answers, update=update_golden)


@pytest.mark.filterwarnings("ignore:The 'is_flag' and 'flag_value' parameters:DeprecationWarning")
def test_the_help_of_each_command_is_as_recorded(update_golden: bool) -> None:
    if not NEW_TYPER:
        pytest.skip("typer is older than the recorded layout of the help")
    compare("help", helps(), update=update_golden)


@pytest.mark.parametrize("split", findings.SPLITS)
@pytest.mark.usefixtures("only_soak")
def test_the_findings_over_real_trainings_are_as_recorded(split: str, update_golden: bool) -> None:
    if not findings.available():
        pytest.skip(f"there are no logs of real trainings at {PLACE}")
    compare("findings", {f"findings/{split}.txt": findings.findings(split)}, update=update_golden, whole=False)


@pytest.mark.parametrize("run", RUNS)
def test_goodput_is_the_useful_compute_everywhere(answers: Mapping[str, str], run: str) -> None:
    asked = json.loads(answers[f"api/runs/{run}.json"])
    about, why = asked[f"GET /runs/{run}"], asked[f"GET /runs/{run}/diagnosis"]
    shares = {account: seconds / why["wall_seconds"] for account, seconds in why["ledger"].items()}
    if not any(attempt.get("phases") for attempt in about["attempt_list"]):
        assert "goodput" not in about, "nothing of the time was measured"
        return
    assert about["goodput"] == pytest.approx(fmean(json.loads(answers["goodput.json"])[run]), rel=0.02), "of a live run"
    assert about["goodput"] == pytest.approx(shares.pop("compute"))
    assert about["lost"] == pytest.approx(shares, abs=1e-9)
    report = asked[f"GET /runs/{run}/report?size=2000"]
    assert (report["run"]["goodput"], report["diagnosis"]["ledger"]) == (about["goodput"], why["ledger"])
    text = answers[f"text/runs/{run}.txt"]
    (shown,) = set(re.findall(r"^goodput +([\d.]+) %", text, re.MULTILINE))
    assert set(re.findall(r"useful compute (?:\| )?([\d.]+) %", text)) == {shown}


STOPPED = {
    "crashed": "rank 0 of run crashed, at step 249, died without a stated reason",
    "lost": "rank 0 of run lost, at step 193 or later, is lost: its process is gone or silent, and how it ended is unknown",
    "nan": "nan: loss: NaN at step 200; the last finite value was 1.865",
    "resumed": "run resumed does not continue where it was: the loss is back at that of the beginning",
    "live": "run live has made no step since 2023-11-15 01:34:01 UTC, after step 100",
}
"""What stops each of the recorded runs that do not go on as they should."""


@pytest.mark.parametrize("run", RUNS)
def test_every_face_has_the_same_sentence_on_what_stops_a_run(
    asked: Asked, answers: Mapping[str, str], summary: list[str], run: str
) -> None:
    sentence = STOPPED.get(run, "")
    page = json.loads(answers[f"api/runs/{run}.json"])
    why = page[f"GET /runs/{run}/diagnosis"]
    assert why["verdict"].startswith(sentence)
    assert bool(why["verdict"]) == bool(sentence)
    report = page[f"GET /runs/{run}/report?size=2000"]
    told = {
        why["verdict"],
        page[f"GET /runs/{run}"]["verdict"],
        report["run"]["verdict"],
        report["diagnosis"]["verdict"],
        re.sub("</?untrusted>", "", asked.why(run)["verdict"] or ""),
    }
    rows = [row for row in json.loads(answers["api/overview.json"])["GET /overview"]["runs"] if row["id"] == run]
    told |= {row["verdict"] for row in rows if row["state"] != "finished"}
    assert told == {why["verdict"]}
    assert all(row["remaining_seconds"] is row["step_seconds"] is None for row in rows), "no end and no pace"
    closing = f"{run}: {why['verdict'].removeprefix(f'{run}: ')}; trackside why {run} has the advice"
    assert not sentence or closing in "\n".join(summary)
    assert f"{run}: {run}: " not in "\n".join(summary)
    text = " ".join(answers[f"text/runs/{run}.txt"].split())
    for face in (f"health: {why['health']}", f"verdict {why['verdict']} started"):
        assert not sentence or " ".join(face.split()) in text
    overview = json.loads(answers["api/overview.json"])["GET /overview"]
    frame = render_frame(DaemonData(overview), View(), 100, None)
    shown = " ".join(" ".join(to_text(line) for line in frame.runs).split())
    assert all(row["verdict"] in shown for row in rows)


def test_api_file_and_agents_have_one_answer_to_each_question(asked: Asked, request: pytest.FixtureRequest) -> None:
    """Only a daemon has the values of live ranks, and these pages are not given the silences of the history.

    Without --soak, of the runs those are asked about that each question is about.
    """
    faces = asked.faces(RUNS if request.config.getoption("--soak") else MORE_OF_RUN)
    listed = [faces["/runs"].pop()["runs"], faces.pop("/runs")[0]["runs"]]
    of_file, of_daemon = ([{**run, "ranks": []} for run in runs] for runs in listed)
    assert of_file == [{name: run[name] for name in of_file[0]} for run in of_daemon]
    assert faces.pop("/silences")[0] == {"silences": []}
    assert {path: found for path, found in faces.items() if any(one != found[0] for one in found)} == {}
    assert min(map(len, faces.values())) == 2, "an agent and a refused question have two, others three"


def test_each_endpoint_that_reads_is_asked(answers: Mapping[str, str]) -> None:
    asked: set[str] = set()
    paths: dict[str, Any] = {}
    for file, text in answers.items():
        if file.endswith(".json") and isinstance(found := json.loads(text), dict):
            asked |= {question.partition("?")[0] for question in found}
            paths |= found.get("GET /openapi.json", {}).get("paths", {})
    reading = {path.removeprefix("/api/v1") for path, methods in paths.items() if "get" in methods}
    templates = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", f"GET {path}")) for path in reading}
    assert {path for path, one in templates.items() if not any(map(one.fullmatch, asked))} == set(NOT_ASKED)


def compare(folder: str, answers: Mapping[str, str], *, update: bool, whole: bool = True) -> None:
    """Compare the answers of one folder with the recorded ones, or rewrite those; *whole*: the folder has no other files."""
    found = {path: text for path, text in answers.items() if str(Path(path).parent) == folder}
    there = {str(path.relative_to(RECORDED)) for path in (RECORDED / folder).glob("*.*")}
    if update:
        (RECORDED / folder).mkdir(parents=True, exist_ok=True)
        for path in there - set(found) if whole else ():
            (RECORDED / path).unlink()
        for path, text in found.items():
            (RECORDED / path).write_text(text, encoding="utf-8")
        return
    assert set(found) <= there
    assert set(found) == there or not whole
    differing = [line for path, text in found.items() for line in _difference(path, text)]
    if differing:
        pytest.fail(
            "if this is wanted, use --update-golden and name it in the commit:\n" + "\n".join(differing), pytrace=False
        )


def _difference(path: str, text: str) -> list[str]:
    recorded = (RECORDED / path).read_text(encoding="utf-8")
    if recorded == text:
        return []
    lines = unified_diff(recorded.splitlines(), text.splitlines(), f"recorded/{path}", "now", lineterm="", n=1)
    return list(islice(lines, LINES))
