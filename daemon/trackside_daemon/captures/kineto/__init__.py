"""Profiles by the protocol of libkineto, which PyTorch's Linux wheels contain: the training needs environment variables alone.

In: datagrams of trainings that ask for work, and captures. Out: configurations, and the traces that PyTorch then writes.
"""
