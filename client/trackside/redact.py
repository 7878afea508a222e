"""Remove what looks like a secret from configurations, command lines and texts before they are written or sent.

The client does so, since its spool can lie in a shared directory; the daemon does so again, for older clients and alerts.

A value is judged by its key and by its shape. In doubt it is removed: a lost setting costs less than a leaked password.
A "token" in the sense of machine learning stays, or every tokenizer's settings would be lost.
"""

import io
import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from trackside.patterns import pattern

REDACTED = "[redacted]"

NAME_LINES = 2  # of a statement in code, after the name of a secret, in which its value is looked for
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

_CAMEL = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HEX = pattern(r"[0-9a-f]{40}")
_PATH = pattern(r"[~.]{0,2}/?[\w.@-]+(/[\w.@-]+)+/?", re.ASCII)

# Every pattern begins at a word boundary or has bounded repeats, so the cost is linear in the text: no two starting
# points may scan the same characters.
_SHAPES = pattern(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{0,16}?[A-Za-z0-9]{16}[\w-]*"  # OpenAI, Anthropic and others; sk-learn-… has no word of 16 letters
    r"|hf_[A-Za-z0-9]{20,}"
    r"|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|AIza[\w-]{35,}|ya29\.[\w-]{16,}"
    r"|nvapi-[\w-]{20,}"
    r"|wandb_v1_\w{20,}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,})",
    re.ASCII,
)
# A part of each shape, which is quicker to search for.
_OF_SHAPES = (
    *("sk-", "hf_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza"),
    *("ya29.", "nvapi-", "wandb_v1_", "eyJ"),
)
_URL = pattern(r"""(://[^\s/?#:@"']*:)([^\s/?#"']+)(?=@)""", re.ASCII)
_HEADER = pattern(
    r"(\b(?:authorization|(?:api|auth|access)-(?:key|token)):[ \t]{0,4}(?:[a-z]{1,16}[ \t]{1,4})?"
    r"|\bbearer[ \t]{1,4}(?=[\w.~+/=-]{16})(?=[\w.~+/=-]{0,100}[0-9]))"
    r"""([^\s"',;]{8,})""",
    re.ASCII | re.IGNORECASE,
)
_VALUE = r""""[^"]*"|'[^']*'|"""
_NAMED = (
    pattern(rf"""(?<![\w.-])(-*[A-Za-z_][\w.-]*)(=)({_VALUE}[^\s"'&;,]+)""", re.ASCII),
    pattern(rf"(?<!\S)(--[A-Za-z][\w.-]*)([ \t]{{1,4}})(?!-)({_VALUE}\S+)", re.ASCII),
    pattern(r"""("[\w. -]{1,100}"|'[\w. -]{1,100}')(\s{0,8}:\s{0,8})("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.ASCII),
)
# A name in a text, with what stands between it and its value: that may be on the next line, as after a prompt.
_ASSIGNED = pattern(
    r"""(?<![\w.-])((?:(?:access|api|auth|private|secret)[ \t])?[a-z_][\w.-]*)"""
    r"""([ \t]{0,4}(?:=(?!=)|:(?:[ \t]{0,4}\r?\n(?![ \t-]{0,40}[\w.-]{1,100}[ \t]{0,4}[:=])[ \t]{0,40}(?:-[ \t])?)?)[ \t]{0,4})"""
    rf"""(?![a-z]{{1,16}}[ \t]{{1,4}}\[redacted\])({_VALUE}[^\s"'&;,]+)""",
    re.ASCII | re.IGNORECASE,
)
# A line of YAML, whose value may have spaces.
_MEMBER = pattern(r"(?m)^([ \t-]{0,40}[A-Za-z_][\w.-]*)([ \t]{0,4}:[ \t]{1,4})([^\s{\[][^\r\n]*)", re.ASCII)
# W&B asks for the key in one line with it.
_AFTER_API_KEY = pattern(r"(?i)(\bapi[ _-]?key\b[^\r\n]{0,200}?\b)([0-9a-f]{40})\b", re.ASCII)
_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "credential", "auth", "bearer", "cookie"),
    "accesstoken",
)

# What follows the escape character in the control sequences of a terminal (ECMA-48).
CONTROL = r"(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]{1,4}[0-~]|[@-Z\\-_])"
_CONTROL = pattern(rf"\x1b{CONTROL}")

_KEY_BEGINS = pattern(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?")
_KEY_ENDS = pattern(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-----)?")
_KEY_HEADER = pattern(r"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset):")
_KEY_BODY = pattern(r"[A-Za-z0-9+/=]+")
_KEY_LINES = 500  # of a private key; one of 16,384 bits has 200
_SHORT_CHARACTERS, _SHORT_LINES = 40, 3  # a line of a key with fewer characters is its last one; so many are accepted
_LINE = pattern(r"[^\r\n]*(?:\r\n?|\n|\Z)")

_ARGUMENT = pattern(r"([-+~]*[A-Za-z_][\w.-]*)=(.*)", re.ASCII | re.DOTALL)


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


def redact_text(text: str, *, named: bool = False) -> str:
    """Redact a text: secrets by their shape, passwords in URLs, and ``name=value`` or ``name: value`` with a secret's name.

    Colours and other control sequences of a terminal hide nothing; a line with a secret loses them.

    Args:
        text: The text.
        named: It begins with the name of a run or of a key and a colon, which do not make a secret of what follows.
    """
    if named:
        return _redact_named(_redact_shapes(text))
    if "\x1b" not in text:
        return _redact_plain(text)
    plain = _CONTROL.sub("", text)
    redacted = _redact_plain(plain)
    if redacted == plain:
        return _redact_plain(text) if "\x1b]" in text else text  # the title of a window is not in the plain text
    lines = [part.split("\n") for part in (text, plain, redacted)]
    if not len(lines[0]) == len(lines[1]) == len(lines[2]):
        return redacted
    return "\n".join(raw if before == after else after for raw, before, after in zip(*lines, strict=True))


def redact_code(text: str) -> str | None:
    """Redact Python code: also strings that follow a secret's name in another way, as in ``os.environ["DB_PASSWORD"] = "…"``.

    Return None if it is not Python.
    """
    import tokenize  # of which a push needs nothing

    if not _may_name_secret(text):
        return redact_text(text)
    lines = list(io.StringIO(text))
    starts = [0, *accumulate(map(len, lines))]
    names: list[tuple[int, frozenset[str]]] = []  # of a statement, with their lines
    parts, at = [], 0
    try:
        for kind, string, (row, column), (end, end_column), _ in tokenize.generate_tokens(iter(lines).__next__):
            if kind == tokenize.ERRORTOKEN and string.strip():
                return None
            if kind == tokenize.NEWLINE:
                names.clear()
            is_string = kind in {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
            inner = string.lstrip("rRbBuUfF").strip("\"'") if is_string else string
            if is_string and any(
                row - line <= NAME_LINES and inner and _is_secret(inner, words) for line, words in names
            ):
                begin = starts[row - 1] + column
                parts += [text[at:begin], f'"{REDACTED}"' if kind == tokenize.STRING else REDACTED]
                at = starts[end - 1] + end_column
            elif (is_string or kind == tokenize.NAME) and (words := _words(_last_words(inner[:100]))):
                names.append((row, words))
    except (tokenize.TokenError, SyntaxError):
        return None
    return redact_text("".join((*parts, text[at:])))


def judged(text: str) -> int:
    """Return how many characters of a growing text `redact_text` judges as it will when more has come."""
    for match in _KEY_BEGINS.finditer(text):
        if _key_end(text, match.end()) is None:
            return match.start()
    begin = max(text.rstrip().rfind("\n"), text.rstrip().rfind("\r")) + 1
    name, between, value = _CONTROL.sub("", text[begin:]).rpartition(":")
    return begin if between and not value.strip() and _words(_last_words(name[-100:])) else len(text)


def _redact_plain(text: str) -> str:
    text = _redact_shapes(text)
    if not _may_name_secret(text):
        return text
    return _ASSIGNED.sub(_judge_assigned, _MEMBER.sub(_judge_member, _redact_named(text)))


def _redact_named(text: str) -> str:
    text = _HEADER.sub(rf"\g<1>{REDACTED}", text)
    text = _AFTER_API_KEY.sub(rf"\g<1>{REDACTED}", text)
    for named in _NAMED:
        text = named.sub(_judge_named, text)
    return text


def _redact_shapes(text: str) -> str:
    if "-----BEGIN" in text:
        text = _without_private_keys(text)
    if any(part in text for part in _OF_SHAPES):
        text = _SHAPES.sub(REDACTED, text)
    if "://" in text:
        text = _URL.sub(rf"\g<1>{REDACTED}", text)
    return text


def _may_name_secret(text: str) -> bool:
    """Return whether a text has a word of the vocabulary; quick, as most outputs have none or only counts of tokens."""
    text = text.lower()
    return (
        any(name in text for name in _NAMES)
        or ("key" in text and any(prefix in text for prefix in ("api", "access", "private", "wandb")))
        or text.count("token") > text.count("tokens") + text.count("tokeni")
        or (("wandb" in text or "api" in text) and _HEX.search(text) is not None)
    )


def _without_private_keys(text: str) -> str:
    parts, at = [], 0
    for match in _KEY_BEGINS.finditer(text):
        if match.start() >= at:
            parts += [text[at : match.start()], REDACTED]
            end = _key_end(text, match.end())
            at = len(text) if end is None else end
    return "".join((*parts, text[at:]))


def _key_end(text: str, begin: int) -> int | None:
    """Return the end of a private key whose first words end at *begin*; None if the text ends before.

    A key without an end, as in a cut log, ends with the last line that can be one of its lines.
    """
    end = begin
    short = 0
    for number, match in enumerate(_LINE.finditer(text, begin)):
        if last := _KEY_ENDS.search(match[0]):
            return match.start() + last.end()
        line = match[0].strip(" \t\r\n\"',\\")
        word = line.rpartition(" ")[2]  # in a log, a time comes before
        if number and line and not _KEY_HEADER.search(line, 0, 100):
            short += len(word) < _SHORT_CHARACTERS
            if (
                not _KEY_BODY.fullmatch(word)
                or (len(word) < _SHORT_CHARACTERS and word != line)
                or short > _SHORT_LINES
            ):
                return end
        if match.end() == len(text):
            return None
        end = match.start() + len(match[0].rstrip("\r\n"))
        if number == _KEY_LINES:
            break
    return end


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


def _judge_member(match: re.Match[str]) -> str:
    """Return a line of YAML without its value, if its name alone says that it is a secret."""
    is_secret = REDACTED not in match[3] and _is_secret("", _words(_last_words(match[1])))
    return f"{match[1]}{match[2]}{REDACTED}" if is_secret else match[0]


def _judge_assigned(match: re.Match[str]) -> str:
    return _judge_named(match) if _words(_last_words(match[1])) else match[0]


def _last_words(name: str) -> str:
    """Return the end of a name, which says what it names: an auth-model and an AuthError are no secrets."""
    words = _CAMEL.findall(name)
    return " ".join(words[-2:] if words[-1:] and words[-1].lower() in _KEYS | {"token"} else words[-1:])


def _judge_named(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    quote = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    inner = value[1:-1] if quote else value
    if not inner or not (words := _words(name)) or not _is_secret(inner, words):
        return match[0]
    return f"{name}{between}{quote}{REDACTED}{quote}"
