"""Replies that describe the server."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Info(msgspec.Struct, frozen=True):
    """The model and the limits; the union of the keys of all TGI versions, so that no client misses one.

    The last is no key of TGI's: what requests cannot ask for here and why, by field; there only where there is any.
    """

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_input_length: int
    max_total_tokens: int
    max_batch_total_tokens: int
    max_batch_prefill_tokens: int
    max_batch_size: int | None
    waiting_served_ratio: float
    max_waiting_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    unsupported_parameters: dict[str, str] | UnsetType = UNSET


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsInfo(msgspec.Struct, frozen=True):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelInfo]
