"""The tokens that a folder's settings add to a tokenizer, and those that go around a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from tgi_core.weights.tokenizers.files import TokenizerSettings, refuse

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def add_tokens(
    tokenizer: Tokenizer, settings: TokenizerSettings, special: Sequence[str], plain: Sequence[str] = ()
) -> None:
    """Add tokens of the model file, ``special`` and ``plain``, then those of the settings under their ids.

    Raises:
        StartupError: a token cannot get the id that the settings name.
    """
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special if text])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain if text])
    numbered = sorted(_numbered(settings), key=lambda pair: pair[0])
    for number, token in numbered:
        # Ids are given out in order, so holes have to be filled.
        while (end := _next_id(tokenizer)) < number and tokenizer.token_to_id(token.content) is None:
            _add(tokenizer, AddedToken(f"<|reserved_token_{end}|>", special=True, normalized=False))
        _add(tokenizer, token)
        found = tokenizer.token_to_id(token.content)
        if found != number:
            raise refuse(
                f"the settings give the token {token.content!r} the id {number}, but it is {found} in the model.",
                "Check that tokenizer_config.json and added_tokens.json belong to this tokenizer.",
            )
    named = [settings.token(role) for role in _ROLES]
    more = settings.values.get("additional_special_tokens") or settings.values.get("extra_special_tokens") or []
    if isinstance(more, list):
        named += [entry.get("content") if isinstance(entry, dict) else entry for entry in more]
    missing = [text for text in named if isinstance(text, str) and text]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def surround(
    tokenizer: Tokenizer,
    settings: TokenizerSettings,
    bos: str | None,
    eos: str | None,
    *,
    adds_bos: bool,
    adds_eos: bool,
) -> None:
    """Put BOS in front of a text and EOS behind it, as the settings say, or else ``adds_bos`` and ``adds_eos``."""
    first = _wanted(tokenizer, settings.values.get("add_bos_token"), bos, otherwise=adds_bos)
    last = _wanted(tokenizer, settings.values.get("add_eos_token"), eos, otherwise=adds_eos)
    if first or last:
        before, after = [text for text, _ in first], [text for text, _ in last]
        tokenizer.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *[f"{text}:1" for text in before], "$B:1", *[f"{text}:1" for text in after]],
            special_tokens=list(dict.fromkeys([*first, *last])),
        )


def _wanted(tokenizer: Tokenizer, asked: object, text: str | None, *, otherwise: bool) -> list[tuple[str, int]]:
    number = None if text is None else tokenizer.token_to_id(text)
    wanted = asked if isinstance(asked, bool) else otherwise
    return [(text, number)] if wanted and text is not None and number is not None else []


def _numbered(settings: TokenizerSettings) -> Iterator[tuple[int, AddedToken]]:
    decoder = settings.values.get("added_tokens_decoder")
    told = set()
    for key, entry in (decoder if isinstance(decoder, dict) else {}).items():
        if not key.isdigit() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise refuse(f"`added_tokens_decoder` in tokenizer_config.json has the malformed entry {key!r}.")
        told.add(entry["content"])
        flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        yield int(key), AddedToken(entry["content"], **flags)
    for text, number in settings.added_ids.items():
        if text not in told:
            yield number, AddedToken(text, special=False, normalized=False)


def _next_id(tokenizer: Tokenizer) -> int:
    return tokenizer.get_vocab_size(with_added_tokens=True)


def _add(tokenizer: Tokenizer, token: AddedToken) -> None:
    if token.special:
        tokenizer.add_special_tokens([token])
    else:
        tokenizer.add_tokens([token])
