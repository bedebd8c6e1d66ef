"""clefquant: makes Clef decision models small and fast, and shows what that changed."""

__version__ = "0.1.0"
