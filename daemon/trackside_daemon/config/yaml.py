"""YAML as people write it, and what is wrong with it in one line."""

from __future__ import annotations

from typing import Any

import yaml


class YamlError(Exception):
    """It is no YAML; the message says why, and where."""


MOST_BITS = 1024
"""Of an integer; Python writes none in decimal that is far longer, so no error could name it."""

_UNQUOTED = {
    "found undefined alias": "an alias of nothing; put quotes around what begins with *",
    "found duplicate anchor": "an anchor that is there twice; put quotes around what begins with &",
    "found undefined tag handle": "an unknown tag; put quotes around what begins with !",
    "could not determine a constructor": "an unknown tag; put quotes around what begins with !",
}
"""What PyYAML says with a value in it, which may be a password, and what is said instead."""


class _Loader(yaml.SafeLoader):
    """YAML in which ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2, and no key is there twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as the class above has it
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":bool") or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            made = None
        else:
            if not isinstance(made, int) or made.bit_length() <= MOST_BITS:
                return made
        kind = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(None, None, f"no valid {kind}; put text in quotes", node.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: bytes) -> Any:
    """What is written there.

    Raises:
        YamlError: It is no YAML.
    """
    try:
        return yaml.load(text.decode(), _Loader)  # noqa: S506  a safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(f"not YAML: {where}{_said(error.problem or '')}") from error
    except RecursionError:
        raise YamlError("not YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(f"not YAML: {' '.join(str(error).split())}") from error


def _said(problem: str) -> str:
    return next((said for start, said in _UNQUOTED.items() if problem.startswith(start)), problem)
