"""Seeds."""


def manual_seed_all(seed):
    int(seed)
