"""Output of the commands."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from math import isnan
from operator import itemgetter
from typing import Any, TypeVar

import typer

from trackside_daemon.cli.errors import CommandError
from trackside_daemon.documents.elements import Document
from trackside_daemon.model.text import shown

FORMS = ("text", "markdown", "html", "csv", "json")
SHORT = {"md": "markdown", "htm": "html", "txt": "text"}

T = TypeVar("T")


def form_of(text: str, *, as_json: bool = False, most: Iterable[str] = FORMS) -> str:
    """Return the form of a document that ``--format`` names, or that ``--json`` selects.

    Raises:
        CommandError: There is no such form.
    """
    form = SHORT.get(text, text)
    if form not in most:
        raise CommandError(f"--format: {text!r} is not one of {', '.join(most)}")
    return "json" if as_json else form


def written(document: Document, form: str) -> str:
    """Return a document as text, Markdown, HTML or CSV."""
    from trackside_daemon.documents import csv, html, markdown, text

    if form == "text":
        return "".join(f"{line}\n" for line in text.write(document))
    writers: Mapping[str, Callable[[Document], str]] = {
        "markdown": markdown.write,
        "html": html.write,
        "csv": csv.write,
    }
    return writers[form](document)


def print_answer(value: Any, form: str, document: Callable[[], Document]) -> None:
    """Print a value as JSON, or its document in another form."""
    if form == "json":
        print_json(value)
    else:
        print_lines(written(document(), form).removesuffix("\n").split("\n"))


def print_lines(lines: Iterable[str], *, exact: bool = False) -> None:
    """Print lines; characters that the terminal's encoding lacks are escaped, and of *exact* ones those that could control it."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in (shown(one.expandtabs()) for one in lines) if exact and sys.stdout.isatty() else lines:
        typer.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


def ordered(items: Iterable[T], by: str, value: Callable[[T, str], Any]) -> list[T]:
    """Return items by a value, rising, or falling if the name begins with ``-``; those without the value come last.

    Args:
        items: What to order.
        by: The name of the value.
        value: Returns an item's value of this name: a number, a text, or None.
    """
    groups: tuple[list[tuple[Any, T]], ...] = ([], [], [])
    for item in items:
        found = value(item, by.removeprefix("-"))
        is_number = isinstance(found, int | float) and not isnan(found)
        groups[0 if is_number else 1 if isinstance(found, str) else 2].append((found, item))
    for group in groups[:2]:
        group.sort(key=itemgetter(0), reverse=by.startswith("-"))
    return [item for group in groups for _, item in group]
