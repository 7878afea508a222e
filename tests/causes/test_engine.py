"""The list of causes: each asks something, and names what exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT

from trackside_daemon.causes.cause import Cause, as_json
from trackside_daemon.causes.engine import CAUSES
from trackside_daemon.model.time_ledger import ACCOUNTS
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from trackside_daemon.causes.cause import Kind

PAGE = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", CAUSES, ids=[kind.name for kind in CAUSES])
def test_a_cause_has_a_question_and_names_accounts_and_alerts_that_exist(kind: Kind) -> None:
    assert kind.lost or kind.rose
    assert set(kind.accounts) <= set(ACCOUNTS)
    assert set(kind.alerts) <= set(TROUBLES)


@pytest.mark.parametrize("name", [kind.name for kind in CAUSES if kind.lost and kind.advice])
def test_a_cause_of_a_run_is_on_the_page_of_the_diagnosis(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name}_" in PAGE


@pytest.mark.parametrize(
    ("wall", "lost", "listed"),
    [(100.0, None, True), (100.0, 5.0, True), (100.0, 4.9, False), (9000.0, 60.0, True), (9000.0, 59.0, False)],
)
def test_a_cause_is_listed_from_a_twentieth_of_the_time_or_a_minute(
    wall: float, lost: float | None, listed: bool
) -> None:
    facts: Any = SimpleNamespace(wall=wall, ranks=1)
    assert as_json(Cause("one", "", (), "", "", lost), facts, 0.0, None, None)["listed"] == listed
