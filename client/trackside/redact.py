"""Remove what looks like a secret from configurations, command lines and texts before they are written or sent.

The client does so, since its spool can lie in a shared directory; the daemon does so again, for older clients and alerts.

A value is judged by its key and by its shape. In doubt it is removed: a lost setting costs less than a leaked password.
A "token" in the sense of machine learning stays, or every tokenizer's settings would be lost.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

REDACTED = "[redacted]"

DEPTH = 64  # deeper values are not examined, and so not stored

_SECRETS = frozenset(
    {
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "cookies",
        "apikey",
        "apikeys",
        "accesskey",
        "privatekey",
        "secretkey",
        "authkey",
        "authtoken",
        "accesstoken",
    }
)
_KEYS = frozenset({"key", "keys"})
_SECRET_KEY_PREFIXES = frozenset({"api", "access", "private"})
_HEX_KEYS = frozenset({"wandb", "api"})
_VOCABULARY = _SECRETS | _KEYS | _SECRET_KEY_PREFIXES | _HEX_KEYS | {"token"}

_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HEX = re.compile(r"[0-9a-f]{40}")
_PATH = re.compile(r"[~.]{0,2}/?[\w.@-]+(/[\w.@-]+)+/?", re.ASCII)

# Every pattern begins at a word boundary or has bounded repeats, so the cost is linear in the text: no two starting
# points may scan the same characters.
_SHAPES = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?s:.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z))"
    r"|(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{0,16}?[A-Za-z0-9]{16}[\w-]*"  # OpenAI, Anthropic and others; sk-learn-… has no word of 16 letters
    r"|hf_[A-Za-z0-9]{20,}"
    r"|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|AIza[\w-]{35,}|ya29\.[\w-]{16,}"
    r"|nvapi-[\w-]{20,}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,})",
    re.ASCII,
)
_URL = re.compile(r"""(://[^\s/?#:@"']*:)([^\s/?#"']+)(?=@)""")
_HEADER = re.compile(
    r"(\b(?:authorization|(?:api|auth|access)-(?:key|token)):[ \t]{0,4}(?:[a-z]{1,16}[ \t]{1,4})?"
    r"|\bbearer[ \t]{1,4}(?=[\w.~+/=-]{16})(?=[\w.~+/=-]{0,100}[0-9]))"
    r"""([^\s"',;]{8,})""",
    re.ASCII | re.IGNORECASE,
)
_VALUE = r""""[^"]*"|'[^']*'|"""
_NAMED = (
    re.compile(rf"""(?<![\w.-])(-*[A-Za-z_][\w.-]*)(=)({_VALUE}[^\s"'&;,]+)""", re.ASCII),
    re.compile(rf"(?<!\S)(--[A-Za-z][\w.-]*)([ \t]{{1,4}})(?!-)({_VALUE}\S+)", re.ASCII),
    re.compile(
        r"""("[\w. -]{1,100}"|'[\w. -]{1,100}')(\s{0,8}:\s{0,8})("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.ASCII
    ),
)
_ARGUMENT = re.compile(r"([-+~]*[A-Za-z_][\w.-]*)=(.*)", re.ASCII | re.DOTALL)


def redact(config: Any) -> Any:
    """Return a JSON value with `REDACTED` in place of texts that look like secrets; order and other values stay.

    Values inside an object or list are judged as if they had its key, too. Numbers, booleans and null are never secrets.
    """
    return _redact(config, frozenset(), 0)


def redact_json(text: str) -> str:
    """Redact a JSON value that is written as text; text that is not JSON is replaced by a note."""
    try:
        value = json.loads(text)
        redacted = redact(value)
        return text if redacted == value else json.dumps(redacted)
    except (ValueError, RecursionError):
        return json.dumps("not JSON")


def redact_command(argv: Sequence[str]) -> list[str]:
    """Redact a command's arguments: ``--api-key=X``, ``--api-key X``, ``HF_TOKEN=X``, and secrets by their shape."""
    redacted = []
    flag = ""
    for argument in argv:
        named = _ARGUMENT.fullmatch(argument)
        if flag and not argument.startswith("-"):
            redacted.append(_judge(argument, _words(flag)))
        elif named:
            redacted.append(f"{named[1]}={_judge(named[2], _words(named[1]))}")
        else:
            redacted.append(redact_text(argument))
        flag = argument if argument.startswith("-") and not named else ""
    return redacted


def redact_text(text: str) -> str:
    """Redact a text: secrets by their shape, passwords in URLs, and ``name=value`` with a secret's name."""
    text = _SHAPES.sub(REDACTED, text)
    text = _URL.sub(rf"\g<1>{REDACTED}", text)
    text = _HEADER.sub(rf"\g<1>{REDACTED}", text)
    for pattern in _NAMED:
        text = pattern.sub(_judge_named, text)
    return text


def _redact(value: Any, words: frozenset[str], depth: int) -> Any:
    if isinstance(value, str):
        return _judge(value, words)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEPTH:
        return REDACTED
    if isinstance(value, dict):
        inherited = words - {"token"}  # the texts of a section named "token" are settings
        return {key: _redact(item, inherited | _words(str(key)), depth + 1) for key, item in value.items()}
    return [_redact(item, words, depth + 1) for item in value]


def _words(key: str) -> frozenset[str]:
    """Return the words of a key that are in the vocabulary: ``myApiKey``, ``MY_API-KEY`` and ``my.apikey`` have some."""
    words = {word.lower() for word in _CAMEL.findall(key)}
    words.update(re.split(r"[^a-z]+", key.lower()))
    return _VOCABULARY & words


def _judge(value: str, words: frozenset[str]) -> str:
    """Return *value*, or its redacted form, under a key of these *words*."""
    return REDACTED if words and value and _is_secret(value, words) else redact_text(value)


def _is_secret(value: str, words: frozenset[str]) -> bool:
    if words & _SECRETS or (words & _KEYS and words & _SECRET_KEY_PREFIXES):
        return True
    if "token" in words and _is_credential(value):
        return True
    return bool(words & _HEX_KEYS) and _HEX.fullmatch(value) is not None


def _is_credential(value: str) -> bool:
    """Return whether a token may be a credential, and not a word, ``<|endoftext|>`` or ``org/model-name``."""
    if len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value:
        return False
    return (value[0], value[-1]) not in {("<", ">"), ("[", "]")} and _PATH.fullmatch(value) is None


def _judge_named(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    quote = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    inner = value[1:-1] if quote else value
    if not inner or not (words := _words(name)) or not _is_secret(inner, words):
        return match[0]
    return f"{name}{between}{quote}{REDACTED}{quote}"
