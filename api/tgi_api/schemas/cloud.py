"""Bodies and replies of the cloud platforms' routes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

_SCHEMAS = "#/components/schemas/"


class InvocationKeys(msgspec.Struct, frozen=True):
    """The keys that tell what a body of /invocations is, unread."""

    inputs: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


class VertexRequest(msgspec.Struct, frozen=True):
    """Several requests at once; none of them is streamed."""

    instances: Annotated[
        list[Raw],
        Meta(
            description="Each a prompt to continue or a conversation",
            extra_json_schema={
                "minItems": 1,
                "items": {"anyOf": [{"$ref": _SCHEMAS + "GenerateRequest"}, {"$ref": _SCHEMAS + "ChatRequest"}]},
            },
        ),
    ]


class VertexResponse(msgspec.Struct, frozen=True):
    """The generated texts, in the order of the instances."""

    predictions: list[str]
