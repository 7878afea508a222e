"""Collect the size and use of file systems.

In: configured paths and the kernel's mount table. Out: samples per mount.
Child processes read file systems that may hang.
"""
