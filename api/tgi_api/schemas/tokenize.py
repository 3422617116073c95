"""Bodies and replies of /detokenize."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tgi_api.schemas.sampling import bounds


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """Token ids to turn into text."""

    tokens: Annotated[list[int], bounds("Token ids, at most max_total_tokens of them", examples=[[1, 2, 3]])]
    skip_special_tokens: Annotated[bool | None, Meta(description="Leave special tokens out of the text")] = None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """The text; bytes that are not UTF-8 are U+FFFD."""

    prompt: str
