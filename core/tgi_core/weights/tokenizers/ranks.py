"""Tokenizers of byte pairs by rank, as tiktoken stores them, as fast tokenizers.

A file of ranks says nothing of how a text is cut before pairs are joined: that is in the code of each model. The
patterns here are those of the models' own tokenizers; Mistral's ``tekken.json`` has its pattern in it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import msgspec
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from tgi_core.weights.tokenizers.files import TokenizerSettings, refuse
from tgi_core.weights.tokenizers.special import add_tokens, surround

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN_PATTERN = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?",
        rf"\p{{N}}{{1,3}}|{_REST}",
    )
)

_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_KIMI_RESERVED = 256
_LLAMA3_CLASSES = ("", "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizer")
_TEKKEN_SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
"""Of a ``tekken.json`` that names none."""


class Ranks(msgspec.Struct, frozen=True):
    """A tokenizer of byte pairs.

    Attributes:
        pattern: what cuts a text into the words within which pairs are joined.
        ranks: the rank of each sequence of bytes; the pair whose union ranks lowest is joined first.
        first_id: id of the sequence of rank 0; special tokens have the ids below it.
        special: ids of special tokens by text, as far as the file or the model's code has them.
        composes: texts are brought into Unicode's composed form first.
        adds_bos: a text gets BOS in front unless the settings say something else.
        bos: the token for that, where the settings name none.
    """

    pattern: str
    ranks: dict[bytes, int]
    first_id: int
    special: dict[str, int]
    composes: bool = False
    adds_bos: bool = False
    bos: str | None = None


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: str


class _TekkenSpecial(msgspec.Struct):
    rank: int
    token_str: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def read_tekken(file: Path) -> Ranks:
    """Mistral's ``tekken.json``: special tokens come first, then as many ranks as the vocabulary has room for.

    Raises:
        StartupError: it is damaged.
    """
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_Tekken)
        count = content.config.default_num_special_tokens
        size = content.config.default_vocab_size - count
        ranks = {base64.b64decode(token.token_bytes): token.rank for token in content.vocab if token.rank < size}
    except (OSError, msgspec.MsgspecError, binascii.Error) as error:
        raise refuse(f"{file} cannot be read as a tokenizer: {error}.") from error
    named = {token.rank: token.token_str for token in content.special_tokens or ()} or dict(enumerate(_TEKKEN_SPECIAL))
    special = {named.get(number, f"<SPECIAL_{number}>"): number for number in range(count)}
    return Ranks(content.config.pattern, ranks, count, special, adds_bos=True, bos="<s>")


def read_ranks(file: Path, settings: TokenizerSettings) -> Ranks | None:
    """Ranks in tiktoken's form, of a model whose pattern is known; None of any other.

    Raises:
        StartupError: the file is damaged, or special tokens are nowhere named.
    """
    decoder = settings.values.get("added_tokens_decoder")
    if file.name == "qwen.tiktoken" or settings.class_name == "QWenTokenizer":
        ranks = _load(file)
        special = {text: len(ranks) + number for number, text in enumerate(_QWEN_SPECIAL)}
        return Ranks(QWEN_PATTERN, ranks, 0, special, composes=True)
    if settings.class_name == "TikTokenTokenizer" and settings.model_type.startswith("kimi"):
        ranks = _load(file)
        named = {int(number): entry["content"] for number, entry in (decoder or {}).items()}
        numbers = range(len(ranks), len(ranks) + _KIMI_RESERVED)
        special = {named.get(number, f"<|reserved_token_{number}|>"): number for number in numbers}
        return Ranks(KIMI_PATTERN, ranks, 0, special)
    if settings.class_name in _LLAMA3_CLASSES and settings.model_type == "llama":
        if not decoder:
            raise refuse(
                f"{file} has ranks alone, and tokenizer_config.json does not name the special tokens.",
                "Add `added_tokens_decoder` to tokenizer_config.json, or use a release with a tokenizer.json.",
            )
        return Ranks(LLAMA3_PATTERN, _load(file), 0, {}, adds_bos=True, bos="<|begin_of_text|>")
    return None


def ranks_tokenizer(given: Ranks, settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer with special tokens, and with BOS and EOS around a text as the settings say.

    Raises:
        StartupError: an added token would get another id.
    """
    letters = _byte_letters()
    vocab = dict(given.special) if given.first_id else {}
    for piece, rank in given.ranks.items():
        vocab[_spell(piece, letters)] = given.first_id + rank
    merges = [(_spell(left, letters), _spell(right, letters)) for left, right in _merges(given.ranks)]
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=True))
    if given.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(given.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, settings, sorted(given.special, key=given.special.__getitem__))
    surround(
        tokenizer,
        settings,
        settings.token("bos_token") or given.bos,
        settings.token("eos_token"),
        adds_bos=given.adds_bos,
        adds_eos=False,
    )
    return tokenizer


def _load(file: Path) -> dict[bytes, int]:
    """One line for each sequence: its bytes in base64 and its rank."""
    ranks: dict[bytes, int] = {}
    try:
        for line in file.read_bytes().splitlines():
            if line:
                piece, rank = line.split()
                ranks[base64.b64decode(piece, validate=True)] = int(rank)
    except (OSError, ValueError) as error:
        raise refuse(f"{file} cannot be read as ranks of tiktoken: {error}.") from error
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise refuse(f"{file} does not number its tokens one after the other.")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All pairs by the rank of what they make: tiktoken joins the pair whose union ranks lowest, whatever its parts."""
    found: list[tuple[int, int, int, bytes, bytes]] = []
    for piece, rank in ranks.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _byte_letters() -> list[str]:
    """GPT-2's letters of the 256 bytes: printable ones stand for themselves, the others for those from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _spell(piece: bytes, letters: list[str]) -> str:
    return "".join([letters[byte] for byte in piece])
