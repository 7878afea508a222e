"""The words of a rule's alert: ``{value}`` and ``{label}`` in plain text, and nothing that could be executed.

``{value}``, ``{threshold}``, ``{since}``, ``{window}`` and every label of the series are known by name. A number can be written as
``{value:percent}``, ``{value:bytes}``, ``{value:duration}`` or ``{value:whole}``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trackside_daemon.detectors.wording import in_bytes, number

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FIELD = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?")
FORMS = ("", "percent", "bytes", "duration", "whole")
NUMBERS = ("value", "threshold")
TEXTS = ("since", "window")
LONGEST = 200
"""Characters of a label's value that are shown."""


def check(text: str, labels: Collection[str] | None) -> None:
    """That a template can be filled.

    Args:
        text: The template.
        labels: What the series have; None when that is not known yet.

    Raises:
        ValueError: It names what is not there, or writes it in a way that there is not.
    """
    if re.search(r"[{}]", _FIELD.sub("", text)):
        raise ValueError(f"a brace without its other one in {text!r:.80}")
    for written in _FIELD.findall(text):
        found = _NAME.fullmatch(written)
        if found is None:
            raise ValueError(f"{{{written}}} is no name; write {{value}}, {{value:percent}} or {{LABEL}}")
        name, form = found[1], found[2] or ""
        if form not in FORMS or (form and name not in NUMBERS):
            raise ValueError(f"{{{written}}}: numbers are written as {', '.join(FORMS[1:])}, and texts as they are")
        if labels is not None and name not in (*NUMBERS, *TEXTS, *labels):
            raise ValueError(f"there is no {{{name}}}; there are {', '.join((*NUMBERS, *TEXTS, *labels))}")


def fill(text: str, numbers: Mapping[str, float], texts: Mapping[str, str]) -> str:
    """The template with its names replaced in one pass, so that braces in a label are no names."""

    def one(found: re.Match[str]) -> str:
        name, _, form = found[1].partition(":")
        if name in numbers:
            return written(numbers[name], form)
        return texts[name][:LONGEST] if name in texts else found[0]

    return _FIELD.sub(one, text)


def written(value: float, form: str = "") -> str:
    """A number in one of the forms."""
    if form == "percent":
        return f"{100 * value:.3g} %"
    if form == "whole":
        return f"{value:,.0f}"
    if form == "duration":
        return _duration(value)
    return in_bytes(value) if form == "bytes" else number(value)


def prometheus(text: str) -> str:
    """The template as an annotation of a Prometheus rule; what its own language would read is taken out of it."""
    forms = {
        "percent": "humanizePercentage $value",
        "bytes": 'printf "%sB" (humanize $value)',
        "duration": "humanizeDuration $value",
        "whole": 'printf "%.0f" $value',
    }

    def one(found: re.Match[str]) -> str:
        name, _, form = found[1].partition(":")
        if name == "value":
            return f"{{{{ {forms.get(form, 'humanize $value')} }}}}"
        return "the alert's start" if name == "since" else f"{{{{ $labels.{name} }}}}"

    return _FIELD.sub(one, text)


def _duration(seconds: float) -> str:
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 172800 else f"{seconds / 86400:.1f} days"
