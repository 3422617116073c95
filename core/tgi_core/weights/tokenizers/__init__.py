"""Tokenizers that come in another form than ``tokenizer.json``: converted to it, or run as the Python code they are."""
