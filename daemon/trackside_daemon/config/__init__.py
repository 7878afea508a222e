"""Load the daemon's configuration.

In: a YAML file, ``TRACKSIDE_*`` variables and flags, the later over the earlier. Out: a checked `Config`.
Errors name the key, the value and the fix in one line.
"""
