"""Write a document as CSV: each table with its title, and an empty line between them."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from trackside_daemon.documents.elements import texts

if TYPE_CHECKING:
    from trackside_daemon.documents.elements import Document


def write(document: Document) -> str:
    """Return the document's tables as CSV."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for place, table in enumerate(document.tables):
        lines.writerows([[]] if place else [])
        lines.writerows([texts([table.title])] if table.title else [])
        lines.writerows([texts(table.header)] if table.header else [])
        lines.writerows(map(texts, table.rows))
    return out.getvalue()
