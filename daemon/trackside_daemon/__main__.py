"""The `trackside` command. In an installation without the daemon it reports which extra to install."""

import gc
import os
import sys

GARBAGE = 50_000
"""New objects before a garbage collection: those of imports stay, and to examine them takes a twentieth of their time."""


def main() -> None:
    """Run the command line."""
    _open_standard_streams()
    gc.set_threshold(GARBAGE)
    try:
        from trackside_daemon.cli.main import app

        app(prog_name="trackside")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trackside"):
            raise
        extra = {"demo": "demo", "top": "daemon,top", "archive": "daemon,arrow"}.get(" ".join(sys.argv[1:2]), "daemon")
        print(  # noqa: T201
            f"trackside: this command needs the package {error.name}; install it with: pip install 'trackside[{extra}]'"
            f" (uvx: append [{extra}] to what follows --from)",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:  # Ctrl-C while it is still importing: stopped as asked
        sys.exit(0)


def _open_standard_streams() -> None:
    """Open the null device for the standard streams that are closed: a file or socket would get their numbers otherwise."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


if __name__ == "__main__":
    main()
