"""gpt-oss: a reply is a sequence of messages, each to a channel and perhaps to a function ("harmony")."""

from __future__ import annotations

import re

from tgi_core.requests.replies import Markers, Reading, ReplyContext, ReplyReader, TruncatedError
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm, ToolParser

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _RETURN, _CALL = "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"
HARMONY_TOKENS = frozenset((START, CHANNEL, MESSAGE, _CONSTRAIN, _END, _RETURN, _CALL))
_HEADER_ENDS = Markers((MESSAGE,))
_NOTHING = Markers(())
_MESSAGE_ENDS = Markers((_END, _RETURN, _CALL, START, CHANNEL))
_LONGEST_HEADER = 200
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyToolParser(ToolParser):
    """Reads all channels, so the model's reasoning too."""

    special_tokens = HARMONY_TOKENS

    @property
    def name(self) -> str:
        return "harmony"

    @property
    def form(self) -> CallForm:
        call = f"{CHANNEL}commentary to=functions.{NAME} {_CONSTRAIN}json{MESSAGE}{ARGUMENTS}"
        return CallForm(call=call, is_parallel=False)

    def suits(self, template: str, model_type: str) -> bool:
        return model_type == "gpt_oss" or (CHANNEL in template and MESSAGE in template)

    def read(self, reader: ReplyReader, context: ReplyContext) -> Reading[None]:
        """Read the whole reply."""
        yield from read_channels(reader, context)


def read_channels(reader: ReplyReader, context: ReplyContext) -> Reading[None]:
    """Read the whole reply: ``analysis`` is reasoning, what goes to a function is a call, all else is content."""
    header = _open_header(context.prompt)
    while (yield from reader.peek()):
        if header is None:
            header = yield from _read_header(reader)
        yield from _read_message(reader, header, context.tool_names)
        header = None


def _open_header(prompt: str) -> str | None:
    """The header of the message that the prompt ends in; None when it ends before a message."""
    header, mark, body = prompt[prompt.rfind(START) :].rpartition(MESSAGE)
    return header if mark and not any(end in body for end in (_END, CHANNEL)) else None


def _read_header(reader: ReplyReader) -> Reading[str]:
    """What stands before a message; "" in front of text without a header."""
    reader.keep()
    start = reader.position
    yield from reader.skip_space()
    if (yield from reader.accept(CHANNEL, START, MESSAGE, "to=")):
        try:
            reader.go_to(start)
            header, _ = yield from reader.until(_HEADER_ENDS)
        except TruncatedError:
            # A header that was cut off says nothing; what is too long for one is text.
            reader.skip_rest()
            header = ""
            if len(reader.kept_text(start)) > _LONGEST_HEADER:
                reader.rewind()
                yield from reader.content_until(_NOTHING)
        reader.release()
        return header
    reader.rewind()
    return ""


def _read_message(reader: ReplyReader, header: str, tool_names: frozenset[str]) -> Reading[None]:
    recipient = _RECIPIENT.search(header)
    channel = _CHANNEL_NAME.search(header)
    if recipient is not None and tool_names:
        reader.begin_call(recipient[1].removeprefix("functions."))
        yield from reader.skip_space()
        mark = yield from reader.arguments_until(_MESSAGE_ENDS)
        reader.end_call()
    elif channel is not None and channel[1] == "analysis":
        mark = yield from reader.reasoning_until(_MESSAGE_ENDS)
    else:
        mark = yield from reader.content_until(_MESSAGE_ENDS)
    reader.release()
    if mark in (START, CHANNEL):
        reader.step_back(len(mark))
