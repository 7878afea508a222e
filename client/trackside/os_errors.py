"""Texts of errors of the system: the reason in a few words, which continue a sentence."""


def os_error_text(error: BaseException) -> str:
    """Return why a call failed: the system's message if the error has one, otherwise its text."""
    text = getattr(error, "strerror", None) or str(error)
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # "RPC struct is bad", and units stay


def file_error_text(error: OSError) -> str:
    """Return the file that a call failed on, if the error names it, and why."""
    return f"{error.filename}: {os_error_text(error)}" if error.filename else os_error_text(error)
