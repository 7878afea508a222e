"""`trackside compare`: conditions, statistics over seeds, gates, formats and the order of runs."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import struct
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from histories import BEGIN, finished, history, ingested, opened

from trackside.wire import ProcessInfo
from trackside_daemon.cli.gate import Condition, ExpressionError, GateValue, NotANumberError
from trackside_daemon.cli.main import load
from trackside_daemon.cli.output import ordered
from trackside_daemon.model.records import Event, RunState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., Result]

NUMBERS = {"loss": 1.9, "eval/top1": 0.8, "step_time": 0.04, "loss.final": 2.0, "nan": nan, "a key": 1.0}


def read(value: GateValue) -> float:
    """Return a number; the baseline's are a tenth smaller, and other functions return 3."""
    return 3.0 if value.function != "mean" else NUMBERS[value.key] * (0.9 if value.baseline else 1.0)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("loss > 1.02 * baseline", True),
        ("loss > 1.2 * baseline", False),
        ("1.02 * baseline < loss and step_time < 1", True),
        ("not (loss < 2) or eval/top1 >= 0.9", False),
        ("eval/top1 / 2 == 0.4", True),
        ("loss/baseline > 1.1", True),
        ("\"a key\" == 1 and 'a key' != 2", True),
        ("1 < loss < 2", True),
        ("-loss - 1 < -2.5", True),
        ("loss.final > baseline(loss) + 0.2", True),
        ("ratio_low(step_time) > 2 and std(baseline(loss)) > 2", True),
        ("loss > 1 or nan > 0", True),
        ("loss > 1 and loss > 2", False),
    ],
)
def test_a_condition_holds_or_does_not(text: str, holds: bool) -> None:
    assert Condition(text).holds(read) is holds


@pytest.mark.parametrize("text", ["nan > 0", "not nan > 0", "loss / (loss - loss) > 1"])
def test_a_condition_on_what_is_no_number_has_no_answer(text: str) -> None:
    with pytest.raises(NotANumberError):
        Condition(text).holds(read)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("loss", "loss: a comparison with"),
        ("loss >", "invalid syntax"),
        ("loss > baseline(x) + baseline", "write baseline(KEY) in a comparison of 2 keys"),
        ("baseline > 2", "of no keys"),
        ("foo(loss) > 1", "foo: there is no such function"),
        ("std(1) > 1", "std(KEY) is expected"),
        ('__import__("os").system("x") > 1', "there is no such function"),
        ("loss > [1]", "a number, a key, or a function"),
        ("loss > True", "a number, a key"),
        ("loss ** 9 > 1", "a number, a key"),
        ("(lambda: loss)() > 1", "there is no such function"),
        ("[x for x in y]", "a comparison with"),
        ("loss > 1 if 1 else 2", "a comparison with"),
        ("(" * 900 + "1" + ")" * 900 + " > 1", "too many nested parentheses"),
        ("-" * 1900 + "1 > 1", "it cannot be parsed"),
        ("1" * 3000, "more than 2000 letters"),
        ("loss > \0", ""),
    ],
)
def test_what_is_no_condition_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        Condition(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 3000


def value(item: dict[str, Any], key: str) -> Any:
    return item.get(key)


def test_items_are_ordered_by_numbers_then_texts_then_the_rest() -> None:
    items: list[dict[str, Any]] = [{"x": 2}, {"x": "b"}, {}, {"x": nan}, {"x": 1}, {"x": "a"}]
    assert [item.get("x") for item in ordered(items, "x", value)][:4] == [1, 2, "a", "b"]
    assert [item.get("x") for item in ordered(items, "-x", value)][:4] == [2, 1, "b", "a"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of three seeds each of two configurations, the second one slower and worse, and of one run that is NaN."""
    place = tmp_path_factory.mktemp("seeds")
    draw = random.Random(1)
    with history(place) as one:
        for name, slow, at in (("base", 1.0, 0), ("wide", 1.05, 10_000), ("broken", 1.0, 20_000)):
            for seed in range(1 if name == "broken" else 3):
                began = BEGIN + at + 1000 * seed
                times = [began]
                for _ in range(300):
                    times.append(times[-1] + 0.04 * slow * (1 + abs(draw.gauss(0, 0.02))))
                pushes = [
                    (step, round(1e6 * moment), {"loss": slow / (1 + step / 50)}) for step, moment in enumerate(times)
                ]
                best = nan if name == "broken" else slow * 1.8 + draw.gauss(0, 0.001)
                results = {"best": "nan" if best != best else best, "note": f"seed {seed}"}  # noqa: PLR0124
                one.put(
                    [
                        opened(
                            f"{name}{seed}",
                            name=name,
                            started=began,
                            config={"optim": {"lr": slow}},
                            tags=(name, "all"),
                        ),
                        ingested(f"{name}{seed}", pushes),
                        Event(f"{name}{seed}", 0, times[-1], "summary", 0, 300, results),
                        RunState(f"{name}{seed}", 0, "finished", "", times[-1]),
                    ]
                )
        one.wait_until_packed()
    return place


@pytest.fixture
def run(seeds: Path) -> Run:
    """Run a command on the history, in this process."""

    def run_command(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(load(name), [*arguments, f"--storage.path={seeds}"])

    return run_command


GATE = "best > 1.02 * baseline or step_time > 1.02 * baseline"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["base0", "base1", "--fail-if", GATE], 0, f"gate passed: {GATE}"),
        (["base0", "wide0", "--fail-if", GATE], 3, "wide: best 1.8"),
        (
            ["base*", "wide*", "--group-by", "name", "--fail-if", "ratio_low(step_time) > 1.03"],
            3,
            "ratio_low(step_time) 1.0",
        ),
        (["base*", "wide*", "--group-by", "config.lr", "--baseline", "1.05", "--fail-if", GATE], 0, "gate passed"),
        (["wide0", "wide1", "--baseline", "base", "--fail-if", "loss > 1.02 * baseline"], 3, "wide: loss 0."),
        (["wide2", "--fail-if", "loss > 1.02 * baseline"], 0, "gate passed"),  # against the last of the same name
        (["wide0", "--baseline", "base", "--fail-if", "n(best) > 0"], 3, "n(best) 1"),
        (["base0", "broken", "--fail-if", "best > 1.02 * baseline"], 3, "broken: best NaN"),
        (["base0", "--fail-if", "loss > 2 * baseline"], 2, "needs a baseline"),
        (["base0", "base1", "--fail-if", "los > 1"], 2, "los: base has no such number; trackside show base1"),
        (["base0", "base1", "--fail-if", "loss/2 > 1"], 2, "write spaces around / to divide"),
        (["base0", "base1", "--fail-if", "loss >"], 2, "such as: --fail-if 'loss > 1.02 * baseline'"),
        (["base0", "--group-by", "seed"], 2, "it must be tag, name, or config.KEY"),
        (["base0", "--group-by", "config.lrr"], 2, "config.lrr: no run has this key; did you mean config.optim.lr?"),
        (["base0", "base1", "--sort", "loss"], 0, "the baseline is base, the first before --sort"),
        (["base0", "base1", "--sort", "foo"], 2, "--sort foo: no run has such a number"),
        (["nothing-*"], 2, "nothing-*: no run has such a name"),
        (["base0", "--format", "xml"], 2, "--format: 'xml' is not one of"),
        (["base0", "base1", "--baseline", "none"], 2, "there is none"),
    ],
)
def test_the_gate_and_its_exit_status(run: Run, arguments: list[str], status: int, message: str) -> None:
    ended = run("compare", *arguments)
    assert (ended.exit_code, message in ended.output) == (status, True), ended.output


def test_a_loss_that_becomes_nan_fails_the_gate_and_is_no_baseline(tmp_path: Path) -> None:
    """One NaN at the end is enough; a NaN before the compared last tenth, or that a later attempt replaced, is not."""
    places = {"clean": (), "ends": (299,), "early": (100,), "resumed": (295,)}
    with history(tmp_path) as one:
        for number, (name, broken) in enumerate(places.items()):
            rows = [
                (
                    step,
                    round(1e6 * (BEGIN + step)),
                    {"loss": nan if step in broken else 1.0, "grad_norm": nan if step % 9 else 1.0},
                )
                for step in range(300)
            ]
            one.put([opened(name, name=name, started=BEGIN + number), ingested(name, rows)])
        again = [(step, round(1e6 * (BEGIN + 400 + step)), {"loss": 1.0, "grad_norm": 1.0}) for step in range(280, 300)]
        one.put(
            [opened("resumed", name="resumed", attempt=1, started=BEGIN + 600), ingested("resumed", again, attempt=1)]
        )

    def ended(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(load("compare"), [*arguments, f"--storage.path={tmp_path}"])
        return result.exit_code, result.output

    status, out = ended("clean", "ends", "--fail-if", "ratio(loss) > 2")
    assert (status, "gate failed: ratio(loss) > 2: ends: ratio(loss) NaN" in out) == (3, True)
    assert re.search("^  loss +baseline +NaN$", out, re.MULTILINE), out
    assert ended("clean", "ends", "--fail-if", "loss > 2 * baseline")[0] == 3
    assert ended("ends", "clean", "--fail-if", "loss > 2")[0] == 0
    for condition in ("ratio(loss) > 2", "loss > 2 * baseline"):
        status, out = ended("ends", "clean", "--fail-if", condition)
        assert (status, "loss: values of the baseline ends are NaN or infinite" in out) == (2, True), out
    for name in ("early", "resumed"):
        assert ended("clean", name, "--fail-if", "ratio(loss) > 2 or ratio(grad_norm) > 2")[0] == 0


def test_a_table_of_seeds_has_means_intervals_and_ratios(run: Run) -> None:
    out = run("compare", "base*", "wide*", "--group-by", "name", "--sort", "-best").stdout
    assert out.split()[:6] == ["wide", "(3", "runs)", "base", "(3", "runs)"]
    for line, expected in (("results:", "best"), ("against the baseline:", "step_time"), ("metrics:", "loss final")):
        assert out.index(line) < out.index(expected, out.index(line))
    assert "± 0.00" in out
    assert "std 0.00" in out
    ratio = out[out.index("step_time") :].splitlines()[0]
    assert "+4." in ratio or "+5." in ratio
    assert ratio.endswith("baseline")
    assert "3 values" not in out  # three are listed


def test_csv_has_a_line_for_each_group_and_md_a_table_for_each_section(run: Run) -> None:
    rows = list(
        csv.DictReader(io.StringIO(run("compare", "base*", "wide*", "--group-by", "tag", "--format", "csv").stdout))
    )
    assert [(row["name"], row["best.n"]) for row in rows] == [("base", "3"), ("all", "6"), ("wide", "3")]
    assert float(rows[2]["best.low"]) < 1.05 * 1.8 < float(rows[2]["best.high"])
    assert 1.04 < float(rows[2]["best.ratio_low"]) < 1.05 < float(rows[2]["best.ratio_high"]) < 1.06
    single = list(csv.DictReader(io.StringIO(run("compare", "base0", "wide0", "--format", "csv").stdout)))
    assert (single[1]["note"], single[1]["runs"]) == ("seed 0", "wide0")
    text = run("compare", "base0", "wide0", "--format", "md").stdout
    assert (
        "## Against the baseline\n\n|  | base \\(base0\\) | wide \\(wide0\\) |\n| --- | --- | --- |\n| best | baseline | +5"
        in text
    )


def test_json_has_the_gate_and_the_effects(run: Run) -> None:
    ended = run("compare", "base0", "wide0", "--json", "--fail-if", GATE)
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["gate"]["failed"], found["baseline"]) == (3, True, ["base0"])
    assert found["results"]["note"] == ["seed 0", "seed 0"]
    effects = {effect["quantity"]: effect for effect in found["groups"][1]["effects"]}
    assert 1.04 < effects["step_time"]["low"] < effects["step_time"]["high"] < 1.06
    assert found["groups"][0]["values"]["best"]["std"] is None


def test_lists_have_the_results_and_are_ordered_by_them(run: Run) -> None:
    out = run("runs", "--sort", "-best").stdout.splitlines()
    assert out[0].split()[7] == "RESULTS"
    assert out[1].split()[1] == "wide"
    assert out[-1].split()[1] == "broken"
    assert "best=nan" in out[-1]
    refused = run("runs", "--sort", "x")
    assert (refused.exit_code, "--sort x: order: no run has x" in refused.output) == (2, True)
    assert run("runs", "--sort", "-config.lr").stdout.splitlines()[1].split()[1] == "wide"
    assert "results:\n  best  1.8" in run("show", "base0").stdout


def test_a_table_of_groups_has_short_commands_and_each_key_once_against_the_baseline(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        for place, name in enumerate(("base0", "base1", "wide0", "wide1")):
            about = ProcessInfo(command=("python", "train.py", *(f"--flag-{at}={name}" for at in range(20))))
            pushes = [
                (step, round(1e6 * (BEGIN + 1000 * place + step)), {"loss": 1 / (1 + step)}) for step in range(50)
            ]
            stated = [Event(name, 0, BEGIN, "summary", 0, 50, {"loss": 0.5})] if name == "wide0" else []
            one.put([opened(name, name=name[:-1], about=about), ingested(name, pushes), *stated, finished(name)])
    done = CliRunner().invoke(load("compare"), ["base*", "wide*", "--group-by=name", f"--storage.path={tmp_path}"])
    lines = done.output.splitlines()
    assert max(map(len, lines)) < 120, done.output
    assert any(line.split()[:1] == ["command"] and line.count("2 commands") == 2 for line in lines)
    against = lines[lines.index("against the baseline:") : lines.index("measured:")]
    assert [line.split()[0] for line in against].count("loss") == 1


def test_the_first_step_at_which_two_runs_differ_by_a_bit_is_named_for_each_key(tmp_path: Path) -> None:
    after = struct.unpack("<f", struct.pack("<i", struct.unpack("<i", struct.pack("<f", 0.7))[0] + 1))[0]
    single = struct.unpack("<f", struct.pack("<f", 0.7))[0]
    with history(tmp_path) as one:
        for name, changed in (
            ("a", {}),
            ("c", {}),
            ("b", {30: {"loss": after}, 40: {"norm": -0.0}, 50: {"both": nan}}),
        ):
            rows = [
                (
                    step,
                    round(1e6 * (BEGIN + step)),
                    {
                        "loss": single,
                        "norm": 0.0,
                        "lr": 0.1,
                        "both": 1 / 3,
                        "data/transform_seconds": step + (name == "b"),
                    }
                    | changed.get(step, {}),
                )
                for step in range(10 * (name == "b"), 100)
            ]
            one.put([opened(name, name=name), ingested(name, rows)])

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(load("compare"), [*arguments, "--first-difference", f"--storage.path={tmp_path}"])

    text = run("a", "b").output
    assert "equal for 20 steps, then loss by 1 ulp at step 30" in text
    assert "the sign of 0" in text
    keys = json.loads(run("a", "b", "--json").output)["keys"]
    assert [(one["key"], one["equal"], one["step"], one["ulps"]) for one in keys] == [
        ("loss", 20, 30, 1),
        ("norm", 30, 40, 0),
        ("both", 40, 50, None),
        ("lr", 90, None, None),
    ]
    assert "a and c are equal in all steps that both have" in run("a", "c").output
    assert "--first-difference compares two runs, not 1" in run("a").output
