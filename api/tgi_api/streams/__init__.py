"""Streamed replies: each turns tokens into the bytes of its route's events."""
