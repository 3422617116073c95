"""Models that no architecture of ours describes: transformers' modules over our paged attention."""
