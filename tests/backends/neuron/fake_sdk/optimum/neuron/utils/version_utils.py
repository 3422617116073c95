"""Versions of what is installed."""


def get_neuronxcc_version() -> str:
    """Of the compiler."""
    import neuronxcc

    return neuronxcc.__version__
