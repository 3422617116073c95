"""The real optimum-neuron beside the fake, and our calls bound to its signatures; run by ``make test-backends`` only.

The package needs the vendor's SDK to compile, not to be looked at. What of it cannot be imported without is read from
its source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optimum.neuron
import pytest
import torch
from msgspec.structs import replace
from optimum.neuron import NeuronModelForCausalLM
from optimum.neuron.models.inference.backend.config import NxDNeuronConfig
from optimum.neuron.version import __version__

from tgi_core.contract import SampleInputs, ShardLimits, ShardSpec
from tgi_core.sampling.params import Tier
from tgi_neuron import probe
from tgi_neuron.artefact import CompiledFor, Wanted, is_artefact, read_artefact
from tgi_neuron.backend import NeuronBackend
from tgi_neuron.export import exported_model
from tgi_neuron.sdk import Sdk, open_sdk
from tgi_neuron.shard import NeuronShard

FAKE = Path(__file__).with_name("fake_sdk") / "optimum" / "neuron"
REAL = Path(str(optimum.neuron.__file__)).parent
DECODER = REAL / "models/inference/backend/modules/decoder/modeling_decoder.py"
COMPILER = "2.21.33363.0"
LIMITS = ShardLimits(max_slots=4, max_step_tokens=256, block_size=16, max_total_tokens=256)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package asks for its version whenever it writes a configuration."""
    monkeypatch.setitem(sys.modules, "neuronxcc", SimpleNamespace(__version__=COMPILER))


def read_signature(path: Path, name: str, function: str) -> inspect.Signature:
    """Of a method as it stands in a source file; defaults are their text, annotations are left out."""
    tree = ast.parse(path.read_text())
    (of_class,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    (method,) = (node for node in of_class.body if isinstance(node, ast.FunctionDef) and node.name == function)
    arguments = method.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parameters = [
        inspect.Parameter(
            argument.arg,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if default is None else ast.unparse(default),
        )
        for argument, default in zip(plain, defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parameters.append(inspect.Parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    assert not arguments.vararg
    assert not arguments.kwonlyargs
    return inspect.Signature(parameters)


def signature_of(function: Any) -> inspect.Signature:
    """Of something that was imported, in the same form."""
    parameters = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default if parameter.default is inspect.Parameter.empty else repr(parameter.default),
        )
        for parameter in inspect.signature(function).parameters.values()
    ]
    return inspect.Signature(parameters)


def without_first(signature: inspect.Signature) -> inspect.Signature:
    """Without ``self`` or ``cls``."""
    return signature.replace(parameters=list(signature.parameters.values())[1:])


METHODS = {
    "get_neuron_config": signature_of(NeuronModelForCausalLM.get_neuron_config),
    "export": signature_of(NeuronModelForCausalLM.export),
    "from_pretrained": signature_of(NeuronModelForCausalLM.from_pretrained),
    "save_pretrained": without_first(signature_of(NeuronModelForCausalLM.save_pretrained)),
    "forward": without_first(read_signature(DECODER, "NxDModelForCausalLM", "forward")),
}


def test_the_package_is_the_one_that_the_fake_stands_for() -> None:
    fake_version = ast.parse((FAKE / "version.py").read_text()).body[-1]
    assert isinstance(fake_version, ast.Assign)
    assert ast.literal_eval(fake_version.value) == __version__ == version("optimum-neuron")


@pytest.mark.parametrize("method", list(METHODS))
def test_the_fakes_methods_have_the_real_signatures(method: str) -> None:
    fake = read_signature(FAKE / "modeling.py", "NeuronModelForCausalLM", method)
    assert str(without_first(fake)) == str(METHODS[method])


def test_the_fakes_configuration_has_the_real_signature() -> None:
    fake = read_signature(FAKE / "configuration.py", "NxDNeuronConfig", "__init__")
    assert str(fake) == str(signature_of(NxDNeuronConfig.__init__))


def test_the_fake_runs_the_models_that_the_package_runs() -> None:
    tree = ast.parse((REAL / "models/inference/auto_models.py").read_text())
    registered = set()
    for node in tree.body:
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            assert isinstance(decorator, ast.Call)
            model_type, task = map(ast.literal_eval, decorator.args)
            if task == "text-generation":
                registered.add(model_type)
    fake = ast.parse((FAKE / "modeling.py").read_text())
    (types,) = (
        node.value
        for node in fake.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_TYPES"
    )
    assert set(ast.literal_eval(types)) == registered


class Bound:
    """A model class whose calls are bound to the real signatures; its configuration is the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.called: list[str] = []
        self.neuron_config: NxDNeuronConfig | None = None
        self.config = SimpleNamespace(
            vocab_size=32,
            pad_token_id=None,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=3,
        )

    def bind(self, method: str, *given: object, **named: object) -> dict[str, Any]:
        self.called.append(method)
        return METHODS[method].bind(*given, **named).arguments

    def get_neuron_config(self, *given: object, **named: object) -> NxDNeuronConfig:
        bound = self.bind("get_neuron_config", *given, **named)
        batch_size = bound["batch_size"]
        return NxDNeuronConfig(
            batch_size=batch_size,
            sequence_length=bound["sequence_length"],
            tp_degree=bound["tensor_parallel_size"],
            continuous_batching=batch_size > 1,
            on_device_sampling=True,
            target="trn1",
        )

    def export(self, *given: object, **named: object) -> Bound:
        self.neuron_config = self.bind("export", *given, **named)["neuron_config"]
        return self

    def save_pretrained(self, *given: object, **named: object) -> None:
        directory = self.bind("save_pretrained", *given, **named)["save_directory"]
        assert self.neuron_config is not None
        self.neuron_config.save_pretrained(directory)

    def from_pretrained(self, *given: object, **named: object) -> Bound:
        folder = self.bind("from_pretrained", *given, **named)["model_id"]
        self.neuron_config = NxDNeuronConfig.from_pretrained(folder)
        return self

    def forward(self, *given: object, **named: object) -> torch.Tensor:
        bound = self.bind("forward", *given, **named)
        assert bound["input_ids"].shape == bound["position_ids"].shape
        return torch.zeros(len(bound["input_ids"]), 1, self.config.vocab_size)


@pytest.fixture
def bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bound:
    monkeypatch.setenv("TGI_SERVE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 32, "max_position_embeddings": 512}')
    return Bound(tmp_path)


@pytest.mark.parametrize("library_samples", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_the_real_configuration_writes_is_read(bound: Bound, dtype: str, library_samples: bool) -> None:
    spec = ShardSpec(model_dir=bound.folder, dtype=dtype, world_size=2)
    sdk = Sdk(bound, COMPILER, __version__)
    folder = exported_model(Wanted(spec, LIMITS, num_cores=2, library_samples=library_samples), sdk)
    assert bound.called == ["get_neuron_config", "export", "save_pretrained"]
    assert is_artefact(folder)
    assert read_artefact(folder) == CompiledFor(
        batch_size=4,
        sequence_length=256,
        max_context_length=256,
        tp_degree=2,
        torch_dtype=dtype,
        on_device_sampling=library_samples,
        max_topk=256,
        continuous_batching=True,
        neuronxcc_version=COMPILER,
        optimum_neuron_version=__version__,
    )


def test_every_call_of_the_shard_binds(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_neuron.shard.open_sdk", lambda: Sdk(bound, COMPILER, __version__))
    backend = NeuronBackend()
    spec = ShardSpec(model_dir=bound.folder, dtype="bfloat16", cpu_threads=1)
    shard = NeuronShard(
        spec, replace(backend.capabilities(), max_world_size=2), backend.open_device(0), library_samples=False
    )
    shard.load(lambda done_bytes, total_bytes: None)
    budget = shard.warm_up(LIMITS)
    assert budget.groups[0].group.bytes_per_block == 2 * 3 * 2 * 16 * 256 * 2
    with torch.inference_mode():
        assert shard.prefill(0, torch.tensor([1, 2, 3]), None).shape == (1, 32)
        assert shard.prefill(1, torch.tensor([1]), None).shape == (1, 32)
        assert shard.decode([1, 0], torch.tensor([4, 5]), torch.tensor([1, 3]), None).shape == (2, 32)
    shard.close()
    assert bound.called == ["get_neuron_config", "export", "save_pretrained", "from_pretrained", *["forward"] * 3]


def test_the_devices_own_check_of_parameters_takes_ours(bound: Bound) -> None:
    """``validate_sampling_params`` is run as it stands in the package, whose module needs the SDK."""
    path = REAL / "models/inference/backend/modules/generation/sampling.py"
    (function,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "validate_sampling_params"
    )
    names: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    backend = NeuronBackend()
    spec = ShardSpec(model_dir=bound.folder, dtype="bfloat16", cpu_threads=1)
    shard = NeuronShard(spec, backend.capabilities(), backend.open_device(0), library_samples=True)
    shard._compiled = CompiledFor(
        batch_size=4,
        sequence_length=256,
        max_context_length=256,
        tp_degree=1,
        torch_dtype="bfloat16",
        on_device_sampling=True,
        max_topk=256,
        continuous_batching=True,
        neuronxcc_version=COMPILER,
        optimum_neuron_version=__version__,
    )
    sampling = SampleInputs(
        slots_B=torch.arange(3),
        positions_B=torch.zeros(3, dtype=torch.int32),
        temperature_B=torch.tensor([0.5, 2.0, 0.7]),
        top_p_B=torch.tensor([0.5, 0.9, 1.0]),
        top_k_B=torch.tensor([7, 1000, 0], dtype=torch.int32),
        do_sample_B=torch.tensor([False, True, True]),
        seed_B=torch.zeros(3, dtype=torch.int64),
        choice_B=torch.zeros(3, dtype=torch.int32),
        tier=Tier.SAMPLED,
    )
    names["validate_sampling_params"](shard._parameters(sampling, 3), 256)
    with pytest.raises(ValueError, match="Invalid top-k"):
        names["validate_sampling_params"](torch.tensor([[0.0, 1.0, 1.0]]), 256)
    shard.close()


def test_the_real_package_is_opened_as_the_sdk() -> None:
    assert open_sdk() == Sdk(NeuronModelForCausalLM, COMPILER, __version__)


def test_the_packages_of_the_public_index_are_told_from_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch-neuronx 1.0 and neuronx-cc 1.0.post1 are installed in a folder of their own."""
    monkeypatch.setattr(probe, "ROOT", Path(__file__).with_name("fake_sdk") / "machine")
    assert "torch-neuronx 2.x is needed, and none is installed" in probe.probe_cores().reason
    monkeypatch.syspath_prepend(Path(sys.prefix) / "stubs")
    assert "torch-neuronx 2.x is needed, and 1.0 is installed" in probe.probe_cores().reason
    with pytest.raises(ImportError, match="WRONG PACKAGE"):
        __import__("torch_neuronx")
