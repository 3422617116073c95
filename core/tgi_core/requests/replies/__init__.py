"""Replies taken apart as they arrive: one incremental engine under all parsers of reasoning and of calls."""

from tgi_core.requests.replies.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning, merge
from tgi_core.requests.replies.json_text import read_string, read_value
from tgi_core.requests.replies.markers import Markers
from tgi_core.requests.replies.parser import (
    ParsedCall,
    ParsedReply,
    ReplyContext,
    ReplyParser,
    ReplyPartParser,
    collect_reply,
    parse_reply,
)
from tgi_core.requests.replies.reader import MalformedError, Reading, ReplyReader, TruncatedError

__all__ = [
    "Arguments",
    "CallBegun",
    "CallEnded",
    "Content",
    "Event",
    "MalformedError",
    "Markers",
    "ParsedCall",
    "ParsedReply",
    "Reading",
    "Reasoning",
    "ReplyContext",
    "ReplyParser",
    "ReplyPartParser",
    "ReplyReader",
    "TruncatedError",
    "collect_reply",
    "merge",
    "parse_reply",
    "read_string",
    "read_value",
]
