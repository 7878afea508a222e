"""The catalogue of troubles: every alert has its texts, in a form that alerts, rules and pages can use."""

from __future__ import annotations

import re

import pytest

from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.troubles import DETECTED, TROUBLES


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_has_a_summary_a_meaning_and_next_steps_in_sentences(name: str) -> None:
    trouble = TROUBLES[name]
    assert set(trouble.found_by) <= {"detector", "rule", "prometheus"}
    assert re.fullmatch(r"[A-Z/][^{}\n]*\.", trouble.summary)
    assert trouble.meaning.endswith(".")
    assert bool(trouble.steps) is (name not in LIFE_CYCLE)
    assert all(re.fullmatch(r"[^{}\n]*\.", text) for text in trouble.steps.values())  # braces are a template's
    assert "](" not in "".join(trouble.steps.values()) + (
        trouble.meaning if name in DETECTED.keys() - LIFE_CYCLE else ""
    )


def test_next_steps_are_those_of_the_case_and_name_the_run() -> None:
    assert TROUBLES["GpuRowRemap"].advice("critical") == "No spare rows are left for it. Replace the GPU."
    assert TROUBLES["GpuHot"].advice("critical") == TROUBLES["GpuHot"].advice()
    assert "checkpoints latest llama --good`" in TROUBLES["CheckpointDamaged"].advice(run="llama")


@pytest.mark.parametrize("name", TROUBLES)
def test_the_advice_of_an_alert_is_that_of_its_description(name: str) -> None:
    trouble = TROUBLES[name]
    for case in trouble.steps:
        text = trouble.advice(case, "net")
        assert trouble.advice_of(f"Since noon. {text} The last intact checkpoint is /a.", "net") == text
    assert trouble.advice_of("of an older version") == trouble.advice()
