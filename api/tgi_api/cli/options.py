"""What an option of the command line is: its names, how it is read, what it does here."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tgi_api.cli import values


class Effect(StrEnum):
    """What happens when an option is given."""

    USED = "used"
    """It sets the field of the same name in the command's settings."""
    SATISFIED = "satisfied"
    """What it asks for is always so: accepted without a word."""
    IGNORED = "ignored"
    """It has no meaning in this server: a warning says why."""
    REFUSED = "refused"
    """Its feature is not built: the server does not start."""


class Group(StrEnum):
    """Headings of the help, in the order of their display."""

    MODEL = "Model"
    DEVICE = "Device and memory"
    SCHEDULING = "Scheduling"
    LIMITS = "Limits of a request"
    GENERATION = "Generation"
    HTTP = "HTTP"
    OPERATION = "Logs and operation"
    IGNORED = "Accepted without effect (a warning says why)"
    REFUSED = "Not supported yet (the server refuses to start)"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option; a flag wins over the environment.

    Attributes:
        flag: the long flag; "" for an option that only the environment sets.
        short: the one-letter flag.
        env: environment variables, the first one that is set counts. An empty variable counts as not set.
        help: one line for people.
        group: heading in the help.
        metavar: what stands for the value in the help; "" makes the flag a switch without a value.
        read: turns the text into the value; raises ValueError with what it must be.
        repeated: the flag may be given several times; the environment separates values with commas.
        negatable: a switch that also has a ``--no-`` form.
        secret: the value is never shown, and an empty one is refused rather than taken as not set.
        lenient_env: a wrong value in the environment warns, and the default is used.
        effect: what happens when it is given.
        reason: why it has no effect, or what helps against the refusal.
        neutral: values of a refused or ignored option that ask for what is so anyway.
        backend: the only backend that has the option; "" for one of the server's.
        hidden: the help does not show it.
    """

    help: str
    group: Group
    flag: str = ""
    short: str = ""
    env: tuple[str, ...] = ()
    metavar: str = ""
    read: values.Reader = values.text
    repeated: bool = False
    negatable: bool = False
    secret: bool = False
    lenient_env: bool = False
    effect: Effect = Effect.USED
    reason: str = ""
    neutral: tuple[object, ...] = ()
    backend: str = ""
    hidden: bool = False

    @property
    def name(self) -> str:
        """The field of the settings: the long flag, or else the variable, in snake case."""
        return (self.flag.removeprefix("--") or self.env[0]).replace("-", "_").lower()

    @property
    def label(self) -> str:
        """The flag as a message names it."""
        return self.flag or self.env[0]
