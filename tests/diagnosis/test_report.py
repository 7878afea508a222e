"""Reports: what they contain, how large they are, and that nothing that a run wrote becomes markup."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, History, column, finished, history, ingested, opened
from layer_frames import frame
from session_records import batch_ingested

from trackside.media.pixels import encode
from trackside.wire import MediaItem
from trackside_daemon.diagnosis import report as contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents import html
from trackside_daemon.documents import markdown as md
from trackside_daemon.documents.elements import Bar
from trackside_daemon.documents.plots import png, svg
from trackside_daemon.documents.report import charts, document, findings
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.records import Alert, Event
from trackside_daemon.questions.diagnosis import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "</script><script>alert(1)</script><!--\"'\u202e|\n"


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    """A history with a plain run and one whose every text is hostile."""
    with history(tmp_path / "history") as opened_history:
        for run, name, lr in (("plain", "gpt-small", 0.1), ("evil", HOSTILE, 0.2)):
            text = HOSTILE if run == "evil" else "text"
            pushes = [
                (step, round((BEGIN + step) * 1e6), {"loss": 1 / (1 + step), text: float(step)}) for step in range(50)
            ]
            pushes[7][2]["loss"] = float("nan")
            session = replace(
                opened(run, name=name, config={"lr": lr, text: {text: text}}, tags=(text,)),
                about={"command": [text], "host": text, "git_commit": text, "hardware": {"gpus": [text], "cpus": 8}},
            )
            batch = ingested(run, pushes)
            phases = batch.__class__(batch.session, batch.number, batch.columns, batch.shift, {"data": 20.0})
            opened_history.put(
                [
                    session,
                    phases,
                    Event(run, 0, BEGIN + 10, text, 0, 10, {text: text}),
                    Alert("NonFinite", "critical", BEGIN + 30, run, {}, text, text, BEGIN + 40),
                    finished(run, cause=text),
                ]
            )
        opened_history.wait_until_packed()
        yield opened_history


def read(stored_history: History, *runs: str, size: int = SIZE) -> list[dict[str, Any]]:
    """Return the contents of reports, as they are after they were JSON."""
    with stored_history.database.reading() as connection:
        found = [contents.read_contents(connection, run, CostSection(), size) for run in runs]
    return [json.loads(json.dumps(one)) for one in found]


def page(reports: list[dict[str, Any]]) -> str:
    return html.write(document(reports))


def markdown(reports: list[dict[str, Any]]) -> str:
    return md.write(document(reports))


class Elements(HTMLParser):
    """The elements of a page and the text in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.code: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep text, and code by its element."""
        if self.tags and self.tags[-1][0] in {"script", "style"} and data.strip():
            self.code.append((self.tags[-1][0], data))
        else:
            self.text += data


def test_a_page_has_all_parts_and_escapes_what_runs_wrote(stored_history: History) -> None:
    text = page(read(stored_history, "plain", "evil"))
    found = Elements(text)
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert not {"img", "iframe", "link", "base", "object", "form"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") or name in {"src", "href", "style"} for _, some in found.tags for name in some)
    assert "://" not in text
    assert "\u202e" not in text
    for part in ("Where the time went", "data wait", "Causes, and what to try", "Curves", "Alerts", "What differs"):
        assert part in found.text
    assert "</script><script>alert(1)</script><!--\"'\\u202e|\\n" in found.text


def test_the_policy_permits_the_script_and_the_style_of_the_page_alone(stored_history: History) -> None:
    found = Elements(page(read(stored_history, "evil")))
    policy = next(some["content"] for tag, some in found.tags if some.get("http-equiv") == "Content-Security-Policy")
    hashes = {
        kind: f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'"
        for kind, code in found.code
        if not code.startswith("{")
    }
    assert policy == (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def test_media_are_data_of_a_fixed_type_and_their_names_and_texts_are_escaped(stored_history: History) -> None:
    session = opened("evil", name=HOSTILE).session
    table = json.dumps({"columns": [HOSTILE], "rows": [[HOSTILE, 1.5, None]], "omitted": 0}).encode()
    histogram = json.dumps({"edges": [0.0, 1.0, 2.0], "counts": [1, 0], "nonfinite": 0}).encode()
    items = [("text", HOSTILE.encode()), ("table", table), ("histogram", histogram)]
    items += [("image", encode(2, 1, 1, bytes((step, 0)))) for step in range(20)]
    media = [MediaItem(kind, HOSTILE, number, data, number) for number, (kind, data) in enumerate(items)]
    stored_history.put([batch_ingested(session, 99, media=media)])
    text = page(read(stored_history, "evil"))
    found = Elements(text)
    images = [some["src"] for tag, some in found.tags if tag == "img"]
    assert len(images) == 12  # the first, the newest, and some between
    assert images[0] == f"data:image/png;base64,{b64encode(items[3][1]).decode()}"
    assert images[-1] == f"data:image/png;base64,{b64encode(items[-1][1]).decode()}"
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 2  # the data and the page's own
    assert not any(name.startswith("on") for _, some in found.tags for name in some)
    assert "\u202e" not in text


def test_charts_have_nulls_for_nan_and_share_their_axes(stored_history: History) -> None:
    (report,) = read(stored_history, "plain")
    assert [chart["key"] for chart in report["charts"]] == ["loss", "text"]
    assert (len(report["axes"]), report["left_out"]) == (1, 0)
    assert report["axes"][0]["step"] == list(range(50))
    assert report["axes"][0]["time"][-1] == 49
    assert report["charts"][0]["last"][5:9] == [0.166667, 0.142857, None, 0.111111]
    assert report["charts"][0]["nonfinite"] == [7]
    assert "ends" not in report["charts"][0]
    assert "low" not in report["charts"][0]


def test_layers_that_stand_out_come_first_in_json_and_in_tables(stored_history: History) -> None:
    layers = {f"blocks.{block}": [1.0, -0.5] for block in range(30)} | {HOSTILE: [0.5]}
    session = opened("observed", name="observed")
    frames = [
        frame(8, layers, "weights", update_ratio=0.001, rank=1.0),
        frame(8, {**layers, "blocks.7": [0.0, 0.0]}, "gradients"),
    ]
    alert = Alert("DeadLayer", "warning", BEGIN, "observed", {"key": HOSTILE}, "x", "y", BEGIN + 5)
    stored_history.put([session, batch_ingested(session.session.id, 1, distributions=frames), alert])
    plain, observed = read(stored_history, "plain", "observed")
    assert plain["layers"] == []
    assert len(observed["layers"]) == contents.MOST_LAYERS
    first, second = observed["layers"][:2]
    assert (first["layer"], first["alerts"], first["norm"]) == (HOSTILE, ["DeadLayer"], 0.5)
    assert (second["layer"], second["gradient"], second["zeros"], second["entropy"]) == ("blocks.7", 0.0, 1.0, None)
    assert "Layers that stand out" not in markdown([plain])
    assert "| blocks.7 | 1.118 | 0.001 | 0 | 1 | - | - |  |" in markdown([observed])
    assert "blocks.7" in Elements(page([observed])).text
    assert "<script>alert" not in page([observed])


@pytest.mark.parametrize("steps", [30, 5000])
def test_a_chart_names_the_value_that_is_not_finite_at_its_end(stored_history: History, steps: int) -> None:
    """Also where its points stand for several samples."""
    values = [float("nan") if step == steps // 2 else 1.0 for step in range(steps - 1)] + [float("inf")]
    stored_history.put(
        [
            opened("broken"),
            ingested("broken", [(at, round((BEGIN + at) * 1e6), {"loss": one}) for at, one in enumerate(values)]),
        ]
    )
    (report,) = read(stored_history, "broken")
    (chart,) = report["charts"]
    middle, end = chart["nonfinite"]
    assert (chart["ends"], end, chart["last"][end]) == ("inf", len(chart["last"]) - 1, None)
    assert report["axes"][0]["step"][middle - 1] < steps // 2 <= report["axes"][0]["step"][middle]


def test_tables_beyond_the_size_are_left_out_and_named(stored_history: History) -> None:
    keys = [f"key{number}" for number in range(200)]
    stored_history.put([opened("wide"), column("wide", [*keys, "train/loss"], 1500), finished("wide", after=1500)])
    stored_history.wait_until_packed()
    (report,) = read(stored_history, "wide", size=100_000)
    assert report["charts"][0]["key"] == "train/loss"
    drawn = len(report["charts"])
    assert 20 < drawn < 200
    assert report["left_out"] == 201 - drawn
    assert all(50 <= len(chart["last"]) <= contents.LEAST_POINTS for chart in report["charts"])
    assert len(json.dumps([report["charts"], report["axes"]], separators=(",", ":"))) < 1.1 * 100_000
    assert f"{201 - drawn} more keys do not fit into this file" in page([report])
    assert len(page(read(stored_history, "wide")).encode()) < 2_000_000


def test_markdown_has_no_markup_of_a_run(stored_history: History) -> None:
    text = markdown(read(stored_history, "plain", "evil"))
    assert "| duration | 1 min | 1 min |\n" in text
    assert "## What differs in the configuration" in text
    assert not re.search(r"(?<!\\)[<>]", text)
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines.splitlines()}) == 1


def test_an_svg_has_a_line_and_a_legend_entry_per_run_and_round_ticks(stored_history: History) -> None:
    reports = read(stored_history, "plain", "evil")
    drawn = charts(reports)
    root = ET.fromstring(svg(drawn[0], [report["axes"] for report in reports]))
    space = "{http://www.w3.org/2000/svg}"
    lines = [line.get("points", "").split() for line in root.iter(f"{space}polyline")]
    assert [len(points) for points in lines] == [49, 49]
    assert {element.tag.removeprefix(space) for element in root.iter()} == {"svg", "rect", "text", "path", "polyline"}
    (cross, _) = [path for path in root.iter(f"{space}path") if path.get("stroke-width") == "1.5"]
    assert cross.get("d", "").startswith("M157.6 313l")  # at step 7
    texts = [element.text for element in root.iter(f"{space}text")]
    assert texts[0] == "loss"
    assert {"0.2", "0.4", "10", "40"} <= set(texts)
    assert "gpt-small" in texts


@pytest.mark.parametrize(
    "values", [[], [None], [3.0], [0.0, 0.0], [1e308, -1e308], [1e-320, 2e-320], [1e17, 1e17 + 16]]
)
def test_an_svg_of_odd_values_is_drawn(values: list[float | None]) -> None:
    axis = {"step": list(range(len(values))), "time": [0.0] * len(values)}
    chart = {"key": "k", "lines": [{"label": "r", "run": 0, "axis": 0, "last": values}]}
    text = svg(chart, [[axis]])
    assert "nan" not in text
    assert "inf" not in text
    ET.fromstring(text)


def test_a_report_has_results_captures_and_what_changed(stored_history: History) -> None:
    again = replace(
        opened("again", name="gpt-small", attempt=0, started=BEGIN + 5000, config={"lr": 0.3, "text": None})
    )
    stored_history.put(
        [
            replace(again, about={"command": ["train.py", HOSTILE], "git_commit": "f00", "packages": {"torch": "2.9"}}),
            column("again", ["loss"], 9),
            Event("again", 0, BEGIN + 5001, "summary", 0, 1, {HOSTILE: HOSTILE, "best": 1.25}),
            Capture("c" * 12, "again", 0, "stacks", "person", BEGIN + 5030, state="failed", reason=HOSTILE),
            finished("again", state="failed", after=5060),
            opened("again", name="gpt-small", attempt=1, started=BEGIN + 6000, config={"lr": 0.4}),
            finished("again", attempt=1, after=6060),
        ]
    )
    stored_history.wait_until_packed()
    (report,) = read(stored_history, "again")
    assert report["since"]["id"] == "plain"
    text = markdown([report])
    for line in (
        r"| best | 1.25 |",
        r"| lr | 0.1 | 0.4 |",  # since the baseline
        r"| lr | 0.3 | 0.4 |",  # since the first attempt
        r"| package torch | 2.9 | \- |",
        "## What changed in attempt 1 of gpt-small\n",
        "## What changed in gpt-small since run plain\n",
    ):
        assert line.replace(r"\-", "-") in text, line
    found = Elements(page([report]))
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "</script><script>alert(1)" in found.text


def test_the_bars_of_the_accounts_follow_each_other(stored_history: History) -> None:
    (report,) = read(stored_history, "plain")
    table = next(one for one in findings([report]) if one.title == "where the time went")
    (_, whole), *rows = table.rows
    assert isinstance(whole, Bar)
    parts = [row[1].parts[0] for row in rows if isinstance(row[1], Bar)]
    assert list(whole.parts) == parts
    assert parts[0][0] == 0.0
    assert [begin for begin, *_ in parts[1:]] == [end for _, end, _ in parts[:-1]]
    assert parts[-1][1] == pytest.approx(1.0)


def test_an_account_has_one_color_in_all_runs(stored_history: History) -> None:
    one, other = read(stored_history, "plain", "plain")
    one["diagnosis"]["ledger"] = {"compute": 1.0, "wasted": 1.0, "data": 1.0}
    other["diagnosis"]["ledger"] = {"compute": 1.0, "data": 1.0}
    table = next(each for each in findings([one, other]) if each.title == "where the time went")
    colors = {row[0]: {cell.parts[0][2] for cell in row[1:] if isinstance(cell, Bar)} for row in table.rows[1:]}
    assert colors == {"useful compute": {"c0"}, "steps after divergence or NaN": {"c1"}, "data wait": {"c2"}}


def test_an_alert_at_the_end_of_a_run_is_within_its_bar(stored_history: History) -> None:
    (report,) = read(stored_history, "plain")
    run, end = report["run"], report["run"]["started"] + report["diagnosis"]["wall_seconds"]
    event = {"kind": "rank_ended", "time": end, "rank": 0, "step": None, "fields": {"state": "finished", "cause": ""}}
    report["events"] = [{**event, "run": run["id"]}]
    text = page([report])
    assert '<rect class="info" x="99.60" width="0.40"' in text
    assert "<td>state=finished</td>" in text


def test_a_png_is_drawn_of_what_runs_wrote(stored_history: History) -> None:
    reports = read(stored_history, "plain", "evil")
    chart = charts(reports)[0]
    odd = {"key": "$x_{$", "lines": [{**line, "label": "_$\\alpha"} for line in chart["lines"]]}
    for one in (chart, odd):
        drawn = png([one], [report["axes"] for report in reports])
        assert drawn.startswith(b"\x89PNG")
        assert drawn[16:24] == (1440).to_bytes(4, "big") + (720).to_bytes(4, "big")


def test_a_run_that_pushed_nothing_has_a_report(stored_history: History) -> None:
    stored_history.put([opened("empty"), finished("empty")])
    text = page(read(stored_history, "empty"))
    assert "Curves" not in text
    assert "start-up" in text
