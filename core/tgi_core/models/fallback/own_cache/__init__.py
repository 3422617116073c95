"""Transformers' own forward, attention and cache: for models that cannot run over our paged attention."""
