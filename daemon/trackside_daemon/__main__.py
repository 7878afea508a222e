"""The `trackside` command. In an installation without the daemon it reports which extra to install."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from trackside_daemon.cli.main import app

        app(prog_name="trackside")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trackside"):
            raise
        print(  # noqa: T201
            f"trackside: this command needs the package {error.name}; install it with: pip install 'trackside[daemon]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:  # Ctrl-C while it is still importing: stopped as asked
        sys.exit(0)


if __name__ == "__main__":
    main()
