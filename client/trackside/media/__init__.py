"""Images, texts and tables of a run, each bounded.

In: arrays, tensors, figures, texts and rows of the training code. Out: PNG, text and JSON, which the sender thread sends.
"""
