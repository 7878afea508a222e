"""`trackside run`: a command with a daemon next to it, and a summary of its runs.

In: the command, the configuration and the daemon's flags. Out: the command's exit status.
"""
