"""The language of ``trackside compare --fail-if``: conditions on the values of a comparison.

    condition   loss > 1.02 * baseline and not ("eval/top 1" >= 0.7 or ratio_low(step_time) > 1)
    value       a key of letters, digits, ``_``, ``.`` and ``/``; any other key in quotes
    baseline    the baseline's value of the only key of the comparison, else ``baseline(KEY)``
    functions   `FUNCTIONS` of a key; a key alone is its mean

``/`` divides with spaces around it. Python's parser reads the text; what it means is decided here alone, and nothing of it is
run as Python.
"""

from __future__ import annotations

import ast
import operator
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trackside_daemon.cli.errors import CommandError
from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.documents.groups import Comparison, RunGroup

FUNCTIONS = ("mean", "std", "min", "max", "n", "low", "high", "ratio", "ratio_low", "ratio_high")
MAX_LETTERS = 2000  # which also bounds the depth

_BASELINE = "baseline"
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other if other else nan,
}

# Fields of an `Effect`, which compares curves at equal steps, by function and by whether the baseline's value is meant.
_FIELDS = {
    ("mean", False): "value",
    ("mean", True): "baseline",
    ("ratio", False): "ratio",
    ("ratio_low", False): "low",
    ("ratio_high", False): "high",
}


class ExpressionError(ValueError):
    """A text that is no condition; the message has in one line what is wrong."""


class NotANumberError(ArithmeticError):
    """A side of a comparison is not a number, so that neither answer is right; the message is the comparison."""


class GateValue(NamedTuple):
    """A value that a condition reads."""

    key: str
    function: str = "mean"  # one of `FUNCTIONS`
    baseline: bool = False  # it is the baseline's


Read: TypeAlias = "Callable[[GateValue], float]"
Test: TypeAlias = "Callable[[Read], bool]"
Number: TypeAlias = "Callable[[Read], float]"


class Condition:
    """A condition.

    Attributes:
        text: The condition.
        values: The values that it reads, each once.

    Raises:
        ExpressionError: The text is no condition.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(self.text) > MAX_LETTERS:
            raise ExpressionError(f"it has more than {MAX_LETTERS} letters")
        try:
            found: list[GateValue] = []
            self._test = self._condition(ast.parse(self.text, mode="eval").body, found)
            self.values = tuple(dict.fromkeys(found))
        except SyntaxError as error:
            raise ExpressionError(f"{error.msg} at letter {error.offset or 1}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise error if isinstance(error, ExpressionError) else ExpressionError("it cannot be parsed") from None

    @property
    def needs_baseline(self) -> bool:
        """True if it reads a value of the baseline, or a ratio to one."""
        return any(value.baseline or value.function.startswith("ratio") for value in self.values)

    def holds(self, read: Read) -> bool:
        """Return whether the condition holds for the values that *read* returns.

        Raises:
            NotANumberError: A side of a comparison is NaN, or divides by 0.
        """
        return self._test(read)

    def _condition(self, node: ast.expr, values: list[GateValue]) -> Test:
        """Return what tests a part that is a condition, and add the values that it reads; raise `ExpressionError` for another."""
        if isinstance(node, ast.BoolOp):
            combine = all if isinstance(node.op, ast.And) else any
            parts = [self._condition(part, values) for part in node.values]
            return lambda read: combine(part(read) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operand = self._condition(node.operand, values)
            return lambda read: not operand(read)
        if not isinstance(node, ast.Compare) or not all(type(compare) in _COMPARISONS for compare in node.ops):
            raise ExpressionError(f"{self._text(node)}: a comparison with <, <=, >, >=, == or != is expected")
        return self._comparison(node, values)

    def _comparison(self, node: ast.Compare, values: list[GateValue]) -> Test:
        text = self._text(node)
        found: list[GateValue] = []
        sides = [self._number(part, found) for part in (node.left, *node.comparators)]
        keys = list(dict.fromkeys(value.key for value in found if value.key))
        if len(keys) != 1 and any(not value.key for value in found):
            raise ExpressionError(f"{text}: write baseline(KEY) in a comparison of {len(keys) or 'no'} keys")
        found[:] = [value if value.key else value._replace(key=keys[0]) for value in found]
        values += found
        compares = [_COMPARISONS[type(compare)] for compare in node.ops]

        def holds(read: Read) -> bool:
            numbers = [side(read) for side in sides]
            if any(map(isnan, numbers)):
                raise NotANumberError(text)
            return all(map(lambda compare, one, other: compare(one, other), compares, numbers, numbers[1:]))

        return holds

    def _number(self, node: ast.expr, found: list[GateValue]) -> Number:
        """Return what computes a part that is a number, and add the values that it reads; a bare ``baseline`` has no key yet."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            try:
                constant = float(node.value)
            except OverflowError:
                raise ExpressionError(f"{self._text(node)[:20]}…: the number is too large") from None
            return lambda _: constant
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self._number(node.operand, found)
            return lambda read: -operand(read)
        if (value := self._value(node)) is not None:
            place = len(found)
            found.append(value)
            return lambda read: read(found[place])
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            combine = _ARITHMETIC[type(node.op)]
            one, other = self._number(node.left, found), self._number(node.right, found)
            return lambda read: combine(one(read), other(read))
        raise ExpressionError(f"{self._text(node)}: a number, a key, or a function of a key is expected")

    def _value(self, node: ast.expr) -> GateValue | None:
        if isinstance(node, ast.Name) and node.id == _BASELINE:
            return GateValue("", baseline=True)
        if isinstance(node, ast.Call):
            return self._call(node)
        return None if (key := self._key(node)) is None else GateValue(key)

    def _call(self, node: ast.Call) -> GateValue:
        name = self._text(node.func)
        if name not in (*FUNCTIONS, _BASELINE):
            raise ExpressionError(f"{name}: there is no such function; there are {', '.join((*FUNCTIONS, _BASELINE))}")
        inner = node.args[0] if len(node.args) == 1 and not node.keywords else node
        if name != _BASELINE and isinstance(inner, ast.Call) and self._text(inner.func) == _BASELINE:
            return self._call(inner)._replace(function=name)
        if (key := self._key(inner)) is None:
            raise ExpressionError(f"{self._text(node)}: {name}(KEY) is expected")
        return GateValue(key, "mean" if name == _BASELINE else name, name == _BASELINE)

    def _key(self, node: ast.expr) -> str | None:
        """Return the key that a part is; None if it is none."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute):
            return self._text(node)
        text = self._text(node)
        divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not text.endswith(f"/{_BASELINE}")
        return text if divides and set(text).isdisjoint(" ()*-+'\"\t\n") and not text[0].isdigit() else None

    def _text(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.text, node) or ""


def failures(condition: Condition, comparison: Comparison) -> Iterator[str]:
    """Yield a line for each group, except the baseline, for which the condition holds, or has a value that is NaN.

    Raises:
        CommandError: A group or the baseline lacks a value, or the baseline's is NaN.
    """
    for each in comparison.groups:
        if each is comparison.baseline:
            continue

        def read(value: GateValue, each: RunGroup = each) -> float:
            return _number(value, comparison, each)

        numbers = {value: read(value) for value in condition.values}
        try:
            failed = condition.holds(read)
        except NotANumberError:
            failed = True
        if failed:
            texts = (f"{_text(value)} {number(found)}" for value, found in numbers.items())
            yield f"{shown(each.name)}: {', '.join(texts)}"


def _number(value: GateValue, comparison: Comparison, each: RunGroup) -> float:
    baseline, is_ratio = comparison.baseline, value.function.startswith("ratio")
    side = baseline if value.baseline else each
    if side is None or (is_ratio and baseline is None):
        raise CommandError(f"--fail-if: {_text(value)} needs a baseline: --baseline RUN, or several runs")
    effect = comparison.effect(each, value.key) or {}
    known = effect.get(_FIELDS.get((value.function, value.baseline), ""))
    if known is not None:
        return float(known)
    nonfinite = effect.get("nonfinite")
    if nonfinite == "baseline" and baseline is not None and (is_ratio or value.baseline):
        raise CommandError(
            f"--fail-if: {shown(value.key)}: values of the baseline {shown(baseline.name)} are NaN or infinite in the last "
            "tenth of the common steps; give another with --baseline RUN"
        )
    if is_ratio or (nonfinite == "value" and not value.baseline and value.function == "mean"):
        return nan
    statistics = comparison.statistics(side, value.key)
    if statistics is None:
        raise CommandError(
            f"--fail-if: {shown(value.key)}: {shown(side.name)} has no such number"
            + (
                "; write spaces around / to divide"
                if "/" in value.key
                else f"; trackside show {shown(side.runs[0]['id'])}"
            )
        )
    return float(getattr(statistics, value.function))


def _text(value: GateValue) -> str:
    inner = f"baseline({value.key})" if value.baseline else value.key
    return inner if value.function == "mean" else f"{value.function}({inner})"
