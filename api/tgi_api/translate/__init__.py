"""Requests of other chat APIs as bodies of /v1/chat/completions."""
