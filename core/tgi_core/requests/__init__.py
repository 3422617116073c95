"""The text side of a request: validation, chat templates, tokenization, detokenization, stop strings."""

from tgi_core.requests.bad_words import encode_bad_words
from tgi_core.requests.chat import ChatTemplate
from tgi_core.requests.detokenize import IncrementalDetokenizer
from tgi_core.requests.generation import Alternatives, FinishReason, Generation, GenerationOutput, PromptScoring
from tgi_core.requests.options import EncoderLimits, GenerationOptions, RequestLimits, fit_prompt
from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.requests.stopping import StopHit, StopMatcher
from tgi_core.requests.tokenizer import TextTokenizer, TokenSpan
from tgi_core.requests.unsupported import GENERATE_FIELDS, keep_supported
from tgi_core.requests.validation import require_inputs, validate_generate, validate_openai

__all__ = [
    "GENERATE_FIELDS",
    "Alternatives",
    "ChatTemplate",
    "EncoderLimits",
    "FinishReason",
    "GenerateParameters",
    "Generation",
    "GenerationOptions",
    "GenerationOutput",
    "IncrementalDetokenizer",
    "OpenAIParameters",
    "PromptScoring",
    "RequestLimits",
    "StopHit",
    "StopMatcher",
    "TextTokenizer",
    "TokenSpan",
    "encode_bad_words",
    "fit_prompt",
    "keep_supported",
    "require_inputs",
    "validate_generate",
    "validate_openai",
]
