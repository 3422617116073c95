"""Writes ``tokenizer.json`` for a tokenizer that comes in another form, after a comparison with its original."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tgi_core.weights.progress import Progress
from tgi_core.weights.tokenizers.files import TokenizerKind, TokenizerSettings, TokenizerSource
from tgi_core.weights.tokenizers.merges import of_merges
from tgi_core.weights.tokenizers.pretrained import first_line, load_pretrained
from tgi_core.weights.tokenizers.ranks import Ranks, ranks_tokenizer, read_ranks, read_tekken
from tgi_core.weights.tokenizers.sentencepiece import sentencepiece_tokenizer
from tgi_core.weights.tokenizers.sentencepiece_model import SentencepieceModel, read_sentencepiece
from tgi_core.weights.tokenizers.verify import Original, of_ranks, of_sentencepiece, verify

_PLAIN_CLASSES = {
    "BaichuanTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "InternLM2Tokenizer",
    "InternLMTokenizer",
    "LlamaTokenizer",
    "MT5Tokenizer",
    "MistralTokenizer",
    "PreTrainedTokenizer",
    "T5Tokenizer",
    "TokenizersBackend",
}
"""Their ids are those of the sentencepiece model; other classes move them."""

_MOVED_TYPES = {
    "albert",
    "big_bird",
    "bigbird_pegasus",
    "camembert",
    "m2m_100",
    "marian",
    "mbart",
    "nllb-moe",
    "pegasus",
    "pegasus_x",
    "plbart",
    "rembert",
    "speech_to_text",
    "xglm",
    "xlm-roberta",
    "xlnet",
}
"""Models whose tokenizers, where none is named, are of such classes."""


class NoFastFormError(Exception):
    """The tokenizer is Python code that nothing can be made of; the message is the reason."""


def convert_tokenizer(source: TokenizerSource, folder: Path, target: Path, _progress: Progress) -> str:
    """Write ``tokenizer.json`` into ``target``.

    Args:
        source: the tokenizer of ``folder``.
        folder: the model's folder. None of its code is run.
        target: where to write.

    Returns:
        "", or why the tokenizer has no fast form.

    Raises:
        StartupError: a file is damaged, a library is missing, or the result differs from its original.
        OSError: ``target`` cannot be written.
    """
    try:
        tokenizer, original = _convert(source, folder, TokenizerSettings.read(folder))
    except NoFastFormError as reason:
        return str(reason)
    verify(tokenizer, original, source)
    tokenizer.save(str(target / "tokenizer.json"))
    return ""


def _convert(source: TokenizerSource, folder: Path, settings: TokenizerSettings) -> tuple[Tokenizer, Original]:
    match source.kind:
        case TokenizerKind.TEKKEN:
            return _of_ranks(read_tekken(source.file), source, settings)
        case TokenizerKind.RANKS:
            ranks = read_ranks(source.file, settings)
            if ranks is None:
                raise NoFastFormError(f"how a text is cut for the ranks in {source.file.name} is in the model's code")
            return _of_ranks(ranks, source, settings)
        case TokenizerKind.SENTENCEPIECE:
            return _of_sentencepiece(read_sentencepiece(source.file), source, folder, settings)
        case TokenizerKind.MERGES:
            tokenizer = _by_transformers(folder)
            return tokenizer, of_merges(tokenizer, source)


def _of_ranks(ranks: Ranks, source: TokenizerSource, settings: TokenizerSettings) -> tuple[Tokenizer, Original]:
    return ranks_tokenizer(ranks, settings), of_ranks(ranks, source)


def _of_sentencepiece(
    model: SentencepieceModel, source: TokenizerSource, folder: Path, settings: TokenizerSettings
) -> tuple[Tokenizer, Original]:
    if _is_plain(settings):
        tokenizer = sentencepiece_tokenizer(model, settings)
        drops_first_space = settings.values.get("legacy") is False
    else:
        tokenizer = _by_transformers(folder)
        drops_first_space = True
    return tokenizer, of_sentencepiece(model, source, tokenizer, drops_first_space=drops_first_space)


def _is_plain(settings: TokenizerSettings) -> bool:
    if settings.class_name:
        return settings.class_name in _PLAIN_CLASSES
    return not settings.has_code and settings.model_type not in _MOVED_TYPES


def _by_transformers(folder: Path) -> Tokenizer:
    try:
        found = load_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a tokenizer's class may raise anything
        raise NoFastFormError(f"transformers does not make one: {first_line(error)}") from error
    if not getattr(found, "is_fast", False):
        raise NoFastFormError(f"`{type(found).__name__}` of transformers is Python code")
    backend = found.backend_tokenizer
    if not isinstance(backend, Tokenizer):
        raise NoFastFormError(f"`{type(found).__name__}` of transformers is no tokenizer of the library tokenizers")
    return backend
