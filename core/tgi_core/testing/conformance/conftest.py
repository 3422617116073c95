"""Fixtures of the kit: the backend under test, and its cases."""

from __future__ import annotations

import os

import pytest

from tgi_core.contract import GraphMode
from tgi_core.errors import StartupError
from tgi_core.plugins import Plugins
from tgi_core.testing.conformance.cases import Scope, all_cases
from tgi_core.testing.conformance.models import model_configs
from tgi_core.testing.conformance.subject import Subject

_SUBJECT = pytest.StashKey[Subject]()


def find_subject(config: pytest.Config) -> Subject:
    """The backend that ``--tgi-backend`` names.

    Raises:
        UsageError: it is not named or not installed.
    """
    if _SUBJECT not in config.stash:
        plugins = Plugins.discover()
        try:
            backends = plugins.backends()
        except StartupError as error:
            raise pytest.UsageError(str(error)) from error
        name, known = config.getoption("--tgi-backend"), ", ".join(sorted(backends))
        if name is None:
            raise pytest.UsageError(f"Say which backend to test: --tgi-backend NAME. Installed are: {known}.")
        if name not in backends:
            failures = "".join(f" {failure.distribution}: {failure.reason}." for failure in plugins.failures)
            raise pytest.UsageError(f"There is no backend `{name}`. Installed are: {known}.{failures}")
        for variable, value in backends[name].process_environment().items():
            os.environ.setdefault(variable, value)
        config.stash[_SUBJECT] = Subject(backends[name], quick=config.getoption("--tgi-quick"))
    return config.stash[_SUBJECT]


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Subject:
    """The backend under test, where it finds a device."""
    found = find_subject(request.config)
    if not found.probe.devices:
        pytest.skip(f"backend `{found.name}` finds no device: {found.probe.reason}")
    return found


@pytest.fixture(scope="session")
def bare_subject(request: pytest.FixtureRequest) -> Subject:
    """The backend under test, whether it finds a device or not."""
    return find_subject(request.config)


@pytest.fixture
def computing(subject: Subject) -> Subject:
    """The backend under test, where its tokens come from a model."""
    if not subject.capabilities.computes:
        pytest.skip(f"backend `{subject.name}` declares that it computes nothing")
    return subject


@pytest.fixture
def with_kernels(computing: Subject) -> Subject:
    """The backend under test, where it has operations."""
    if not computing.has_kernels:
        pytest.skip(f"backend `{computing.name}` owns whole models: it has no operations to look at")
    return computing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case and type, for each tiny model, and for each type."""
    names = metafunc.fixturenames
    if not {"case", "captured_case", "model_name", "dtype"} & set(names):
        return
    found = find_subject(metafunc.config)
    scope = Scope(found.capabilities, found.quick)
    has_cases = found.capabilities.computes and found.has_kernels and found.probe.devices
    if "case" in names:
        cases = list(all_cases(scope)) if has_cases else []
        metafunc.parametrize("case", cases, ids=[f"{case.operation}: {case.label}" for case in cases])
    if "captured_case" in names:
        records = has_cases and found.capabilities.graph is not GraphMode.NONE
        cases = [case for case in all_cases(scope) if case.captured] if records else []
        metafunc.parametrize("captured_case", cases, ids=[f"{case.operation}: {case.label}" for case in cases])
    if "model_name" in names:
        metafunc.parametrize("model_name", list(model_configs(found.head_dim, quick=found.quick)))
    if "dtype" in names:
        dtypes = found.capabilities.dtypes
        metafunc.parametrize("dtype", dtypes[:1] if found.quick else dtypes)
