"""A PromQL expression in lines that a person can read. Only blanks are changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 100
"""Characters of a line that are not too many."""

_SET = re.compile(r" (or|unless on \([^)]*\)|and on \([^)]*\)|unless|and) ")
_BOUND = re.compile(r"(.*) ([<>] -?[\d.e+-]+)", re.DOTALL)
_ARITHMETIC = re.compile(r" ([/-] on \([^)]*\) group_left \(\)|[/-]) ")


def laid_out(expr: str, indent: str = "") -> str:
    """The expression, over several lines where it is too long for one."""
    if "\n" in expr or len(indent) + len(expr) <= WIDTH:
        return indent + expr
    if (lines := _operands(expr, _SET, indent)) is not None:
        return lines
    found = _BOUND.fullmatch(expr)
    left, bound = (found[1], f"\n{indent}{found[2]}") if found else (expr, "")
    if (lines := _operands(left, _ARITHMETIC, indent)) is not None:
        return lines + bound
    if (opened := _enclosed(expr)) is not None:
        before, inner, after = opened
        return f"{indent}{before}(\n{laid_out(inner, f'{indent}  ')}\n{indent}){after}"
    return indent + expr


def _operands(expr: str, operators: re.Pattern[str], indent: str) -> str | None:
    """Each operand and each operator in lines of its own; None without an operator."""
    parts = [*_split(expr, operators)]
    if len(parts) == 1:
        return None
    return "\n".join(laid_out(part, f"{indent}  ") if at % 2 == 0 else indent + part for at, part in enumerate(parts))


def _split(expr: str, operators: re.Pattern[str]) -> Iterator[str]:
    """Operands and, between them, operators; those within parentheses and quotes are none."""
    begun = at = 0
    while at < len(expr):
        if expr[at] in '("{':
            at = _end(expr, at)
        elif (found := operators.match(expr, at)) is not None:
            yield expr[begun:at]
            yield found[1]
            begun = at = found.end()
        else:
            at += 1
    yield expr[begun:]


def _end(expr: str, at: int) -> int:
    """Behind what opens at *at*."""
    if expr[at] == '"':
        found = re.compile(r'"(?:[^"\\]|\\.)*"').match(expr, at)
        return found.end() if found else len(expr)
    close = {"(": ")", "{": "}"}[expr[at]]
    at += 1
    while at < len(expr) and expr[at] != close:
        at = _end(expr, at) if expr[at] in '("{' else at + 1
    return at + 1


def _enclosed(expr: str) -> tuple[str, str, str] | None:
    """What stands before, within and after the last parentheses of the outermost."""
    at, last = 0, None
    while at < len(expr):
        if expr[at] in '("{':
            end = _end(expr, at)
            last = (at, end) if expr[at] == "(" else last
            at = end
        else:
            at += 1
    return None if last is None else (expr[: last[0]], expr[last[0] + 1 : last[1] - 1], expr[last[1] :])
