"""CPU benchmarks against other engines on the same weights and the same machine: ``python -m bench.cpu --help``."""
