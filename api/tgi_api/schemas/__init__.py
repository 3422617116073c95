"""The wire types: bodies and replies as typed structs. Unknown fields of bodies are ignored."""
