"""The version of this package, which stands in every file it writes."""

__version__ = "0.1.0"
