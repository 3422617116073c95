"""A GGUF file's tokenizer as ``tokenizer.json`` and ``tokenizer_config.json``."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from tgi_core.weights.gguf.byte_level import adds_bos_by_default, byte_level_tokenizer
from tgi_core.weights.gguf.metadata import GgufMetadata, refuse
from tgi_core.weights.gguf.sentencepiece import sentencepiece_tokenizer, with_visible_spaces
from tgi_core.weights.gguf.vocabulary import TokenType, Vocabulary, read_vocabulary, special_token_ids


def build_tokenizer(metadata: GgufMetadata) -> Tokenizer:
    """The complete tokenizer, with special tokens and the BOS and EOS that belong around a prompt.

    Raises:
        StartupError: the file has no tokenizer or one of a kind that is not supported.
    """
    vocabulary = read_vocabulary(metadata)
    kind = metadata.need("tokenizer.ggml.model", str)
    if kind == "gpt2":
        tokenizer = byte_level_tokenizer(metadata, vocabulary)
        add_bos = adds_bos_by_default(metadata)
    elif kind == "llama":
        vocabulary = with_visible_spaces(vocabulary)
        tokenizer = sentencepiece_tokenizer(metadata, vocabulary)
        add_bos = True
    else:
        raise refuse(
            metadata.path,
            f"has a tokenizer of kind `{kind}`; known are gpt2 (byte-level BPE) and llama (sentencepiece BPE)",
            "Serve the original model in safetensors instead.",
        )
    _add_tokens(tokenizer, vocabulary)
    _surround_prompts(tokenizer, metadata, vocabulary, add_bos)
    return tokenizer


def tokenizer_config(metadata: GgufMetadata) -> dict[str, Any]:
    """What goes into ``tokenizer_config.json``: special tokens by text and the chat templates."""
    tokens = metadata.strings("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.need_of_model("context_length", int),
        "clean_up_tokenization_spaces": False,
    }
    for name, number in special_token_ids(metadata).items():
        config[name.removesuffix("_id")] = tokens[number]
    template = _chat_template(metadata)
    if template is not None:
        config["chat_template"] = template
    return config


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special if token])
    ordinary = vocabulary.of_type(TokenType.USER_DEFINED)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ordinary if token])


def _surround_prompts(
    tokenizer: Tokenizer, metadata: GgufMetadata, vocabulary: Vocabulary, add_bos_by_default: bool
) -> None:
    add_bos = metadata.find("tokenizer.ggml.add_bos_token", bool)
    wanted = {
        "bos_token_id": add_bos_by_default if add_bos is None else add_bos,
        "eos_token_id": metadata.find("tokenizer.ggml.add_eos_token", bool) or False,
    }
    ids = special_token_ids(metadata)
    before, after = (
        [(vocabulary.tokens[ids[name]], ids[name])] if wanted[name] and name in ids else []
        for name in ("bos_token_id", "eos_token_id")
    )
    if before or after:
        first, last = [token for token, _ in before], [token for token, _ in after]
        tokenizer.post_processor = TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *[f"{token}:1" for token in first], "$B:1", *[f"{token}:1" for token in last]],
            special_tokens=list(dict.fromkeys([*before, *after])),
        )


def _chat_template(metadata: GgufMetadata) -> str | list[dict[str, str]] | None:
    default = metadata.find("tokenizer.chat_template", str)
    names = metadata.strings("tokenizer.chat_templates") or []
    named = {name: metadata.need(f"tokenizer.chat_template.{name}", str) for name in names}
    if not named:
        return default
    templates = ({} if default is None else {"default": default}) | named
    return [{"name": name, "template": text} for name, text in templates.items()]
