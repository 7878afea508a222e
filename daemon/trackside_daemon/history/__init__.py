"""The memory of runs: every sample of every run, in one file, beside which nobody needs a server."""
