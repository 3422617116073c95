"""Commands built from a table of options, with a grouped help; click splits the command line and no more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from tgi_api.cli.arguments import read_arguments
from tgi_api.cli.options import Effect, Group, Option

HELP_WIDTH = 110


class OptionCommand(click.Command):
    """A command whose options come from a table.

    Args:
        name: name of the command.
        options: the table.
        settings: the struct whose fields the used options set; its defaults are shown in the help.
        run: called with the arguments that were read and the text of the positional arguments; returns the exit code.
        positional: names of the positional arguments.
        help, epilog: texts of the help.
    """

    def __init__(
        self,
        name: str,
        *,
        options: Sequence[Option],
        settings: type[msgspec.Struct],
        run: Callable[..., int],
        positional: Sequence[str] = (),
        help: str,
        epilog: str = "",
    ) -> None:
        parameters: list[click.Parameter] = [click.Argument([word]) for word in positional]
        parameters += [_click_option(option) for option in options if option.flag]
        super().__init__(name, params=parameters, callback=self._call, help=help, epilog=epilog)
        self._options = options
        self._positional = positional
        self._defaults = {field.name: field.default for field in msgspec.structs.fields(settings)}
        self._run = run

    def _call(self, **given: Any) -> int:
        words = {word.lower(): given.pop(word.lower()) for word in self._positional}
        return self._run(read_arguments(self._options, given, os.environ), **words)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line, without the command's name where it may be left out."""
        path = ctx.command_path if ctx.parent is None or self._others(ctx) is None else ctx.parent.command_path
        formatter.write_usage(path, " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of their groups, then the commands beside this one."""
        for group in Group:
            rows = [self._row(option) for option in self._options if option.group is group and not option.hidden]
            if rows:
                with formatter.section(group.value):
                    formatter.write_dl(rows)
        others = self._others(ctx)
        if others:
            with formatter.section("Other commands"):
                formatter.write_dl([(command.name or "", command.get_short_help_str(HELP_WIDTH)) for command in others])

    def _others(self, ctx: click.Context) -> Sequence[click.Command] | None:
        """The other commands of a group whose default this is; None where it is not."""
        group = ctx.parent.command if ctx.parent is not None else None
        return group.others if isinstance(group, DefaultGroup) and group.default is self else None

    def _row(self, option: Option) -> tuple[str, str]:
        names = ", ".join(name for name in (option.short, option.flag) if name) or option.env[0]
        if option.negatable:
            names += f" / --no-{option.flag.removeprefix('--')}"
        if option.metavar:
            names += f" {option.metavar}" if option.flag else f"={option.metavar}"
        notes = []
        other_names = [name for name in option.env if option.flag and name != option.name.upper()]
        if other_names:
            notes.append(f"[{', '.join(other_names)}]")
        default = self._defaults.get(option.name) if option.effect is Effect.USED else None
        if default is True:
            notes.append("[default: on]")
        elif isinstance(default, tuple) and default:
            notes.append(f"[default: {','.join(map(str, default))}]")
        elif default not in {None, False, ()}:
            notes.append(f"[default: {default:g}]" if isinstance(default, float) else f"[default: {default}]")
        return names, " ".join([option.help, *notes])


class DefaultGroup(click.Group):
    """A group whose first command may be left out, as TGI's launcher has no subcommand to start the server."""

    def __init__(self, name: str, default: OptionCommand, others: Sequence[click.Command]) -> None:
        super().__init__(name, commands=[default, *others])
        self.default = default
        self.others = others
        self.context_settings = {"max_content_width": HELP_WIDTH, "help_option_names": ["-h", "--help"]}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front unless a command is named."""
        if not args or args[0] not in {*self.commands, "--version"}:
            args = [self.default.name or "", *args]
        return super().parse_args(ctx, args)


def _click_option(option: Option) -> click.Option:
    names = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if option.negatable else option.flag
    declarations = [option.short, names] if option.short else [names]
    if not option.metavar:
        return click.Option(declarations, is_flag=True, default=None)
    return click.Option(declarations, type=str, default=None, multiple=option.repeated, metavar=option.metavar)
