"""Write a document as CSV: each table with its title, and an empty line between them."""

from trackside_daemon.documents.elements import Document, Table, texts
from trackside_daemon.model.text import csv_line


def write(document: Document) -> str:
    """Return the document's tables as CSV."""
    return "\n".join("".join(csv_line(line, signed=True) for line in _lines(table)) for table in document.tables)


def _lines(table: Table) -> list[list[str]]:
    title = [[table.title]] if table.title else []
    header = [table.header] if table.header else []
    return [texts(line) for line in (*title, *header, *table.rows)]
