"""What structured output costs the host: ``python -m bench.grammar``."""
