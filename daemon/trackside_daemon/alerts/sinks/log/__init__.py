"""The daemon's own log."""
