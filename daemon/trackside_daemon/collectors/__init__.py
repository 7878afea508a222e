"""Collectors: one file a subject, each returns samples and reads nothing but its own source."""
