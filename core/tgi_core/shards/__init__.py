"""Model shards that the core provides."""

from tgi_core.shards.bucketed import BucketedShard
from tgi_core.shards.eager import EagerShard
from tgi_core.shards.whole_model import WholeModelShard

__all__ = ["BucketedShard", "EagerShard", "WholeModelShard"]
