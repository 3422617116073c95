"""The Gaudi backend."""
