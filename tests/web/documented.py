"""Answers of the API against its OpenAPI document, also for fields that the document does not name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.web.api.endpoints import ENDPOINTS
from trackside_daemon.web.api.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

PATTERNS = [(re.compile(re.sub(r"{\w+}", "[^/?]+", one.path)), one) for one in ENDPOINTS]
DOCUMENT = document("1")
SCHEMAS = DOCUMENT["components"]["schemas"]
KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def differences(value: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield where an answer is not as its schema has it, and each field that the schema does not name."""
    kind = schema.get("type")
    if "$ref" in schema:
        yield from differences(value, SCHEMAS[schema["$ref"].rpartition("/")[2]], place)
    elif "anyOf" in schema:
        yield from min((list(differences(value, one, place)) for one in schema["anyOf"]), key=len)
    elif kind is None:
        return
    elif not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{place}: {value!r:.60} is no {kind}"
    elif value not in schema.get("enum", [value]):
        yield f"{place}: {value!r:.60} is none of {schema['enum']}"
    elif kind == "array":
        for one in value:
            yield from differences(one, schema["items"], f"{place}[]")
    elif kind == "object":
        yield from _of_fields(value, schema, place)


def _of_fields(value: dict[str, Any], schema: dict[str, Any], place: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, one in value.items():
        if name not in known and not others:
            yield f"{place}.{name} is unknown"
        elif name in known or isinstance(others, dict):
            yield from differences(one, known.get(name, others), f"{place}.{name}")


def undocumented(method: str, path: str, answer: httpx.Response) -> list[str]:
    """Return how the answer to a request differs from the document; nothing of a file or a stream."""
    plain = path.removeprefix("/api/v1").partition("?")[0]
    endpoint = next((one for pattern, one in PATTERNS if one.method == method and pattern.fullmatch(plain)), None)
    if endpoint is None or endpoint.types != ("application/json",):
        return []
    content = DOCUMENT["paths"][endpoint.path][method.lower()]["responses"]["200"]["content"]
    return list(differences(answer.json(), content["application/json"]["schema"], endpoint.operation))
