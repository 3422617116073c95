"""Converts GGUF files to folders in Hugging Face's layout, so that the rest of the server knows one format."""

from tgi_core.weights.gguf.convert import convert_gguf

__all__ = ["convert_gguf"]
