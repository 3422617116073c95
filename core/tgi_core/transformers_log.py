"""Where transformers tells its warnings."""

from __future__ import annotations


def tell_in_our_log() -> None:
    """Let what transformers has to say become records of this process's log, instead of lines of its own on stderr."""
    from transformers.utils import logging

    logging.disable_default_handler()
    logging.enable_propagation()
