"""A real git repository, and git's own answers about it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Repository:
    """A real repository with a script in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "train.py").touch()

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        ran = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "HEAD")
