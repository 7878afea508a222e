"""Describe the process that a run lives in.

In: environment variables, /proc, git's files and the user's configuration. Out: run identity, rank, attempt, visible GPUs,
process and Kubernetes details, as the session's hello carries them.
"""
