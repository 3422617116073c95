"""The reasoning of gpt-oss, which is a channel among others."""

from __future__ import annotations

from tgi_core.requests.reasoning.parser import ReasoningParser
from tgi_core.requests.replies import Reading, ReplyContext, ReplyReader
from tgi_core.requests.tools.harmony import CHANNEL, HARMONY_TOKENS, MESSAGE, read_channels


class HarmonyReasoningParser(ReasoningParser):
    """Reads all channels: the reasoning and, since they come between, content and calls."""

    special_tokens = HARMONY_TOKENS

    @property
    def name(self) -> str:
        return "harmony"

    def suits(self, template: str, model_type: str) -> bool:
        return model_type == "gpt_oss" or (CHANNEL in template and MESSAGE in template)

    def open_end(self, prompt: str) -> str | None:  # noqa: ARG002  # a prompt ends before a message
        return None

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        """Read the whole reply."""
        yield from read_channels(reader, context)
