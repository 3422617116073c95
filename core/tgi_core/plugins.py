"""Discovery of plugins through the entry-point group ``tgi_serve``.

Loading a plugin must not import a vendor SDK. A plugin that fails to load is remembered with its reason and reported
when what it would have offered is asked for; it never takes the server down by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import msgspec
import pluggy

from tgi_core import hookspecs
from tgi_core.contract import (
    CONTRACT_VERSION,
    OLDEST_CONTRACT_VERSION,
    Backend,
    BackendInfo,
    BackendOption,
    Capabilities,
    Probe,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.hookspecs import PROJECT_NAME

if TYPE_CHECKING:
    from tgi_core.models.family import Architecture, ModuleArchitecture
    from tgi_core.requests.reasoning import ReasoningParser
    from tgi_core.requests.tools import ToolParser
    from tgi_core.sampling.grammar import GrammarEngine
    from tgi_core.sampling.rules import LogitsRule

T = TypeVar("T")

_SEPARATOR = "/"
"""Between a distribution and its entry point, in the name under which a plugin is registered."""


class PluginFailure(msgspec.Struct, frozen=True):
    """A plugin that could not be loaded: its entry point's name, its distribution and the reason."""

    name: str
    distribution: str
    reason: str


class Attempt(NamedTuple):
    """A backend as ``--backend auto`` sees it.

    Attributes:
        backend: it.
        probe: what it finds; nothing where its contract does not fit.
        obstacle: why it is not taken, to follow "because"; "" where it can be.
        fix: what would help.
    """

    backend: Backend
    probe: Probe
    obstacle: str
    fix: str

    @property
    def automatic(self) -> bool:
        """Whether it would be taken if it could."""
        return self.backend.info.priority >= 0


class Plugins:
    """The loaded plugins and what they offer."""

    def __init__(self, manager: pluggy.PluginManager, failures: tuple[PluginFailure, ...]) -> None:
        self._manager = manager
        self.failures = failures

    @classmethod
    def discover(cls) -> Plugins:
        """Load every entry point of the group; failures are kept, not raised."""
        manager = pluggy.PluginManager(PROJECT_NAME)
        manager.add_hookspecs(hookspecs)
        failures = []
        for entry_point in sorted(entry_points(group=PROJECT_NAME), key=lambda point: point.name):
            failure = _register(manager, entry_point)
            if failure is not None:
                failures.append(failure)
        return cls(manager, tuple(failures))

    def backends(self) -> dict[str, Backend]:
        """All backends by name. A plugin that cannot make its own, such as one of another contract, is a failure.

        Raises:
            StartupError: two plugins offer the same name.
        """
        found: dict[str, Backend] = {}
        owners: dict[str, str] = {}
        for implementation in self._manager.hook.tgi_backends.get_hookimpls():
            distribution = implementation.plugin_name.partition(_SEPARATOR)[0]
            try:
                made = cast("Iterable[Backend]", implementation.function())
                offered = [(_checked_name(backend), backend) for backend in made]
            except (Exception, SystemExit) as error:  # a broken plugin may raise anything
                self._add_failure(implementation.plugin_name, error)
                continue
            for name, backend in offered:
                if name in found:
                    raise StartupError(
                        f"Two plugins offer a backend named `{name}`: one of {owners[name]} and one of {distribution}.",
                        "Uninstall one of them.",
                        ExitCode.BACKEND,
                    )
                found[name], owners[name] = backend, distribution
        return found

    def _add_failure(self, plugin: str, error: BaseException) -> None:
        distribution, _, name = plugin.partition(_SEPARATOR)
        failure = PluginFailure(name, distribution, _tell_error(error))
        if failure not in self.failures:
            self.failures = (*self.failures, failure)

    def architectures(self) -> dict[str, Architecture | ModuleArchitecture]:
        """All architectures by ``model_type``."""
        return {
            architecture.model_type: architecture
            for offered in self._manager.hook.tgi_architectures()
            for architecture in offered
        }

    def logits_rules(self) -> list[LogitsRule]:
        """All sampling rules, those that ship first.

        Raises:
            StartupError: two rules have the same name, or a parameter of the same name.
        """
        rules = [rule for offered in self._manager.hook.tgi_logits_rules() for rule in offered]
        parameters = [parameter.name for rule in rules for parameter in rule.parameters]
        for kind, names in (("named", [rule.name for rule in rules]), ("with a parameter", parameters)):
            for name, count in Counter(names).items():
                if count > 1:
                    raise StartupError(
                        f"Two plugins offer a logits rule {kind} `{name}`.", "Uninstall one of them.", ExitCode.BACKEND
                    )
        return rules

    def grammar_engines(self) -> dict[str, GrammarEngine]:
        """All engines of structured output by name.

        Raises:
            StartupError: two plugins offer the same name.
        """
        found: dict[str, GrammarEngine] = {}
        for offered in self._manager.hook.tgi_grammar_engines():
            for engine in offered:
                if engine.name in found:
                    raise StartupError(
                        f"Two plugins offer a grammar engine named `{engine.name}`.", "Uninstall one of them."
                    )
                found[engine.name] = engine
        return found

    def tool_parsers(self) -> list[ToolParser]:
        """All parsers of calls, those that ship first.

        Raises:
            StartupError: two have the same name.
        """
        parsers = [parser for offered in self._manager.hook.tgi_tool_parsers() for parser in offered]
        _check_names("tool call parser", [parser.name for parser in parsers])
        return parsers

    def reasoning_parsers(self) -> list[ReasoningParser]:
        """All parsers of reasoning, those that ship first.

        Raises:
            StartupError: two have the same name.
        """
        parsers = [parser for offered in self._manager.hook.tgi_reasoning_parsers() for parser in offered]
        _check_names("reasoning parser", [parser.name for parser in parsers])
        return parsers

    def choose_tool_parser(self, name: str) -> ToolParser:
        """The parser of calls called ``name``.

        Raises:
            StartupError: there is none; the message lists those installed.
        """
        return self._choose_parser("tool call", name, {parser.name: parser for parser in self.tool_parsers()})

    def choose_reasoning_parser(self, name: str) -> ReasoningParser:
        """The parser of reasoning called ``name``.

        Raises:
            StartupError: there is none; the message lists those installed.
        """
        return self._choose_parser("reasoning", name, {parser.name: parser for parser in self.reasoning_parsers()})

    def _choose_parser(self, kind: str, name: str, parsers: Mapping[str, T]) -> T:
        if name not in parsers:
            known = ", ".join(sorted(parsers))
            raise StartupError(
                f"There is no {kind} parser `{name}`; installed are: {known}." + self._tell_failures(),
                f"Use one of them, or leave --{kind.replace(' ', '-')}-parser out.",
                ExitCode.USAGE,
            )
        return parsers[name]

    def choose_grammar_engine(self, name: str) -> GrammarEngine:
        """The engine of structured output called ``name``.

        Raises:
            StartupError: there is none; the message lists those installed.
        """
        engines = self.grammar_engines()
        if name not in engines:
            known = ", ".join(sorted(engines))
            raise StartupError(f"There is no grammar engine `{name}`; installed are: {known}." + self._tell_failures())
        return engines[name]

    def choose_backend(self, name: str) -> Backend:
        """The backend called ``name``, or with "auto" the usable one of highest priority.

        Raises:
            StartupError: there is none, or it finds no device; the message says why and what to do.
        """
        backends = self.backends()
        if name == "auto":
            return self._choose_auto(backends)
        if name not in backends:
            raise StartupError(self._unknown(name, backends), "", ExitCode.BACKEND)
        backend = backends[name]
        _check_contract(backend)
        probe = find_devices(backend)
        if not probe.devices:
            raise StartupError(f"Backend `{name}` finds no device: {probe.reason}.", probe.fix, ExitCode.BACKEND)
        return backend

    def _choose_auto(self, backends: dict[str, Backend]) -> Backend:
        reasons = []
        for attempt in self.try_backends(backends.values()):
            if not attempt.obstacle:
                return attempt.backend
            if attempt.automatic:
                reasons.append(f"{attempt.backend.info.name}: {attempt.obstacle}. {attempt.fix}")
        raise StartupError("No backend finds a device." + self._tell_failures(), " ".join(reasons), ExitCode.BACKEND)

    def explain_auto(self, chosen: Backend) -> str:
        """Why ``--backend auto`` has taken ``chosen``: what it would have taken before, as one sentence."""
        name, better = chosen.info.name, []
        for attempt in self.try_backends(self.backends().values()):
            if attempt.backend.info.name == name:
                break
            better.append(f"not `{attempt.backend.info.name}`, because {attempt.obstacle}")
        why = "; ".join(better) or "it has the highest priority of all that are installed"
        return f"Backend `{name}` is chosen automatically: {why}."

    @staticmethod
    def try_backends(backends: Iterable[Backend]) -> Iterator[Attempt]:
        """Every backend and what keeps ``--backend auto`` from it, in the order in which it tries them.

        The order is that of their priorities, then of their names, so it does not depend on what was installed first.
        """
        for backend in sorted(backends, key=lambda backend: (-backend.info.priority, backend.info.name)):
            yield _try(backend)

    def _unknown(self, name: str, backends: dict[str, Backend]) -> str:
        known = ", ".join(sorted(backends))
        return f"There is no backend `{name}`; installed are: {known}." + self._tell_failures()

    def _tell_failures(self) -> str:
        return "".join(
            f" The plugin `{failure.name}` of {failure.distribution} failed to load: {failure.reason}."
            for failure in self.failures
        )


def _try(backend: Backend) -> Attempt:
    obstacle, fix = contract_obstacle(backend)
    probe = Probe(reason=obstacle, fix=fix) if obstacle else find_devices(backend)
    if probe.devices:
        named = "it is taken only by name" if backend.info.priority < 0 else ""
        return Attempt(backend, probe, named, f"Use --backend {backend.info.name}." if named else "")
    return Attempt(backend, probe, probe.reason, probe.fix)


def find_devices(backend: Backend) -> Probe:
    """What a backend's probe finds; one that raises, which none should, finds nothing and harms no other backend."""
    try:
        return backend.probe()
    except (Exception, SystemExit) as error:  # a broken plugin may raise anything
        return Probe(reason=f"its plugin is broken ({_tell_error(error)})", fix=_uninstall(backend))


def ask_capabilities(backend: Backend) -> Capabilities:
    """A backend's capabilities. Not a part of finding devices: to know them may load torch.

    Raises:
        StartupError: its plugin is broken.
    """
    try:
        return backend.capabilities()
    except (Exception, SystemExit) as error:  # as above
        cause = f"Backend `{backend.info.name}` cannot be used: its plugin is broken ({_tell_error(error)})."
        raise StartupError(cause, _uninstall(backend), ExitCode.BACKEND) from error


def _uninstall(backend: Backend) -> str:
    return f"Uninstall the plugin with backend `{backend.info.name}`, or install another release of it."


def contract_obstacle(backend: Backend) -> tuple[str, str]:
    """Why a backend's contract does not fit, and what would help; two empty texts where it does."""
    name, version = backend.info.name, backend.info.contract_version
    if version > CONTRACT_VERSION:
        return (
            f"it was written for contract {version}, and this tgi-serve has {CONTRACT_VERSION}",
            f"Install a newer tgi-serve, or an older release of the plugin with backend `{name}`.",
        )
    if version < OLDEST_CONTRACT_VERSION:
        return (
            f"it was written for contract {version}, and this tgi-serve takes {OLDEST_CONTRACT_VERSION} or newer",
            f"Install a newer release of the plugin with backend `{name}`, or an older tgi-serve.",
        )
    return "", ""


def _checked_name(backend: Backend) -> str:
    """The name of a backend that says of itself and its options what the contract asks for.

    Raises:
        Exception: it does not; constructing a struct does not look at the types.
    """
    name = msgspec.convert(msgspec.structs.asdict(backend.info), BackendInfo).name
    for offered in backend.options:
        option = msgspec.convert(msgspec.structs.asdict(offered), BackendOption)
        if not option.flag.startswith(f"--{name}-") or not option.choices:
            raise ValueError(f"the option {option.flag!r} must begin with --{name}- and have choices")
    return name


def _tell_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _register(manager: pluggy.PluginManager, entry_point: EntryPoint) -> PluginFailure | None:
    distribution = entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"
    # Two distributions may name their entry points alike.
    name = f"{distribution}{_SEPARATOR}{entry_point.name}"
    try:
        plugin = entry_point.load()
        manager.register(plugin, name=name)
        manager.check_pending()
    except (Exception, SystemExit) as error:  # a broken plugin may raise anything
        if manager.has_plugin(name):
            manager.unregister(name=name)
        return PluginFailure(entry_point.name, distribution, _tell_error(error))
    return None


def _check_names(kind: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise StartupError(f"Two plugins offer a {kind} named `{name}`.", "Uninstall one of them.")


def _check_contract(backend: Backend) -> None:
    obstacle, fix = contract_obstacle(backend)
    if obstacle:
        raise StartupError(f"Backend `{backend.info.name}` cannot be used: {obstacle}.", fix, ExitCode.BACKEND)
