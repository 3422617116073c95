"""A sentencepiece model as a fast tokenizer."""

from __future__ import annotations

import re

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from tgi_core.weights.gguf.sentencepiece import SPACE, merges_by_score
from tgi_core.weights.gguf.vocabulary import TokenType
from tgi_core.weights.tokenizers.files import TokenizerSettings, refuse
from tgi_core.weights.tokenizers.sentencepiece_model import ModelType, SentencepieceModel
from tgi_core.weights.tokenizers.special import add_tokens, surround

_ENDS_WITH_EOS = ("T5Tokenizer", "MT5Tokenizer")
_T5_TYPES = ("t5", "mt5", "umt5")
_T5_SENTINELS = 100
_BOS, _EOS = ("<s>", "<bos>"), ("</s>", "<eos>")


def is_t5(settings: TokenizerSettings) -> bool:
    """Whether the tokenizer is T5's: it ends texts with EOS, and its class adds sentinels to the model's pieces."""
    return settings.class_name in _ENDS_WITH_EOS or (not settings.class_name and settings.model_type in _T5_TYPES)


def sentencepiece_tokenizer(model: SentencepieceModel, settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer with special tokens, and with BOS and EOS around a text as the settings say.

    Raises:
        StartupError: the model's algorithm has no fast form, or an added token would get another id.
    """
    if model.kind not in (ModelType.BPE, ModelType.UNIGRAM) or model.spaces_at_end:
        raise refuse(
            f"a sentencepiece model of kind {model.kind.name.lower()}"
            f"{' with spaces at the end of words' if model.spaces_at_end else ''} has no fast form.",
            "Serve a model with a tokenizer.json.",
        )
    continues = settings.values.get("legacy") is False and model.adds_prefix
    own = [piece for piece in model.vocabulary.of_type(TokenType.USER_DEFINED) if piece.strip(" " + SPACE)]
    tokenizer = _bpe(model, whole_words=bool(own)) if model.kind is ModelType.BPE else _unigram(model)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.chars_map)] if model.chars_map else []
    if model.removes_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.adds_prefix and not continues:
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if continues:
        cuts.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    if own and model.adds_prefix:
        # As added tokens they would cut the text before it is normalized, and what follows would get a space.
        longest_first = sorted(own, key=len, reverse=True)
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated"))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.adds_prefix:
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    special = model.vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    plain = [] if model.adds_prefix else own
    sentinels = []
    if is_t5(settings) and "added_tokens_decoder" not in settings.values:
        count = settings.values.get("extra_ids", _T5_SENTINELS)
        sentinels = [f"<extra_id_{number}>" for number in reversed(range(count if isinstance(count, int) else 0))]
    add_tokens(tokenizer, settings, [*special, *sentinels], plain)
    t5 = is_t5(settings)
    bos = settings.token("bos_token") or next((token for token in _BOS if token in special), None)
    eos = settings.token("eos_token") or next((token for token in _EOS if token in special), None)
    surround(tokenizer, settings, bos, eos, adds_bos=not t5, adds_eos=t5)
    return tokenizer


def _bpe(model: SentencepieceModel, *, whole_words: bool) -> Tokenizer:
    unknown = model.vocabulary.of_type(TokenType.UNKNOWN)
    return Tokenizer(
        BPE(
            model.vocabulary.ids(),
            merges_by_score(model.vocabulary, model.scores),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=model.falls_back_to_bytes,
            ignore_merges=whole_words,
        )
    )


def _unigram(model: SentencepieceModel) -> Tokenizer:
    types = model.vocabulary.types
    unknown = types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else None
    pieces = list(zip(model.vocabulary.tokens, model.scores, strict=True))
    return Tokenizer(Unigram(pieces, unknown, byte_fallback=model.falls_back_to_bytes))
