"""mkdocs hook: keep only links that work on the site.

A link to a directory works in a clone, but a site has no directory listings: such a link becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page without its links to directories."""
    parent = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def text_of_directory(match: re.Match[str]) -> str:
        return match[1] if (parent / match[2]).is_dir() else match[0]

    return LINK.sub(text_of_directory, markdown)
