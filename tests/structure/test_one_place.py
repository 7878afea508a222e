"""Each of these rules has one place in the product."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trackside import limits
from trackside_daemon.causes.engine import CAUSES
from trackside_daemon.questions import table

if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCT = [Path(__file__).parents[2] / folder for folder in ("client/trackside", "daemon/trackside_daemon")]

PLACES = {
    "the nearest name to an unknown one": (r"get_close_matches", {"config/near.py"}),
    "a value that pydantic refuses, in one line": (
        r"\.errors\(\)\[0\]\[|removeprefix\(.Value error",
        {"config/near.py"},
    ),
    # The tables of notebooks and the samples of exports are written below the documents.
    "a document as text, Markdown, HTML or CSV": (
        r"<t[dhr][ >]|[\"']\|? ?---[\"'|]|textwrap\.wrap|csv\.writer|csv_line",
        {
            *(f"documents/{form}.py" for form in ("csv", "html", "markdown", "text")),
            "history/files/export.py",
            "model/text.py",
            "history/frames/html.py",
        },
    ),
    # NVML and file systems that hang have workers with protocols of their own: signs of life, and an idle one in reserve.
    "a request to a process of our own": (
        r"\bWorkerProcess\(",
        {"linux/worker_call.py", "nvml/handle/handle.py", "collectors/host/filesystem/remote.py"},
    ),
    "the limits of a process of our own": (
        r"\blimit_(this_process|time)\(",
        {"linux/worker_call.py", "linux/process_limits.py"},
    ),
    "the memory of a process of our own": (r"\b512 ?<< ?20\b", {"linux/process_limits.py"}),
    "what depends on the kind of a capture": (
        r"[\"']flight_recorder[\"']",
        {"model/capture.py", "captures/kinds/flight_recorder.py", "service/hangs.py"},
    ),
    "the open of a file that is checked first": (
        r"O_PATH\b",
        {"linux/foreign_file.py", "cli/sources/daemon_lookup.py"},
    ),
    "what the system says of a failed call": (
        r"strerror(, None\))? or (str\()?error\b|strerror\.lower",
        {"os_errors.py"},
    ),
    "what the log has already": (
        r"self\._\w*(logged|warned|last_error)\b[^=]*= (set\(\)|False|\"\")",
        {"log_once.py"},
    ),
    "the words of the accounts of time": (
        r"GPUs idle before|synchronization of weights|\ballreduce\b",
        {"model/time_ledger.py"},
    ),
    "the spread of normal values by their median distance": (r"\b1\.4826", {"model/robust.py"}),
    "how far the clock of another machine may be ahead": (r"AHEAD_SECONDS = ", {"model/records.py"}),
    # The client imports nothing of the daemon. The others read the lines of pushes and of W&B, whose values have types.
    "nested settings as one list": (
        r"def _?flat(tened)?\(",
        {
            *("model/configuration.py", "row_queue.py", "benchmark/results.py"),
            *("history/files/json_format.py", "cli/commands/replay_rows.py", "bridges/wandb/log_run.py"),
        },
    ),
    # What may not import the text of the daemon, the columns of the terminal, a label and coordinates have their own.
    "a size, a share or a duration in words": (
        r"\{[^{}\"]*(/ ?(1024|2 ?\*\* ?[1-4]0|1e[369])|\b100 \*|\* 100\b)[^{}:\"]*:[^{}\"]*\}",
        {
            *("model/text.py", "terminal/styled_lines.py", "collectors/process/shm.py", "documents/html.py"),
            *("environment/exit_status.py", "checkpoints/checkpoints.py", "benchmark/results.py"),
            "integrations/epoch_line.py",
        },
    ),
    "the methods that --auto replaces": (
        r"SummaryWriter\b|MlflowClient|_BaseDataLoaderIter|_LoggerConnector|CallbackHandler|ShardedGradScaler",
        {"auto/startup/trackside_patched_methods.py", "drawn_batches.py"},
    ),
    "the address of Ray's dashboard": (r"\b8265\b", {"collectors/settings.py"}),
    "parameters of a request": (r"\.query_params", {"web/api/history_access.py", "web/app.py"}),
}


@cache
def sources() -> dict[str, str]:
    """Return the product's modules: their texts by their paths in their package."""
    files = [(root, path) for root in PRODUCT for path in root.rglob("*.py")]
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for root, path in files}


@pytest.mark.parametrize("what", PLACES)
def test_it_is_written_in_one_place(what: str) -> None:
    pattern, places = PLACES[what]
    found = {
        f"{path}:{number}: {line.strip()}"
        for path, text in sources().items()
        if path not in places and re.search(pattern, text)  # a quarter of the time of asking for each line
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    }
    assert not found, f"{what}: use {', '.join(sorted(places))}"


def test_the_page_has_no_limit_of_its_own_for_a_straggler() -> None:
    """The daemon judges by the limit that is configured, and the page shows its verdict."""
    pages = (PRODUCT[1] / "web" / "static").rglob("*.js")
    assert [
        str(page) for page in pages if re.search(r"\bSLOW\b|straggl\w*\W+1\.\d", page.read_text(encoding="utf-8"))
    ] == []


def test_the_page_takes_the_words_of_the_daemon_from_its_vocabulary() -> None:
    """docs/generate.py writes vocabulary.js: a list that the page had of its own would differ after the next change."""
    words = r"\"(train/loss|perplexity|bleu|stddev)\"|\"failed\", \"|\", \"failed\"|\"warning\", \"(critical|info)\"|\b(perplexity|bleu)\|"
    pages = sorted((PRODUCT[1] / "web" / "static").rglob("*.js"))
    found = [path.name for path in pages if re.search(words, path.read_text(encoding="utf-8"))]
    assert found == ["vocabulary.js"]


def test_a_page_asks_again_only_as_polling_decides() -> None:
    """polling.js asks for nothing in a hidden tab; charts, a search while somebody types and a batch have timers of their own."""
    static = PRODUCT[1] / "web" / "static"
    asks = re.compile(r"setInterval\(|setTimeout\([^;\n]*(load|getJson|fetch|families)", re.IGNORECASE)
    pages = sorted(static.rglob("*.js"))
    found = {str(page.relative_to(static)) for page in pages if asks.search(page.read_text(encoding="utf-8"))}
    assert found == {"charts/chart.js", "picker.js", "runs/curves.js"}


def test_a_cause_is_found_in_the_package_of_causes() -> None:
    product = PRODUCT[1]
    files = [path for path in product.rglob("*.py") if path.parent != product / "causes"]
    assert [str(path) for path in files if re.search(r"\b(Cause|Rise)\(", path.read_text(encoding="utf-8"))] == []
    assert len({kind.name for kind in CAUSES}) == len(CAUSES)


ADVICE = re.compile(
    r"(?:^|[.;\n] ?)(?:Check|Try|Stop|Resume|Restart|Lower|Raise|Drain|Reseat|Replace|Reset|Delete|Use fewer|Fewer) \w"
)
"""The beginning of a sentence about what to do next."""


@pytest.mark.parametrize("package", ["alerts", "checkpoints", "detectors", "diagnosis", "training"])
def test_the_next_steps_of_an_alert_are_in_the_catalogue(package: str) -> None:
    files = (PRODUCT[1] / package).rglob("*.py")
    found = [f"{file}: {text}" for file in files for text in _texts(ast.parse(file.read_text(encoding="utf-8")))]
    assert [one for one in found if ADVICE.search(one.partition(": ")[2])] == [], "use model/troubles.md"


def _texts(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module, without its docstrings."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("name", [name for name in vars(limits) if name.isupper()])
def test_a_limit_of_client_and_daemon_is_in_their_common_file(name: str) -> None:
    found = [path for path, text in sources().items() if re.search(rf"^{name}\b.* = ", text, re.MULTILINE)]
    assert [path for path in found if path != "limits.py"] == []


def test_a_default_of_a_detector_is_in_its_settings() -> None:
    """A second copy would be what tests judge by, while a daemon judges by the first."""
    found = [
        f"{path.name}: {ast.unparse(value)}"
        for path in (PRODUCT[1] / "detectors").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for value in [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        if (isinstance(value, ast.Name) and value.id not in {"DEFAULTS", "BY_NAME", "STALL_AFTER", "STRAGGLER_WINDOW"})
        or (isinstance(value, ast.Constant) and isinstance(value.value, float) and value.value)
    ]
    assert found == [], "use DEFAULTS of detectors/settings.py"


def test_no_module_gives_a_name_to_two_things() -> None:
    """The second constant would stand for the first one in the functions above it, too; ruff sees that of functions alone."""
    twice = {}
    for root in PRODUCT:
        for path in root.rglob("*.py"):
            nodes = ast.parse(path.read_text(encoding="utf-8")).body
            targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
            targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
            names = Counter(
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(getattr(name, "ctx", None), ast.Store) and isinstance(name, ast.Name)
            )
            if found := [name for name, count in names.items() if count > 1]:
                twice[str(path)] = found
    assert twice == {}


CALLBACKS = {"TracksideCallback", "TracksideLogger"}  # each framework's own, under one name in the documentation


def test_a_class_has_its_name_alone() -> None:
    """A question has the name of what it returns, and is asked as an attribute of the table."""
    places: dict[str, list[str]] = {}
    for root in PRODUCT:
        for path in root.rglob("*.py"):
            names = [
                node.name
                for node in ast.parse(path.read_text(encoding="utf-8")).body
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            ]
            questions = table.__all__ if path.parent.name == "questions" else []
            for name in set(names) - CALLBACKS - set(questions):
                places.setdefault(name, []).append(str(path.relative_to(root)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
