"""Templates for the texts of a rule's alert: ``{value}`` and ``{label}`` in plain text, with nothing that can be executed.

The names are ``{value}``, ``{threshold}``, ``{since}``, ``{window}`` and every label of the series. A number can be written
as ``{value:percent}``, ``{value:bytes}``, ``{value:duration}`` or ``{value:whole}``. Our own rules also have ``{value:below}``
and ``{value:above}``: degrees on one side of a temperature, or those on the other side if the value is negative.
"""

import re
from collections.abc import Collection, Mapping

from trackside_daemon.model.text import byte_size, duration, number, percent

_FIELD = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?")
FORMS = ("", "percent", "bytes", "duration", "whole")
NUMBERS = ("value", "threshold")
TEXTS = ("since", "window")
_SIDES = {"below": "above", "above": "below"}
MAX_LABEL_LENGTH = 200  # characters of a label's value that are shown


def check(text: str, labels: Collection[str] | None) -> None:
    """Check that a template can be filled.

    Args:
        text: The template.
        labels: Label names of the series; None if they are unknown.

    Raises:
        ValueError: A name or a form does not exist; the text names it.
    """
    if re.search(r"[{}]", _FIELD.sub("", text)):
        raise ValueError(f"unmatched brace in {text!r:.80}")
    for field in _FIELD.findall(text):
        match = _NAME.fullmatch(field)
        if match is None:
            raise ValueError(f"{{{field}}} is not a name; write {{value}}, {{value:percent}} or {{LABEL}}")
        name, form = match[1], match[2] or ""
        if form not in {*FORMS, *_SIDES} or (form and name not in NUMBERS):
            raise ValueError(f"{{{field}}}: the forms of a number are {', '.join(FORMS[1:])}; a text has none")
        if labels is not None and name not in (*NUMBERS, *TEXTS, *labels):
            raise ValueError(f"there is no {{{name}}}; there are {', '.join((*NUMBERS, *TEXTS, *labels))}")


def fill(text: str, numbers: Mapping[str, float], texts: Mapping[str, str]) -> str:
    """Return the template with its names replaced, in one pass, so that braces in a label's value are kept."""

    def replacement(match: re.Match[str]) -> str:
        name, _, form = match[1].partition(":")
        if name in numbers:
            return format_number(numbers[name], form)
        return texts[name][:MAX_LABEL_LENGTH] if name in texts else match[0]

    return _FIELD.sub(replacement, text)


def format_number(value: float, form: str = "") -> str:
    """Return a number in one of the forms."""
    if form == "percent":
        return percent(value)
    if form == "whole":
        return number(round(value))
    if form == "duration":
        return duration(value)
    if form in _SIDES:
        return f"{number(round(abs(value), 1))} degrees {_SIDES[form] if value < 0 else form}"
    return byte_size(value) if form == "bytes" else number(value)


def prometheus_template(text: str) -> str:
    """Return the template as an annotation of a Prometheus rule."""
    forms = {
        "percent": "humanizePercentage $value",
        "bytes": 'printf "%sB" (humanize1024 $value)',
        "duration": "humanizeDuration $value",
        "whole": 'printf "%.0f" $value',
    }
    forms |= {
        form: f'printf "%.1f" $value | reReplaceAll "^-" "" }}}} degrees {{{{ if lt $value 0.0 }}}}{other}{{{{ else }}}}{form}{{{{ end'
        for form, other in _SIDES.items()
    }

    def replacement(match: re.Match[str]) -> str:
        name, _, form = match[1].partition(":")
        if name == "value":
            return f"{{{{ {forms.get(form, 'printf `%.4g` $value')} }}}}"
        return "the alert's start" if name == "since" else f"{{{{ $labels.{name} }}}}"

    return _FIELD.sub(replacement, text)
