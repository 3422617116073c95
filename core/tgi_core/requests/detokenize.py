"""Token ids to text, one token at a time."""

from __future__ import annotations

from tgi_core.requests.tokenizer import REPLACEMENT, TextTokenizer

_MAX_UNFINISHED = 3
"""The bytes of an unfinished character, each perhaps shown as a U+FFFD of its own; what stands before them is final."""

_CONTEXT_TOKENS = 8
"""So many tokens decode to the same end as all of them: decoding is back in step after three bytes."""


class IncrementalDetokenizer:
    """Text of one sequence as its tokens arrive.

    Tokens are decoded in groups that end with a whole character, each group behind a token that stands for the text
    before it. Most groups are a single token, whose text the tokenizer remembers, so a token costs one look-up. The
    pieces joined equal the decoding of the whole sequence in the context of a prompt, without a character left
    unfinished at its end: what is whole is handed out at once, so nothing has to be flushed. Bytes that are not UTF-8
    become U+FFFD as soon as it is certain that nothing completes them; the last of them count as unfinished.

    With ``begins_text`` there is no text before the first token, where many decoders leave out a space.
    """

    __slots__ = ("_decode", "_held", "_released", "_tokenizer", "_whole_texts")

    def __init__(self, tokenizer: TextTokenizer, *, begins_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decode = tokenizer.decode_beginning if begins_text else tokenizer.decode_continuation
        self._whole_texts = {} if begins_text else tokenizer.whole_texts
        self._held: list[int] = []
        self._released = 0
        """Characters of the held tokens' text that were handed out already."""

    def push(self, token_id: int) -> str:
        """The characters that ``token_id`` completes; "" when it completes none. Special tokens are literal."""
        if not self._held:
            text = self._whole_texts.get(token_id)
            if text is not None:
                return text
        return self._push_held(token_id)

    def _push_held(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._decode(self._held)
        whole = len(text.rstrip(REPLACEMENT))
        if whole == len(text):
            piece = text[self._released :]
            self._held = []
            self._released = 0
            # Whatever the text began with, it is one that goes on now.
            self._decode = self._tokenizer.decode_continuation
            self._whole_texts = self._tokenizer.whole_texts
            return piece
        final = max(self._released, whole, len(text) - _MAX_UNFINISHED)
        piece = text[self._released : final]
        self._released = final
        if len(self._held) > _CONTEXT_TOKENS:
            self._forget_front(len(text) - final)
        return piece

    def _forget_front(self, waiting: int) -> None:
        """Hold no more tokens than decide what the last ``waiting`` characters become."""
        self._held = self._held[-_CONTEXT_TOKENS:]
        self._released = max(0, len(self._decode(self._held)) - waiting)
