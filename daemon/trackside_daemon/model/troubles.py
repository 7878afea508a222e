"""The catalogue of troubles: name, severities, summary, meaning and next steps of each alert, once, from troubles.md."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PREFIX = "Trackside"  # prefix of every alert name in Prometheus and Alertmanager

_CASE = re.compile(r"(?m)^(?:([a-z]+): )?")


class Trouble(NamedTuple):
    """One alert, as it is the same for every run, rank and GPU."""

    name: str  # name of the alert
    group: str  # heading of the alerts that it is listed with
    found_by: tuple[str, ...]  # ``detector``, ``rule`` or ``prometheus``, or several of them
    severity: str  # its severities, in words
    summary: str  # what is wrong, in one sentence
    meaning: str  # when it fires, and what that means; in Markdown
    steps: Mapping[str, str]  # what to check and to do next, by case; the case of all others is empty
    more: str  # what else its page has, in Markdown

    def advice(self, case: str = "", run: str = "RUN") -> str:
        """Return what to check and to do next.

        Args:
            case: A case with next steps of its own, such as a severity; any other has those of all others.
            run: Name of the run, for commands.
        """
        return self.steps.get(case, self.steps.get("", "")).replace("RUN", run)

    def advice_of(self, description: str, run: str = "RUN") -> str:
        """Return the advice that the *description* of an alert has, for a run of this name."""
        cases = [case for case, text in self.steps.items() if text.partition("RUN")[0] in description]
        return self.advice(max(cases, key=lambda case: len(self.steps[case]), default=""), run)


def _read() -> Iterator[tuple[str, str, list[Trouble]]]:
    """Yield each group of troubles, with the text below its heading."""
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        head, *sections = part.split("\n### ")
        group, _, intro = head.partition("\n")
        yield group, intro.strip(), [_trouble(group, section) for section in sections]


def _trouble(group: str, section: str) -> Trouble:
    head, meaning, *rest = section.strip().split("\n\n")
    name, found, summary = head.split("\n")
    found_by, _, severity = found.partition(": ")
    steps = re.split(r"(?m)^> (?=[a-z]+: )", rest.pop(0)) if rest and rest[0].startswith(">") else []
    cases = [re.sub(r"\n> ", " ", step.removeprefix("> ").strip()) for step in steps if step.strip()]
    by_case = {label[1] or "": case[label.end() :] for case in cases if (label := _CASE.match(case))}
    plain = " ".join(meaning.split("\n"))
    return Trouble(name, group, tuple(found_by.split(", ")), severity, summary, plain, by_case, "\n\n".join(rest))


GROUPS = {group: (intro, troubles) for group, intro, troubles in _read()}
TROUBLES: Mapping[str, Trouble] = {trouble.name: trouble for _, troubles in GROUPS.values() for trouble in troubles}

# Alerts of detectors, which examine every sample. Prometheus sees them only as `trackside_alert_firing`.
DETECTED = {name: trouble for name, trouble in TROUBLES.items() if "detector" in trouble.found_by}
# Alerts of rules over metric families, which Prometheus can evaluate too.
RULED = {name: trouble for name, trouble in TROUBLES.items() if "rule" in trouble.found_by}
