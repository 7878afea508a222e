"""Readable layout of PromQL expressions; only white space changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 100  # longest line, in characters

_SET = re.compile(r" (or|unless on \([^)]*\)|and on \([^)]*\)|unless|and) ")
_BOUND = re.compile(r"(.*) ([<>] -?[\d.e+-]+)", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ARITHMETIC = re.compile(r" ([/-] on \([^)]*\) group_left \(\)|[/-]) ")


def format_promql(expr: str, indent: str = "") -> str:
    """Return the expression, over several lines if it is too long for one."""
    if "\n" in expr or len(indent) + len(expr) <= WIDTH:
        return indent + expr
    # Operators with the lowest precedence are split first.
    if (lines := _operands(expr, _SET, indent)) is not None:
        return lines
    match = _BOUND.fullmatch(expr)
    left, bound = (match[1], f"\n{indent}{match[2]}") if match else (expr, "")
    if (lines := _operands(left, _ARITHMETIC, indent)) is not None:
        return lines + bound
    if (opened := _enclosed(expr)) is not None:
        before, inner, after = opened
        return f"{indent}{before}(\n{format_promql(inner, f'{indent}  ')}\n{indent}){after}"
    return indent + expr


def _operands(expr: str, operators: re.Pattern[str], indent: str) -> str | None:
    """Return each operand and each operator on a separate line; None if there is no operator."""
    parts = [*_split(expr, operators)]
    if len(parts) == 1:
        return None
    return "\n".join(
        format_promql(part, f"{indent}  ") if at % 2 == 0 else indent + part for at, part in enumerate(parts)
    )


def _split(expr: str, operators: re.Pattern[str]) -> Iterator[str]:
    """Yield operands and, between them, operators; skip operators within parentheses and quotes."""
    begun = at = 0
    while at < len(expr):
        if expr[at] in '("{':
            at = _end(expr, at)
        elif (match := operators.match(expr, at)) is not None:
            yield expr[begun:at]
            yield match[1]
            begun = at = match.end()
        else:
            at += 1
    yield expr[begun:]


def _end(expr: str, at: int) -> int:
    """Return the index after the parenthesis, brace or quote that opens at *at*."""
    if expr[at] == '"':
        match = _QUOTED.match(expr, at)
        return match.end() if match else len(expr)
    close = {"(": ")", "{": "}"}[expr[at]]
    at += 1
    while at < len(expr) and expr[at] != close:
        at = _end(expr, at) if expr[at] in '("{' else at + 1
    return at + 1


def _enclosed(expr: str) -> tuple[str, str, str] | None:
    """Return the texts before, within and after the last of the outermost parentheses; None if there are none."""
    at, last = 0, None
    while at < len(expr):
        if expr[at] in '("{':
            end = _end(expr, at)
            last = (at, end) if expr[at] == "(" else last
            at = end
        else:
            at += 1
    return None if last is None else (expr[: last[0]], expr[last[0] + 1 : last[1] - 1], expr[last[1] :])
