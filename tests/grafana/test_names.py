"""Run names may contain anything: none breaks a panel or is lost in a link to another dashboard."""

from __future__ import annotations

import json
import re

import pytest
from grafana.boards import committed, queries, variables

BOARDS = committed()
LINK_VARIABLE = re.compile(r"\$\{(?:__field|__value|__data)\.[^}]*\}")
"""A variable of the clicked element."""


@pytest.mark.parametrize("uid", BOARDS)
def test_the_variables_of_a_link_are_encoded_as_values(uid: str) -> None:
    reported = LINK_VARIABLE.findall(json.dumps(BOARDS[uid]))
    assert [one for one in reported if not one.endswith(":percentencode}")] == []


def test_links_carry_variables() -> None:
    assert LINK_VARIABLE.search(json.dumps(BOARDS["trackside-fleet"]))


@pytest.mark.parametrize("uid", [uid for uid in BOARDS if any(one["name"] == "run" for one in variables(BOARDS[uid]))])
def test_a_name_that_ends_the_quotes_cannot_be_chosen(uid: str) -> None:
    run = next(one for one in variables(BOARDS[uid]) if one["name"] == "run")
    chosen = re.compile(run["regex"].strip("/"))
    text = '{{run="{}"}} 1 1' if run["query"].startswith("query_result") else "{}"  # as Grafana writes a result
    assert all(
        chosen.search(text.format(name)) for name in ("gpt", "it's", 'a "b"', "a\\b", "a.b (1)", "a&b#c+d", "名前")
    )
    assert not chosen.search(text.format("it`s"))
    quotes = {expr[found - 1] for one in queries(BOARDS[uid]) for expr in [one.expr] for found in _names(expr)}
    assert quotes == {"`"}


def _names(expr: str) -> list[int]:
    """Return the places of a run's name; a parenthesis before it belongs to the pattern."""
    return [found.start() for found in re.finditer(r"\(?\$\{?run\b", expr)]
