"""`trackside compare`: runs side by side, statistics over seeds, and a gate for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Form, Json, Query, RunsOrQuery, StoragePath, Url, flag, option
from trackside_daemon.cli.output import form_of, print_answer
from trackside_daemon.model.text import matches_wildcards, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.cli.gate import Condition
    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.documents.groups import Comparison, Run, RunGroup

FAILED = 3  # exit status if the gate fails
MOST_RUNS = 60


def compare(
    run: RunsOrQuery = None,
    *,
    query: Query = "",
    baseline: Annotated[
        str, option("RUN", "Compare with this run, or this group of --group-by. [default: the first one]")
    ] = "",
    group_by: Annotated[
        str, option("tag|name|config.KEY", "Statistics over the runs of each group, such as seeds.")
    ] = "",
    fail_if: Annotated[
        str, option("CONDITION", "Exit with status 3 if this holds for another run or group than the baseline.")
    ] = "",
    first_difference: Annotated[
        bool, flag("--first-difference", "Of two runs: the first step at which a key differs by a bit.")
    ] = False,
    sort: Annotated[str, option("[-]KEY", "Order by this value; falling with - before it.")] = "",
    code: Annotated[bool, flag("--code", "Print how the code of the last run differs from the first's.")] = False,
    form: Form = "text",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Compare runs: results, configurations, speed and metrics, with 95 % intervals where the runs show their noise.

    A name that is given twice means its two newest runs, and a pattern such as 'gpt-*' all that match. The cells of a
    group have the mean, ± half of its interval, and the standard deviation.

    Conditions compare keys, KEY.final, .best, .mean, .min, .max, step_time, step_time_p25 (of the quicker steps),
    throughput, step, wall_seconds; `baseline` is the same of the baseline. Functions: std, low, high (the interval),
    min, max, n; ratio, ratio_low, ratio_high (to the baseline).
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.cli.sources.source import selected
        from trackside_daemon.documents.groups import Comparison
        from trackside_daemon.questions import table as questions

        form = form_of(form, as_json=as_json)
        condition = _condition(fail_if)
        source = find_history(storage_path, url)
        runs = [source.ask(questions.Run(id=text)) for text in _distinct(source, selected(source, run, query))]
        if code:
            _print_code(source, runs)
            return
        if first_difference:
            _print_first_difference(source, runs, form)
            return
        groups, usual = _groups(source, runs, group_by, baseline, required=bool(condition and condition.needs_baseline))
        keys = {value.key for value in condition.values} if condition else set()
        pushed = {metric["key"] for each in runs for metric in each["metrics"]}
        keys |= {sort.removeprefix("-")} if sort else set()

        def compare_runs(ids: Sequence[str], usual: Sequence[str], keys: Sequence[str]) -> Run:
            asked = questions.Comparison(run=tuple(ids), baseline=tuple(usual), key=tuple(keys))
            return source.ask(asked)

        comparison = Comparison(compare_runs, groups, usual, keys & pushed)
        if sort:
            _sort(comparison, sort)
            if usual and not baseline and form == "text":
                warn(f"the baseline is {shown(usual.name)}, the first before --sort; --baseline names another")
        failed = _check(condition, comparison)
        _print(comparison, form, condition, failed)
    if failed:
        raise typer.Exit(FAILED)


def _print_code(source: Source, runs: Sequence[Run]) -> None:
    from trackside_daemon.cli.output import print_lines
    from trackside_daemon.questions import table as questions

    ends = list(dict.fromkeys((runs[0]["id"], runs[-1]["id"])))
    diff = source.ask(questions.Code(run=tuple(ends)))["diff"]
    if diff is None:
        raise CommandError(
            "--code: one of these runs has no stored code; a training stores it unless $TRACKSIDE_CODE is 0"
        )
    print_lines(diff or ["the code is the same"], exact=True)


def _condition(text: str) -> Condition | None:
    from trackside_daemon.cli.gate import Condition, ExpressionError

    try:
        return Condition(text) if text else None
    except ExpressionError as error:
        raise CommandError(f"--fail-if: {error}; such as: --fail-if 'loss > 1.02 * baseline'") from None


def _groups(
    source: Source, runs: Sequence[Run], by: str, baseline: str, *, required: bool
) -> tuple[list[RunGroup], RunGroup | None]:
    """Return the groups and the baseline, which is one of them: the named one, the first one, or if *required* a single run's own."""
    from trackside_daemon.documents.groups import RunGroup, group
    from trackside_daemon.questions import table as questions

    if by not in {"", "tag", "name"} and not by.startswith("config."):
        raise CommandError(f"--group-by {shown(by)}: it must be tag, name, or config.KEY")
    try:
        groups = group(runs, by)
    except LookupError as error:
        raise CommandError(f"--group-by {shown(by)}: {error}") from None
    named = {name: each for each in groups for name in (each.name, each.name.removeprefix(f"{by[7:]} "))}
    if by and baseline in named:
        return groups, named[baseline]
    if not baseline and len(groups) > 1:
        return groups, groups[0]
    wanted = (baseline,) if baseline else ()
    ids = (
        source.ask(questions.Comparison(run=(runs[0]["id"],), baseline=wanted))["baseline"]
        if baseline or required
        else []
    )
    if not ids:
        return groups, None
    known = next((each for each in groups if {run["id"] for run in each.runs} == set(ids)), None)
    found = [source.ask(questions.Run(id=uid)) for uid in ids]
    usual = known or RunGroup(found[0]["name"] if len(found) == 1 else baseline, found)
    return (groups if known else [usual, *groups]), usual


def _sort(comparison: Comparison, by: str) -> None:
    from trackside_daemon.cli.output import ordered

    def mean(each: RunGroup, key: str) -> float | None:
        found = comparison.statistics(each, key)
        return None if found is None else found.mean

    if all(mean(each, by.removeprefix("-")) is None for each in comparison.groups):
        raise CommandError(f"--sort {shown(by)}: no run has such a number")
    comparison.groups = ordered(comparison.groups, by, mean)


def _check(condition: Condition | None, comparison: Comparison) -> list[str]:
    """Report whether the gate failed, and return a line for each failure."""
    from trackside_daemon.cli.gate import failures

    if condition is None:
        return []
    failed = list(failures(condition, comparison))
    for line in failed:
        warn(f"gate failed: {condition.text}: {line}")
    if not failed:
        warn(f"gate passed: {condition.text}")
    return failed


def _print_first_difference(source: Source, runs: Sequence[Run], form: str) -> None:
    from trackside.totals.loader_workers import READY, TRANSFORM, TRANSFORM_CPU, WORKERS
    from trackside_daemon.documents.first_difference import document, first_differences
    from trackside_daemon.questions.series import OneSeries

    if len(runs) != 2:
        raise CommandError(f"--first-difference compares two runs, not {len(runs)}")
    timed = {READY, TRANSFORM, TRANSFORM_CPU, WORKERS}  # they tell about the machine
    pushed = [[metric["key"] for metric in run["metrics"] if metric["key"] not in timed] for run in runs]

    def read(key: str) -> list[Sequence[Sequence[Any]]]:
        return [source.ask(OneSeries(id=run["id"], key=key, points=0))["points"] for run in runs]

    found = first_differences(read, [key for key in dict.fromkeys(pushed[0]) if key in pushed[1]])
    if not found:
        raise CommandError(
            f"runs {shown(runs[0]['name'])} and {shown(runs[1]['name'])} have no step of a key in common"
        )
    value = {"runs": [run["id"] for run in runs], "keys": found}
    label = "name" if runs[0]["name"] != runs[1]["name"] else "id"
    print_answer(value, form, lambda: document([run[label] for run in runs], found))


def _print(comparison: Comparison, form: str, condition: Condition | None, failed: Sequence[str]) -> None:
    from trackside_daemon.documents.comparison import as_json, document, numbers

    gate = {"condition": condition.text, "failed": bool(failed), "failures": failed} if condition else None
    value = {**as_json(comparison), "gate": gate} if form == "json" else {}
    print_answer(value, form, lambda: (numbers if form == "csv" else document)(comparison))


def _distinct(source: Source, texts: Sequence[str]) -> list[str]:
    """Return what identifies each run: ids for a pattern, and for a name that is given several times, its newest runs."""
    from trackside_daemon.questions.runs import Runs

    found: list[str] = []
    for text in dict.fromkeys(texts):
        count = texts.count(text)
        pattern = "*" in text or "?" in text
        if count == 1 and not pattern:
            found.append(text)
            continue
        runs = source.ask(Runs(name="" if pattern else text))["runs"]
        ids = [run["id"] for run in runs if (matches_wildcards(run["name"], text) if pattern else run["name"] == text)]
        if not ids or (not pattern and len(ids) < count):
            have = "1 run has" if len(ids) == 1 else f"{len(ids) or 'no'} runs have"
            raise CommandError(
                f"run {shown(text)} is given {count} times, but {have} this name; give ids: trackside runs"
                if not pattern
                else f"{shown(text)}: no run has such a name; trackside runs lists them"
            )
        found += ids if pattern else ids[:count]
    if len(found) > MOST_RUNS:
        raise CommandError(f"{len(found)} runs are too many; name at most {MOST_RUNS}")
    return found
