"""From flags and environment variables to values, by the table of options; every problem is collected, none raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tgi_api.cli.options import Effect, Option
from tgi_core.errors import ExitCode, StartupError

Given = str | bool | tuple[str, ...] | None
"""What the command line holds for one flag: its text, a switch, all texts of a repeated flag, or nothing."""


class BackendValue(msgspec.Struct, frozen=True):
    """A given option of one backend.

    Attributes:
        flag, value: as ``EngineConfig.backend_options`` has them.
        backend: whose option it is.
        source: the flag or the variable that gave it.
    """

    flag: str
    value: str
    backend: str
    source: str


class Arguments(msgspec.Struct):
    """What was read; filled option by option.

    Attributes:
        values: the value of each used option that was given, by the option's name.
        backend_values: those of backends' own options.
        sources: where each of all these comes from, as a phrase, by the option's name.
        shown: every given option as one "flag=value" text, secrets hidden.
        warnings: one sentence for each option that has no effect.
        refusals: one for each value that is wrong and each feature that is not built.
    """

    values: dict[str, object] = {}
    backend_values: list[BackendValue] = []
    sources: dict[str, str] = {}
    shown: list[str] = []
    warnings: list[str] = []
    refusals: list[StartupError] = []

    @property
    def backend_options(self) -> dict[str, str]:
        """The values of backends' own options by flag."""
        return {given.flag: given.value for given in self.backend_values}


class _Source(msgspec.Struct, frozen=True):
    """One given option: its texts, and where they come from as a message names it."""

    option: Option
    texts: tuple[str, ...]
    name: str
    from_env: bool

    def __str__(self) -> str:
        value = "<hidden>" if self.option.secret else ",".join(self.texts)
        return f"{self.name}={value}"


def read_arguments(options: Iterable[Option], given: Mapping[str, Given], environ: Mapping[str, str]) -> Arguments:
    """Read every option of the table from the command line or, where that is silent, from the environment."""
    arguments = Arguments()
    for option in options:
        source = _find(option, given.get(option.name), environ)
        if source is not None:
            arguments.shown.append(str(source))
            _apply(source, arguments)
    return arguments


def _find(option: Option, given: Given, environ: Mapping[str, str]) -> _Source | None:
    if isinstance(given, bool):
        return _Source(option, ("true" if given else "false",), option.flag, False)
    if isinstance(given, str):
        return _Source(option, (given,), option.flag, False)
    if given:
        return _Source(option, given, option.flag, False)
    for variable in option.env:
        text = environ.get(variable)
        if text is None or (text == "" and not option.secret):
            continue
        texts = tuple(part.strip() for part in text.split(",")) if option.repeated else (text,)
        return _Source(option, texts, variable, True)
    return None


def _apply(source: _Source, arguments: Arguments) -> None:
    option = source.option
    try:
        read = tuple(option.read(text) for text in source.texts)
    except ValueError as error:
        if source.from_env and option.lenient_env:
            arguments.warnings.append(f"{source} has no effect: it must be {error}.")
        else:
            arguments.refusals.append(StartupError(f"{source} must be {error}.", _where(source), ExitCode.USAGE))
        return
    value = read if option.repeated else read[0]
    if option.effect is Effect.USED:
        if option.backend:
            arguments.backend_values.append(BackendValue(option.flag, str(value), option.backend, source.name))
        else:
            arguments.values[option.name] = value
        arguments.sources[option.name] = f"environment variable {source.name}" if source.from_env else "command line"
    elif value in option.neutral:
        return
    elif option.effect is Effect.IGNORED:
        arguments.warnings.append(f"{source.name} has no effect. {option.reason}")
    elif option.effect is Effect.REFUSED:
        cause = f"{source} is not supported yet: {_inside_sentence(option.help.partition(';')[0])}."
        arguments.refusals.append(StartupError(cause, option.reason, ExitCode.USAGE))


def _inside_sentence(text: str) -> str:
    """The text without its first capital, unless its first word has more of them, as LoRA has."""
    first = text.partition(" ")[0]
    return text[0].lower() + text[1:] if first[1:] == first[1:].lower() else text


def _where(source: _Source) -> str:
    if source.from_env:
        return f"Correct or unset the environment variable {source.name}."
    return f"Correct {source.name}, or leave it out for its default."
