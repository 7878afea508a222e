"""YAML with one-line errors, no duplicate keys, and ``on``, ``off``, ``yes`` and ``no`` as texts."""

from typing import Any

import yaml


class YamlError(Exception):
    """The text is not valid YAML; the message has the position and the reason."""


# Longer integers are rejected: Python does not convert far longer ones to decimal, so no error could show them.
MAX_INTEGER_BITS = 1024

# Replacements of PyYAML messages that contain a value, which may be a password.
_UNQUOTED = {
    "found undefined alias": "an undefined alias; quote text that begins with *",
    "found duplicate anchor": "a duplicate anchor; quote text that begins with &",
    "found undefined tag handle": "an unknown tag; quote text that begins with !",
    "could not determine a constructor": "an unknown tag; quote text that begins with !",
}


class _Loader(yaml.SafeLoader):
    """A safe loader that reads ``on``, ``off``, ``yes`` and ``no`` as texts, as in YAML 1.2, and rejects duplicate keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as the class above has it
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":bool") or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        # PyYAML's constructors raise these without a position, for example for the date 2024-13-45.
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            value = None
        else:
            if not isinstance(value, int) or value.bit_length() <= MAX_INTEGER_BITS:
                return value
        kind = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(None, None, f"no valid {kind}; put text in quotes", node.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is a duplicate key", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: bytes) -> Any:
    """Return the value of a YAML document.

    Raises:
        YamlError: The text is not valid YAML.
    """
    try:
        return yaml.load(text.decode(), _Loader)  # noqa: S506  based on SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(f"not YAML: {where}{_without_values(error.problem or '')}") from error
    except RecursionError:
        raise YamlError("not YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: the file is not UTF-8
        raise YamlError(f"not YAML: {' '.join(str(error).split())}") from error


def _without_values(problem: str) -> str:
    return next((text for start, text in _UNQUOTED.items() if problem.startswith(start)), problem)
