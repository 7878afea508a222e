"""Rules of any names, labels and texts: a line that refuses them, or a file that Prometheus reads as it was meant."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from fuzz.test_imports import check_line
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from processes import DEADLINE
from pydantic import ValidationError

from trackside_daemon.alerts.disabled import DisabledAlerts, run_regex
from trackside_daemon.alerts.rules import custom
from trackside_daemon.alerts.rules.query import Matcher
from trackside_daemon.alerts.rules.rule_file import RuleFileOptions, format_promql, groups
from trackside_daemon.alerts.rules.rule_text import prometheus
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.model.families.catalogue import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.rules.rule_file import Group

BATCH = 50
"""Files that one promtool reads together."""

JUDGED = 4
"""Rules of a group that are written: the last ones, which are those of the configuration."""

PIECES = (
    "a",
    "(",
    "b or c",
    "unless",
    '"',
    "\\",
    "\\d",
    "{",
    "}}",
    "$",
    "\n",
    "\r",
    "\x85",
    "\u2028",
    "😀",
    "é",
    "[a-z]",
    "(?=a)",
)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.lists(st.sampled_from(PIECES)).map("".join)
names = st.sampled_from(["A", "Zeta", "GpuHot", "a_1"]) | words
values = words | words.map("~{}".format)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5)
spans = st.sampled_from(["1s", "1500ms", "5m", "1h"]) | st.floats(0, 1e12)
metrics = st.sampled_from(["trackside_gpu_up", "trackside_training_value", "key:loss"]) | words.map("key:{}".format)
labels = st.dictionaries(st.sampled_from(["run", "rank", "key", "gpu", "x"]), values, max_size=3)
texts = words | st.lists(words | st.sampled_from(["{run}", "{value:percent}", "{threshold}", "{since}"])).map(" ".join)
conditions = (
    st.fixed_dictionaries({"above": numbers}) | st.fixed_dictionaries({"below": numbers}) | st.just({"absent": True})
)
functions: st.SearchStrategy[dict[str, Any]] = (
    st.just({}) | st.fixed_dictionaries({"rate": spans}) | st.fixed_dictionaries({"change": spans})
)
options: dict[str, st.SearchStrategy[Any]] = {
    "labels": labels, "for": spans, "keep-firing-for": spans, "summary": texts, "description": texts, "over": metrics,
}  # fmt: skip
rules = st.builds(
    lambda *parts: {name: value for part in parts for name, value in part.items()},
    st.fixed_dictionaries({"alert": names, "metric": metrics}, optional=options),
    conditions,
    functions,
)
offs = st.lists(
    st.sampled_from(["ShmFull@", "GpuHot@", "A@", "LossSpike"]).flatmap(lambda at: words.map(at.__add__)), max_size=2
)

written: list[list[Group]] = []


@cache
def unchanged() -> list[Group]:
    """Return the rules without any configuration."""
    return groups(AlertsSection(), catalogue(), RuleFileOptions())


def check_promtool() -> None:
    """Have Prometheus read the files since the last check; of several, name the one that it refuses."""
    while written:
        found = [{**group, "name": f"{group['name']}.{number}"} for number, one in enumerate(written) for group in one]
        if complaint := refusal(prometheus(found, "trackside rules")):
            for one in written if len(written) > 1 else ():
                single = prometheus(one, "trackside rules")
                assert not refusal(single), refusal(single)
            pytest.fail(complaint)
        written.clear()


def refusal(text: str) -> str:
    """Return why promtool refuses a rule file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = ["promtool", "check", "rules", "--lint=none", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    return done.stdout + done.stderr if done.returncode else ""


def tree(expr: str) -> str:
    """Return an expression as the parser understands it; empty if only Prometheus' own reads its long durations."""
    with suppress(ValueError):
        return promql_parser.parse(expr).prettify()
    return ""


def check_matcher(name: str, value: str) -> None:
    """Check that PromQL reads a label's value as it is, and a pattern of runs as the daemon does."""
    selector: Any = promql_parser.parse(f"x{{{Matcher('label', value).promql()}}}")
    assert [matcher.value for matcher in selector.matchers.matchers] == [value]
    disabled = DisabledAlerts([f"A@{value}"])
    if value:
        assert disabled.contains("A", {"run": name}) is bool(re.fullmatch(run_regex(value), name, re.DOTALL))


def check_rules(given_rules: list[dict[str, Any]], off: list[str], job: str, command: str) -> None:
    """Check the file of a configuration."""
    try:
        section = AlertsSection(rules=given_rules, off=off)
        for rule in custom.rules(section.rules, catalogue()):
            expr = rule.promql("Trackside")
            assert tree(format_promql(expr)) == tree(expr)
        usual = {group["name"]: group["rules"] for group in unchanged()}
        found = [
            {**group, "rules": changed}
            for group in groups(section, catalogue(), RuleFileOptions(job=job))
            if (changed := [rule for rule in group["rules"] if rule not in usual.get(group["name"], ())][-JUDGED:])
        ]
    except ValidationError:  # the configuration's, which makes a line of it
        return
    except custom.RuleError as problem:
        check_line(str(problem))
        return
    text = prometheus(found, command)
    assert yaml.safe_load(text)["groups"] == found
    written.append(found)
    if len(written) >= BATCH:
        check_promtool()


@settings(
    max_examples=max(20, settings().max_examples // 10), phases=[Phase.generate], report_multiple_bugs=False
)  # a failure need not be small, as each try costs a file
@given(st.lists(rules, max_size=3), offs, words, words)
def holds(given_rules: list[dict[str, Any]], off: list[str], job: str, command: str) -> None:
    """Check one configuration, and the texts in it as values of labels."""
    for word in (job, command, *(part.partition("@")[2] for part in off)):
        check_matcher(job, word)
    check_rules(given_rules, off, job, command)


check = holds.hypothesis.fuzz_one_input  # type: ignore[attr-defined]


def seeds() -> list[bytes]:
    """Return inputs that are long enough for some rules."""
    return [random.Random(number).randbytes(1500) for number in range(30)]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_what_is_written(fuzz: Callable[..., None]) -> None:
    def short() -> None:
        holds()
        check_promtool()

    fuzz(short, seeds())
