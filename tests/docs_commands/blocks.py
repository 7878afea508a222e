"""The commands that README and the pages show, in blocks of sh and of console."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [
    path
    for pattern in ("README.md", "docs/**/*.md", "deploy/**/*.md", "grafana/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Command(NamedTuple):
    """A command line with its continuation lines.

    Attributes:
        page: The path of the page from the root.
        text: The text for the shell.
        near: The words of the page's beginning and of the command's section.
    """

    page: str
    text: str
    near: str


def fences(page: Path) -> list[tuple[str, str, str]]:
    """Return the blocks of a page: language, text, and the words of their section and of the page's beginning."""
    first, *sections = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for section in (first, *sections):
        words = " ".join(_FENCE.sub("", first + section).split())
        found += [(language, text, words) for language, text in _FENCE.findall(section)]
    return found


def commands(page: Path) -> list[Command]:
    """Return the commands of a page, in their order."""
    found = []
    for language, text, near in fences(page):
        if language in {"sh", "console"}:
            prompted = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            lines = "\n".join(prompted) if language == "console" else text
            found += [Command(str(page.relative_to(ROOT)), one, near) for one in _logical(lines)]
    return found


def _logical(text: str) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    bare = (re.sub(r"(^|\s)#\s.*", "", line).strip() for line in lines)
    return [line for line in bare if line]


def programs(text: str) -> list[list[str]]:
    """Return the words of each program that a command runs, except programs within `$(…)`."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
        else:
            found[-1].append(word)
    return [_unwrapped(words) for words in found if words]


def _unwrapped(words: list[str]) -> list[str]:
    """Return a command without variables, `sudo` and the path of its program."""
    while words and (words[0] == "sudo" or re.match(r"\w+=", words[0])):
        words = words[1:]
    return [words[0].rpartition("/")[2], *words[1:]] if words else []
