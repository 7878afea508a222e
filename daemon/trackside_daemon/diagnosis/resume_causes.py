"""The causes that the verdicts on resumes show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.diagnosis.causes import Cause, Evidence, alert_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.diagnosis.facts import Facts

ADVICE = "restore weights, optimizer, scheduler, scaler, random states and the position in the data, and resume again"


def resume_causes(facts: Facts) -> Iterator[Cause]:
    """Yield a cause for each resume that does not continue where the run was; what it costs is not measured."""
    for resume in facts.resumes:
        if resume.get("cause"):
            yield Cause(
                f"resume_{resume['cause']}",
                f"attempt {resume['attempt']} does not continue where the run was",
                (Evidence(str(resume.get("text", "")), facts.api), *alert_evidence(facts, "LossDiscontinuity")),
                ADVICE,
                "resumes in trackside show",
            )
