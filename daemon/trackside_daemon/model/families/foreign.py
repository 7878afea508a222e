"""Families about the numbers of other programs, and those of NCCL's Inspector, which the daemon also reads itself."""

from trackside_daemon.model.metric import define

TEXTFILE_MTIME = define(
    "trackside_textfile_mtime_seconds", "When a file that is served was written, in Unix time.", "file"
)
TEXTFILE_ERROR = define("trackside_textfile_scrape_error", "1 if a file of the directory cannot be served, else 0.")
