"""The changes that the pages of frameworks and tests/public show of public training code, and that code with them."""

from __future__ import annotations

import re

from processes import ROOT

PAGES = ("integrations", "pytorch", "transformers", "lightning", "more-frameworks", "ray")
PUBLIC = ROOT / "tests" / "public"


def section(heading: str) -> str:
    """Return the text below a heading, of a page or a section, of the pages of frameworks."""
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in PAGES)
    (text,) = re.findall(rf"^##? {re.escape(heading)}\n(.*?)(?=^##? |\Z)", pages, re.DOTALL | re.MULTILINE)
    return str(text)


def shown(heading: str) -> str:
    """Return the change that a section shows, from its first ``@@`` on."""
    (diff,) = re.findall(r"```diff\n(.*?)```", section(heading), re.DOTALL)
    return str(diff[diff.index("@@\n") :])


def change(script: str) -> str:
    """Return the change of a script of tests/public that has one next to it."""
    return (PUBLIC / script).with_suffix(".diff").read_text("utf-8")


def added(diff: str) -> list[str]:
    """Return the lines that a change adds."""
    return [line[1:] for line in diff.splitlines() if line.startswith("+")]


def changed(script: str, diff: str) -> str:
    """Return a script of tests/public with a change."""
    return applied(diff, (PUBLIC / script).read_text("utf-8"))


def applied(diff: str, base: str) -> str:
    """Apply a change to *base*; each hunk's old lines must occur in it exactly once."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
        assert base.count(before) == 1, before
        base = base.replace(before, "".join(line[1:] or "\n" for line in lines if line[0] != "-"))
    return base
