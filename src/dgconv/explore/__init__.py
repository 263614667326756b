"""A page to look inside a run: what it predicts for an image, what that costs, and which channels the image chose.

``session`` answers questions about the run; ``server`` puts it behind a local web page, ``page`` into a single file.
"""
