"""What can become of an input. A ``UserError`` is ``refused``; any other exception but ``Wrong`` is a raw one."""

GOOD = ("refused", "accepted", "equal", "undecided")  # what a target's ``run`` may return; accepted: nothing to compare
BAD = ("crash", "hang", "wrong", "raw", "memory")  # findings


class Wrong(AssertionError):
    """A file was accepted and gave a result that is not the one it describes."""
