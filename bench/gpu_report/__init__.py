"""Measure everything that needs an NVIDIA GPU, and write one report; run by ``make gpu``.

Enters: a machine with a GPU, a Python with PyTorch, and a folder of wheels (``make gpu-wheels``). Leaves: ``gpu-report.md``, with
each figure next to its limit. Each part is a process with a time limit; a part that fails is reported, and the others still run.
"""
