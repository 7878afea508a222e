"""mkdocs hook: keep only links that work on the site, and put in front what people search for.

A link to a directory works in a clone, but a site has no directory listings: such a link becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

UNSEARCHED = frozenset(("CHANGELOG.md", "bench/README.md", ".github/CONTRIBUTING.md"))
# Whoever searches for a symptom or a task wants this rather than the tables of the reference.
BOOSTS = {
    "docs/troubleshooting.md": 1.6,
    "docs/notifications.md": 1.8,
    "docs/prometheus.md": 1.4,
    "docs/bridges.md": 1.4,
    "docs/commands.md": 0.8,
    "docs/metrics.md": 0.3,
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page without its links to directories; its meta data say what the search may find of it."""
    source = page.file.src_uri
    page.meta["search"] = {"exclude": True} if source in UNSEARCHED else {"boost": BOOSTS.get(source, 1.0)}
    parent = (Path(config["docs_dir"]) / source).parent

    def text_of_directory(match: re.Match[str]) -> str:
        return match[1] if (parent / match[2]).is_dir() else match[0]

    return LINK.sub(text_of_directory, markdown)
