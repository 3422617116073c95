"""The model shards that the core provides."""

from tgi_core.shards.eager import EagerShard

__all__ = ["EagerShard"]
