"""Benchmarks: speed and memory, compared with the alternatives; each is a script, run by ``make bench``."""
