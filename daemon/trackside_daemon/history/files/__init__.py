"""The history as files: written out, read in, and appended to as JSON lines."""
