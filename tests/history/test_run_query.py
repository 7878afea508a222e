"""Select runs with the query language, and what a query that selects none says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, history, opened
from history.builders import instructions, session_id

from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.read import run_query
from trackside_daemon.history.record import run_changes
from trackside_daemon.questions.question import InvalidError, Live
from trackside_daemon.questions.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from histories import History
    from history.builders import Bench

    from trackside_daemon.questions.question import History as Asked

DAY = 86400.0
LIVE = Live(CostSection, lambda: 1.3)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Return a history of five runs, which differ in what people ask for."""
    with history(tmp_path_factory.mktemp("history")) as made:
        now = time.time()
        _add(made, "sweep-a", {"optim": {"lr": 3e-4}, "bs": 64}, started=now - 9 * DAY, tags=["sweep", "to keep"])
        _add(
            made,
            "sweep-b",
            {"optim": {"lr": "0.001"}, "bs": 128},
            started=now - 3 * DAY,
            state="failed",
            tags=["sweep"],
        )
        _add(made, "gpt", {"optim": {"lr": 1e-3}, "bs": 32, "amp": True}, started=now - 2 * DAY, notes="the Baseline")
        _add(made, "gpt-debug", {"bs": 64, "act": "relu"}, started=now - DAY, tags=["debug"], steps=30)
        _add(made, "exp:7", None, started=now - DAY / 2, state="stopped")
        yield made.database


def _add(
    made: History,
    run: str,
    config: Any,
    *,
    started: float,
    state: str = "finished",
    tags: Any = (),
    notes: str = "",
    steps: int = 10,
) -> None:
    made.put(
        [
            opened(run, started=started, config=config),
            column(run, ["loss", "eval/acc"], steps),
            finished(run, state=state, after=started - BEGIN + 60),
        ]
    )
    made.writer.call(lambda store: run_changes.describe(store, run, name=None, notes=notes, tags=list(tags))).result(60)
    made.wait_until_packed()


def selected(database: Asked, query: str) -> str:
    """Return the names of the selected runs, oldest first."""
    return " ".join(run["name"] for run in reversed(Runs(query=query).answer(database, LIVE)["runs"]))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("gpt", "gpt gpt-debug"),
        ("GPT -debug", "gpt"),
        ("baseline", "gpt"),
        ("failed", "sweep-b"),
        ("failed|debug", "sweep-b gpt-debug"),
        ("state:failed|stopped", "sweep-b exp:7"),
        ("-failed -stopped -sweep", "gpt gpt-debug"),
        ("lr=3e-4", "sweep-a"),
        ("lr=0.0003", "sweep-a"),
        ("lr=1e-3", "sweep-b gpt"),
        ("optim.lr=3e-4|1e-3", "sweep-a sweep-b gpt"),
        ("config.optim.lr>=.001", "sweep-b gpt"),
        ("lr!=1e-3", "sweep-a"),
        ("-lr=1e-3", "sweep-a gpt-debug exp:7"),
        ("lr=3e-4 bs>=64", "sweep-a"),
        ("bs>=64 tag:sweep failed", "sweep-b"),
        ("bs<64", "gpt"),
        ("tag:swe", ""),
        ("tag=swe*", "sweep-a sweep-b"),
        ('tag:"to keep"', "sweep-a"),
        ("act=relu", "gpt-debug"),
        ("act:el", "gpt-debug"),
        ("act=el", ""),
        ("act:*u", "gpt-debug"),
        ("amp=true", "gpt"),
        ("older:7d", "sweep-a"),
        ("newer:36h", "gpt-debug exp:7"),
        ("duration<61s bs=32", "gpt"),
        ("duration>1h", ""),
        ("step>=20", "gpt-debug"),
        ("eval/acc>20", "gpt-debug"),
        ("loss<10", "sweep-a sweep-b gpt exp:7"),
        ("/^gpt/", "gpt gpt-debug"),
        ("/sw.*b$|^gpt$/", "sweep-b gpt"),
        ("-/sweep/ bs=64", "gpt-debug"),
        ('"exp:7"', "exp:7"),
        ('"failed"', ""),
        ("  ", "sweep-a sweep-b gpt gpt-debug exp:7"),
    ],
)
def test_a_query_selects_the_runs_that_all_its_terms_match(database: Asked, query: str, names: str) -> None:
    assert selected(database, query) == names


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("lr=4e-4", "no run has lr=4e-4; the nearest is lr=0.0003"),
        ("lrr=3", "no run has lrr; did you mean lr?"),
        ("exp:7", "no run has exp; quotes search for it as a text"),
        ("swep-a", "no run matches swep-a; did you mean sweep-a?"),
        ("tag:sweap", "no run has tag:sweap; did you mean sweep?"),
        ("act=gelu", "no run has act=gelu; did you mean relu?"),
        ("failed bs=32", "each term matches a run, but no run matches all of them"),
        ("act=silent", "no run has act=silent; such as act=relu"),
        ("newer:1h", "no run matches newer:1h"),
        ("/^x/", "no run matches /^x/"),
        ("gpt", ""),
    ],
)
def test_a_query_that_selects_nothing_names_what_is_near(database: Asked, query: str, hint: str) -> None:
    assert Runs(query=query).answer(database, LIVE)["hint"] == hint


@pytest.mark.parametrize(
    "query",
    [
        '"open',
        "lr>big",
        "older:soon",
        "started>soon",
        "/(a|a)/",
        "/(a+)+b/",
        r"/(.)\1/",
        "/a*b*c*/",
        "/a?a?a?aaa/",
        "/[/",
        "x" * 1001,
    ],
)
def test_a_query_that_cannot_be_read_is_refused_in_one_line(database: Asked, query: str) -> None:
    with pytest.raises(InvalidError, match=r"^query: [^\n]+$"):
        Runs(query=query).answer(database, LIVE)


def test_a_limit_counts_selected_runs_and_the_answer_has_the_terms(database: Asked) -> None:
    answer = Runs(query=" sweep  -lr=3e-4 ", limit=1).answer(database, LIVE)
    assert [run["name"] for run in answer["runs"]] == ["sweep-b"]
    assert (answer["terms"], answer["among"]) == (["sweep", "-lr=3e-4"], 5)


def test_the_dearest_patterns_end_soon_on_the_longest_names() -> None:
    """A pattern with two repeats needs time that is cubic in the length: a name's first 256 characters are searched."""
    (term,) = run_query.parse("/a*a*b$/")
    assert term.pattern is not None
    assert term.pattern.search("a" * 256) is None


def test_a_pattern_that_takes_too_long_is_given_up(database: Asked) -> None:
    runs = Runs().answer(database, LIVE)["runs"]
    with database.reading() as connection, pytest.raises(run_query.QueryError, match=r"^/a/: takes too long"):
        run_query.select(connection, run_query.parse("/a/"), runs, seconds=-1.0)


@pytest.mark.parametrize("selected", [{}, {"query": "loss>=0"}, {"name": "live-"}])
def test_pages_have_each_live_run_once(tmp_path: Path, selected: dict[str, Any]) -> None:
    names = [f"live-{number}" for number in range(5)]
    with history(tmp_path) as made:
        for name in names:
            made.put([opened(name), column(name, ["loss"], 3)])
        made.wait_until_packed()
        facts = [{"id": name, "state": "running", "attempt": 0, "ranks": []} for name in names]
        live, found, after = Live(CostSection, lambda: 1.3, runs=lambda: facts), list[str](), ""
        while after is not None:
            page = Runs(limit=2, after=after, **selected).answer(made.database, live)
            found, after = [*found, *(run["id"] for run in page["runs"])], page["next"]
    assert sorted(found) == names


def test_the_lowest_rank_of_a_run_is_not_sought_once_for_each_rank(bench: Bench) -> None:
    bench.open(session_id(1))
    counts = []
    for ranks in (200, 400):
        rows = ((rank,) for rank in range(1, ranks))
        bench.connection.executemany("INSERT OR IGNORE INTO stream (run, attempt, rank) VALUES (1, 0, ?)", rows)
        bench.connection.execute("INSERT OR IGNORE INTO series (stream, key, min) SELECT id, 'loss', rank FROM stream")
        assert run_query.values(bench.connection, ["loss"])["run"]["loss"]["min"] == 0.0
        counts.append(instructions(bench.connection, lambda: run_query.values(bench.connection, ["loss"])))
    assert counts[1] < 3 * counts[0]


def test_the_loss_of_a_live_run_is_that_of_the_lowest_rank_that_has_one(bench: Bench) -> None:
    bench.open(session_id(1))
    ranks = [{"rank": 0, "step": 5}, {"rank": 1, "step": 5, "loss": 0.5}, {"rank": 2, "step": 5, "loss": 0.25}]
    live = {"id": "run", "name": "run", "state": "running", "attempt": 0, "world_size": 3, "ranks": ranks}
    (run,) = Runs().answer(bench.database, Live(CostSection, lambda: 1.3, runs=lambda: [live]))["runs"]
    assert (run["step"], run["loss"]) == (5, 0.5)
