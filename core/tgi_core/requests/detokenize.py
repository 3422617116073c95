"""Token ids to text, one token at a time."""

from __future__ import annotations

from tgi_core.requests.tokenizer import REPLACEMENT, TextTokenizer

_MAX_HELD_TOKENS = 4
"""An unfinished character is at most three bytes, so of four tokens that end unreadable the first is finished."""


class IncrementalDetokenizer:
    """Text of one sequence as its tokens arrive.

    Tokens are decoded in groups that end with a whole character, each group behind a token that stands for the text
    before it. Most groups are a single token, whose text the tokenizer remembers, so a token costs one look-up. The
    pieces joined equal the decoding of the whole sequence in the context of a prompt, without a character left
    unfinished at its end: what is whole is handed out at once, so nothing has to be flushed. Bytes that are not UTF-8
    become U+FFFD as soon as it is certain that nothing completes them; at the end they count as unfinished.
    """

    __slots__ = ("_decode", "_held", "_released", "_whole_texts")

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._decode = tokenizer.decode_continuation
        self._whole_texts = tokenizer.whole_texts
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
        whole = text.rstrip(REPLACEMENT)
        if len(whole) == len(text):
            piece = text[self._released :]
            self._held = []
            self._released = 0
            return piece
        if len(self._held) >= _MAX_HELD_TOKENS:
            return self._release_unreadable(text)
        piece = whole[self._released :]
        self._released = max(self._released, len(whole))
        return piece

    def _release_unreadable(self, text: str) -> str:
        """Hand out the first held tokens, whose bytes nothing can complete, and go on with the others."""
        front, rest = self._split_unreadable(text)
        piece = front[self._released :]
        self._held = []
        self._released = max(0, self._released - len(front))
        for token_id in rest:
            piece += self._push_held(token_id)
        return piece

    def _split_unreadable(self, text: str) -> tuple[str, list[int]]:
        for count in range(1, len(self._held)):
            front, rest = self._decode(self._held[:count]), self._held[count:]
            # A cut inside the bytes of one character shows as one more U+FFFD.
            if front.count(REPLACEMENT) + self._decode(rest).count(REPLACEMENT) <= text.count(REPLACEMENT):
                return front, rest
        return text, []
