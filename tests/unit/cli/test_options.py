"""The table of options, the settings and docs/cli.md must agree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tgi_api.cli.backends import BACKENDS_OPTIONS, BackendsSettings
from tgi_api.cli.bench import BENCH_OPTIONS, BenchSettings
from tgi_api.cli.bench_http import BENCH_HTTP_OPTIONS, BenchHttpSettings
from tgi_api.cli.bench_kernels import BENCH_KERNELS_OPTIONS, BenchKernelsSettings
from tgi_api.cli.download import DOWNLOAD_OPTIONS, DownloadSettings
from tgi_api.cli.explain import EXPLAIN_OPTIONS, ExplainSettings
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.options import Effect, Option
from tgi_api.cli.settings import ServeSettings
from tgi_core.errors import ExitCode

DOCUMENT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
COMMANDS = [
    (LAUNCHER_OPTIONS, ServeSettings),
    (EXPLAIN_OPTIONS, ExplainSettings),
    (BACKENDS_OPTIONS, BackendsSettings),
    (DOWNLOAD_OPTIONS, DownloadSettings),
    (BENCH_OPTIONS, BenchSettings),
    (BENCH_KERNELS_OPTIONS, BenchKernelsSettings),
    (BENCH_HTTP_OPTIONS, BenchHttpSettings),
]
ALL_OPTIONS = [option for options, _ in COMMANDS for option in options]


@pytest.mark.parametrize(("options", "settings"), COMMANDS)
def test_used_options_and_settings_have_the_same_names(
    options: tuple[Option, ...], settings: type[msgspec.Struct]
) -> None:
    used = [option.name for option in options if option.effect is Effect.USED]
    assert sorted(used) == sorted(settings.__struct_fields__)


@pytest.mark.parametrize(("options", "settings"), COMMANDS)
def test_no_flag_and_no_variable_is_taken_twice(options: tuple[Option, ...], settings: type[msgspec.Struct]) -> None:
    names = Counter(name for option in options for name in (option.flag, option.short, *option.env) if name)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.label)
def test_every_option_without_effect_and_every_refusal_has_its_reason(option: Option) -> None:
    assert (option.reason != "") == (option.effect is not Effect.USED)


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.label)
def test_every_option_is_documented_with_its_variables(option: Option) -> None:
    first_cell = rf"\| [^|\n]*`{option.flag}\b" if option.flag else r"\| –"
    rows = re.findall(rf"^{first_cell}.*$", DOCUMENT, re.MULTILINE)
    names = [*option.env, *([option.short] if option.short else [])]
    assert any(all(f"`{name}`" in row for name in names) for row in rows), f"{option.label} is not in docs/cli.md"


def test_every_documented_flag_exists() -> None:
    cells = re.findall(r"^\| ([^|\n]*`-[^|\n]*)", DOCUMENT.replace("\\|", "/"), re.MULTILINE)
    documented = {flag for cell in cells for flag in re.findall(r"`(--?[a-z-]+)", cell)}
    known = {name for option in ALL_OPTIONS for name in (option.flag, option.short)}
    known |= {f"--no-{option.flag[2:]}" for option in ALL_OPTIONS if option.negatable}
    assert documented - known == set()


def test_every_exit_code_is_documented() -> None:
    for code in ExitCode:
        assert f"| {code.value} | {code.name} |" in DOCUMENT
