"""The kinds of captures, a file each: how ranks are recorded, what becomes of their files, and what is reported of them.

A request enters with the ranks to record; files, a summary as JSON and its text leave.
"""
