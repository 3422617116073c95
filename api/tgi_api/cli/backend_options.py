"""Options that backends add to the command line."""

from __future__ import annotations

from tgi_api.cli.options import Group, Option
from tgi_api.cli.values import choice
from tgi_core.contract import BackendInfo, BackendOption
from tgi_core.errors import StartupError
from tgi_core.plugins import Plugins


def list_backend_options(plugins: Plugins) -> tuple[Option, ...]:
    """Those of all installed backends, by the backends' names."""
    try:
        backends = plugins.backends()
    except StartupError:
        # A start asks again and tells it; help works meanwhile.
        return ()
    return tuple(_read(backend.info, option) for _, backend in sorted(backends.items()) for option in backend.options)


def _read(backend: BackendInfo, option: BackendOption) -> Option:
    variable = option.flag.removeprefix("--").replace("-", "_").upper()
    return Option(
        flag=option.flag,
        env=(f"TGI_SERVE_{variable}", variable),
        metavar="|".join(option.choices),
        read=choice(*option.choices),
        group=Group.DEVICE,
        help=f"Backend {backend.name}: {option.help} [default: {option.choices[0]}]",
        backend=backend.name,
        # A stand-in for tests tells users nothing.
        hidden=backend.simulated,
    )
