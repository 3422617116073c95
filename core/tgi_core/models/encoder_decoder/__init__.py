"""Encoder-decoders: an encoder that reads the whole input once, and a decoder that looks at it from every layer."""

from tgi_core.models.encoder_decoder.bart import BART_FAMILY
from tgi_core.models.encoder_decoder.t5 import T5_FAMILY

ENCODER_DECODERS = (*T5_FAMILY, *BART_FAMILY)

__all__ = ["ENCODER_DECODERS"]
