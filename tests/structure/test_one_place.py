"""Each of these rules has one place in the product."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PRODUCT = [Path(__file__).parents[2] / folder for folder in ("client/trackside", "daemon/trackside_daemon")]

PLACES = {
    "the nearest name to an unknown one": (r"get_close_matches", {"config/near.py"}),
    "a value that pydantic refuses, in one line": (
        r"\.errors\(\)\[0\]\[|removeprefix\(.Value error",
        {"config/near.py"},
    ),
    "parameters of a request": (r"\.query_params", {"web/api/history_access.py", "web/app.py"}),
}


@pytest.mark.parametrize("what", PLACES)
def test_it_is_written_in_one_place(what: str) -> None:
    pattern, places = PLACES[what]
    found = {
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for root in PRODUCT
        for path in root.rglob("*.py")
        if str(path.relative_to(root)) not in places
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    }
    assert not found, f"{what}: use {', '.join(sorted(places))}"
