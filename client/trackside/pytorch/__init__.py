"""Measure a PyTorch training from inside its process.

In: a watched model, its optimizer and device tensors. Out: norms, step stages, memory and device scalars, as values of
the run. Nothing here synchronizes with a GPU or calls a collective.
"""
