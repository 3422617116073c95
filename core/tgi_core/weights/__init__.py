"""Checkpoints: finding or downloading a model, reading safetensors, converting GGUF files."""
