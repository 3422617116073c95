"""A fake compiler: only its version counts."""

__version__ = "2.21.33363.0"
