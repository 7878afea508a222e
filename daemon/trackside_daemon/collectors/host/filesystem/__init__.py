"""Collect the size and use of file systems.

In: configured paths and the kernel's mount table. Out: samples per mount.
File systems that may hang are read by child processes.
"""
