"""Byte-level BPE tokenizers (``tokenizer.ggml.model`` gpt2): vocabulary and merges are in the file, the rule by which
text is split before the merges only by name, ``tokenizer.ggml.pre``."""

from __future__ import annotations

import msgspec
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, refuse
from tgi_core.weights.gguf.vocabulary import Vocabulary

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD_AND_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_WORD_AND_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_WORD_AND_REST}"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What llama.cpp falls back to when its converter did not know the tokenizer: four rules, one after the other.
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


class _SplitRule(msgspec.Struct, frozen=True):
    """How text is split before merging.

    Attributes:
        patterns: regular expressions that isolate their matches, applied in turn; none means GPT-2's.
        single_digits: digits are split off one by one first.
        nfc: text is brought into Unicode normal form C.
        whole_words: a piece that is in the vocabulary is taken without merging.
        add_bos: a prompt starts with the BOS token unless the file says otherwise.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_GPT2_RULE = _SplitRule()
_LLAMA3_RULE = _SplitRule((_LLAMA3,), whole_words=True, add_bos=True)
_DIGITS_RULE = _SplitRule(single_digits=True)
_QWEN2_RULE = _SplitRule((_QWEN2,), nfc=True)
_RULES = {
    "default": _SplitRule(_DEFAULT),
    "gpt-2": _GPT2_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "tekken": _SplitRule((_TEKKEN,), whole_words=True),
}


def byte_level_tokenizer(metadata: GgufMetadata, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without its special tokens.

    Raises:
        StartupError: the splitting rule is unknown, or the merges do not fit the vocabulary.
    """
    rule = _rule(metadata)
    merges = metadata.strings("tokenizer.ggml.merges")
    if merges is None:
        raise refuse(metadata.path, "has no merges for its byte-level tokenizer", CONVERT_AGAIN)
    try:
        pairs = [_split_merge(merge) for merge in merges]
        model = BPE(vocabulary.ids(), pairs, ignore_merges=rule.whole_words)
    except Exception as error:  # the library raises plain exceptions
        raise refuse(metadata.path, f"has merges that do not fit its vocabulary: {error}", CONVERT_AGAIN) from error
    tokenizer = Tokenizer(model)
    if rule.nfc:
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def adds_bos_by_default(metadata: GgufMetadata) -> bool:
    """Whether a tokenizer of this kind starts every prompt with BOS where the file does not say."""
    return _rule(metadata).add_bos


def _rule(metadata: GgufMetadata) -> _SplitRule:
    name = metadata.find("tokenizer.ggml.pre", str)
    if name is None and metadata.architecture in ("qwen2", "qwen3"):
        name = "qwen2"
    if name is None:
        raise refuse(metadata.path, "does not say how its tokenizer splits text (`tokenizer.ggml.pre`)", CONVERT_AGAIN)
    if name not in _RULES:
        raise refuse(
            metadata.path,
            f"splits text by `{name}` (`tokenizer.ggml.pre`); known are {', '.join(sorted(_RULES))}",
            "Serve the original model in safetensors instead.",
        )
    return _RULES[name]


def _split_merge(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator:
        raise ValueError(f"`{merge}` is not a pair")
    return left, right


def _pre_tokenizer(rule: _SplitRule) -> PreTokenizer:
    steps: list[PreTokenizer] = [Digits(individual_digits=True)] if rule.single_digits else []
    steps += [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    steps.append(ByteLevel(add_prefix_space=False, use_regex=not rule.patterns))
    return steps[0] if len(steps) == 1 else Sequence(steps)
