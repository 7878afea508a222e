"""Find damage of the history's file in time, and copy what is left of a damaged file.

In: the file, or a damaged one and its WAL. Out: what is damaged; a new file with the rows of all pages that can be read.
"""
