"""The TPU backend."""
