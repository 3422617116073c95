"""Typed errors: every one names what happened, why, and what would help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

_FIELD = re.compile(r"`(\w[\w.\[\]]*)`")


class ExitCode(IntEnum):
    """Exit codes of the command line; docs/cli.md explains each."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    MODEL = 3
    BACKEND = 4
    PORT = 5
    MEMORY = 6


class TgiServeError(Exception):
    """Base of all errors that the project raises on purpose."""


class StartupError(TgiServeError):
    """A refusal at start: the server does not come up.

    Attributes:
        fix: what the user can do about it, one sentence.
        exit_code: the process's exit code.
    """

    def __init__(self, cause: str, fix: str = "", exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(cause)
        self.cause = cause
        self.fix = fix
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.cause} {self.fix}".strip()

    def __reduce__(self) -> tuple[type[StartupError], tuple[str, str, ExitCode]]:
        return type(self), (self.cause, self.fix, self.exit_code)


class UnsupportedModelError(StartupError):
    """A model, or a feature of one, that no architecture of ours knows; there may be another way to run it."""


class DeviceMemoryError(TgiServeError):
    """A step found no memory on the device: a fault of the whole replica, which is started again."""


class DeviceLostError(TgiServeError):
    """The device failed in a step and cannot be used any more: a fault of the whole replica, which is started again."""


class LateCompileError(TgiServeError):
    """Something was compiled for a step, under ``--strict-shapes``: a fault of the whole replica."""


class RequestError(TgiServeError):
    """One request fails.

    Attributes:
        status: HTTP status code.
        error_type: TGI's ``error_type``, which clients map to exceptions.
        code: OpenAI's name of the problem, where it has one.
        metric: value of the ``err`` label of ``tgi_request_failure``.
        detail: the text; one that is about a field begins with the field's name in backticks, or ``param`` names it.
    """

    status = 500
    error_type = "internal"
    code: str | None = None
    metric = "generation"
    prefix = ""

    def __init__(self, detail: str, *, param: str | None = None) -> None:
        super().__init__(self.prefix + detail)
        self.detail = detail
        self._param = param

    @property
    def param(self) -> str | None:
        """The field that the error is about."""
        if self._param is not None:
            return self._param
        found = _FIELD.match(self.detail)
        return found[1] if found else None

    def rename_fields(self, names: Mapping[str, str]) -> None:
        """Name fields as the client knows them: ``names`` maps from this server's own names."""
        self.detail = _FIELD.sub(lambda found: f"`{_renamed(found[1], names)}`", self.detail)
        self.args = (self.prefix + self.detail,)
        if self._param is not None:
            self._param = _renamed(self._param, names)


def _renamed(field: str, names: Mapping[str, str]) -> str:
    """The field under the first of ``names`` that it is or lies in, without an index: lists may have other lengths."""
    for name, sent in names.items():
        if field == name or field.startswith(f"{name}["):
            return sent
        if field.startswith(f"{name}."):
            return sent + field.removeprefix(name)
    return field


class ValidationError(RequestError):
    """The request itself is wrong: 422, ``validation``."""

    status = 422
    error_type = "validation"
    metric = "validation"
    prefix = "Input validation error: "


class ContextLengthError(ValidationError):
    """The prompt, or it and the tokens to generate, do not fit the context."""

    code = "context_length_exceeded"


class TemplateError(RequestError):
    """The chat template is missing or refused the messages: 422, ``template_error``."""

    status = 422
    error_type = "template_error"
    metric = "template"
    prefix = "Template error: "


class ToolError(RequestError):
    """A tool is not well-formed, or one is demanded that is not there: 422, ``tool_error``."""

    status = 422
    error_type = "tool_error"
    metric = "tool"
    prefix = "Tool error: "


class OverloadedError(RequestError):
    """The concurrency limit is reached: 429, ``overloaded``."""

    status = 429
    error_type = "overloaded"
    code = "rate_limit_exceeded"
    metric = "overloaded"

    def __init__(self, detail: str = "Model is overloaded") -> None:
        super().__init__(detail)


class GenerationError(RequestError):
    """The engine failed while it worked on the request: 424, ``generation``."""

    status = 424
    error_type = "generation"
    metric = "generation"
    prefix = "Request failed during generation: "


class EngineUnavailableError(RequestError):
    """No engine is up at the moment: 503, ``unavailable``; the reply carries ``Retry-After``."""

    status = 503
    error_type = "unavailable"
    metric = "generation"
