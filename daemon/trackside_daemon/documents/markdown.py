"""Write a document as Markdown; what runs wrote is escaped."""

from collections.abc import Iterable, Iterator

from trackside_daemon.documents.elements import Cell, Code, Document, Table, bounded, bounded_lines, texts
from trackside_daemon.model.text import escaped, markdown_rows, shown


def write(document: Document) -> str:
    """Return the document's tables as Markdown."""
    lines = [f"# {escaped(shown(document.title))}"]
    for table in document.tables:
        lines += _table(bounded(table))
    return "\n".join(lines) + "\n"


def _table(table: Table) -> Iterator[str]:
    yield from ("", f"## {escaped(table.title)}") if table.title else ()
    yield ""
    if not table.header and len(table.rows[0]) == 1:
        yield from _lines([row[0] for row in table.rows])
        return
    header = table.header or ("", "")
    yield from markdown_rows(map(_cells, [header, *table.rows]))


def _lines(lines: list[Cell]) -> Iterator[str]:
    """Yield lines as a block of code, a list, or a paragraph."""
    if isinstance(lines[0], Code):
        yield from (f"    {text}" for text in texts(lines))
        return
    mark = "- " * (len(lines) > 1)
    yield from (f"{'  ' * text.startswith(' ')}{mark}{escaped(text.strip())}" for text in texts(lines))


def _cells(cells: Iterable[Cell]) -> list[str]:
    return [" / ".join(bounded_lines(cell)) for cell in cells]
