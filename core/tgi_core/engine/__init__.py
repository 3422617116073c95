"""The engine: the loop that drives a shard, its client in the API process, the frames between them, supervision."""
