"""docs/operations.md: its backup of a history, taken while the daemon writes, has all runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from history.builders import session_id
from processes import DEADLINE, ROOT, clean_environ

from trackside_daemon.history.database import FILE, Database

if TYPE_CHECKING:
    from pathlib import Path

    from history.builders import Bench

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_backup_of_a_history_that_is_written_has_its_runs(bench: Bench, tmp_path: Path) -> None:
    bench.open(session_id(1), run="kept")
    (command,) = re.findall(r"```sh\n(python3 .*)\n```", PAGE)
    _, *rest = shlex.split(command.replace("/var/lib/trackside/history.db", str(bench.database.path)))
    with bench.database.transaction() as connection:  # not committed, so not in the copy
        connection.execute("UPDATE run SET pinned = 1")
        done = subprocess.run(
            [sys.executable, *rest],
            cwd=tmp_path,
            env=clean_environ(),
            capture_output=True,
            check=False,
            timeout=DEADLINE,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    (tmp_path / "restored").mkdir()
    (tmp_path / "history-backup.db").rename(tmp_path / "restored" / FILE)
    restored = Database(tmp_path / "restored")
    try:
        assert restored.connection.execute("SELECT uid, pinned FROM run").fetchall() == [("kept", 0)]
    finally:
        restored.close()
