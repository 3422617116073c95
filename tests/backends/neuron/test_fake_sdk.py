"""The fake refuses what the compiled programs cannot take, or what the library would silently do otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROWS, LENGTH = 3, 16


@pytest.fixture
def compile_model(fake_sdk: Path, model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Exports, saves and loads the tiny model."""

    def made(**changes: object) -> Any:
        from optimum.neuron import NeuronModelForCausalLM

        config = NeuronModelForCausalLM.get_neuron_config(model, batch_size=ROWS, sequence_length=LENGTH)
        for name, value in {
            "tp_degree": 1,
            "on_device_sampling": False,
            "torch_dtype": torch.float32,
            **changes,
        }.items():
            assert hasattr(config, name)
            setattr(config, name, value)
        folder = tmp_path / "compiled"
        NeuronModelForCausalLM.export(str(model), config).save_pretrained(str(folder))
        return NeuronModelForCausalLM.from_pretrained(str(folder))

    return made


def inputs(ids: list[list[int]], positions: list[list[int]], sequences: list[int]) -> dict[str, Tensor]:
    """Of a call, all as they should be."""
    return {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "position_ids": torch.tensor(positions, dtype=torch.int32),
        "seq_ids": torch.tensor(sequences, dtype=torch.int32),
        "sampling_params": torch.ones(len(ids), 3),
    }


def prompt(length: int, *, sequence: int = 0, pad: int = 0) -> dict[str, Tensor]:
    padding = LENGTH - length
    ids = [*range(3, 3 + length), *[0] * padding]
    return inputs([ids], [[*range(length), *[pad] * padding]], [sequence])


def tokens(positions: list[int], sequences: list[int]) -> dict[str, Tensor]:
    return inputs([[9]] * len(positions), [[position] for position in positions], sequences)


def test_what_it_takes(compile_model: Callable[..., Any]) -> None:
    model = compile_model()
    assert model.forward(**prompt(5)).shape == (1, 1, model.config.vocab_size)
    output = model.forward(**tokens([5, 0, 0], [0, 1, 2]))
    assert output.shape == (ROWS, 1, model.config.vocab_size)
    assert bool(output.isfinite().all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": torch.zeros(1, LENGTH, dtype=torch.int64)}, "input_ids is torch.int64"),
        ({"input_ids": torch.full((1, LENGTH), 1 << 20, dtype=torch.int32)}, "outside of the vocabulary"),
        ({"position_ids": torch.arange(LENGTH - 1, dtype=torch.int32)[None]}, "differ in shape"),
        ({"position_ids": torch.tensor([[*[0] * 11, *range(5)]], dtype=torch.int32)}, "begin at the left"),
        ({"position_ids": torch.tensor([[0, 1, 2, 4, *[0] * 12]], dtype=torch.int32)}, "has gaps"),
        ({"position_ids": torch.tensor([[0, 1, *[1] * 14]], dtype=torch.int32)}, "position of the prompt's last token"),
        ({"seq_ids": torch.tensor([3], dtype=torch.int32)}, "not all there"),
        ({"seq_ids": None}, "four inputs"),
        ({"sampling_params": torch.ones(1, 2)}, "sampling_params has the shape"),
        ({"sampling_params": torch.ones(1, 3, dtype=torch.float64)}, "sampling_params is torch.float64"),
        ({"return_dict": True}, "not supported"),
    ],
)
def test_prompts_that_it_refuses(compile_model: Callable[..., Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compile_model().forward(**{**prompt(5), **changes})


def test_shapes_that_are_not_compiled(compile_model: Callable[..., Any]) -> None:
    model = compile_model()
    two = {name: tensor.repeat(2, *[1] * (tensor.dim() - 1)) for name, tensor in prompt(5).items()}
    two["seq_ids"] = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(AssertionError, match="a prompt of the shape"):
        model.forward(**two)
    with pytest.raises(AssertionError, match="a prompt of the shape"):
        model.forward(**inputs([[3, 4]], [[0, 1]], [0]))
    with pytest.raises(AssertionError, match="tokens of the shape"):
        model.forward(**tokens([0, 0], [0, 1]))


@pytest.mark.parametrize("sequences", [[0, 1, 1], [1, 0, 2]])
def test_sequences_that_repeat_or_are_out_of_order(compile_model: Callable[..., Any], sequences: list[int]) -> None:
    with pytest.raises(AssertionError, match="repeat, or are out of order"):
        compile_model().forward(**tokens([0, 0, 0], sequences))


def test_a_token_after_a_gap(compile_model: Callable[..., Any]) -> None:
    model = compile_model()
    model.forward(**prompt(5))
    with pytest.raises(AssertionError, match="sequence 0 holds 5 tokens, and one comes at 7"):
        model.forward(**tokens([7, 0, 0], [0, 1, 2]))


def test_a_new_prompt_poisons_what_was_there(compile_model: Callable[..., Any]) -> None:
    model = compile_model()
    model.forward(**prompt(9))
    model.forward(**prompt(3))
    model._filled[0] = 9
    assert bool(model.forward(**tokens([8, 0, 0], [0, 1, 2]))[0].isnan().all())


@pytest.mark.parametrize(
    "parameters", [(0, 1, 1), (-1, 1, 1), (257, 1, 1), (1.5, 1, 1), (1, 0, 1), (1, 2, 1), (1, 1, 0)]
)
def test_parameters_that_it_refuses(compile_model: Callable[..., Any], parameters: tuple[float, float, float]) -> None:
    model = compile_model(on_device_sampling=True)
    call = prompt(5)
    assert model.forward(**call).shape == (1,)
    call["sampling_params"] = torch.tensor([parameters], dtype=torch.float32)
    with pytest.raises(AssertionError, match=r"(top_k|top_p|temperature) is"):
        model.forward(**call)


def test_models_of_other_versions_and_machines(
    compile_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="requires at least 4 Neuron cores"):
        compile_model(tp_degree=4)
    monkeypatch.setattr("neuronxcc.__version__", "2.22")
    from optimum.neuron import NeuronModelForCausalLM

    with pytest.raises(RuntimeError, match="another neuronxcc"):
        NeuronModelForCausalLM.from_pretrained(str(tmp_path / "compiled"))


@pytest.mark.parametrize("call", ["export", "from_pretrained"])
def test_models_made_in_inference_mode(compile_model: Callable[..., Any], call: str, model: Path) -> None:
    from optimum.neuron import NeuronModelForCausalLM

    arguments = (str(model), None) if call == "export" else (str(model),)
    with torch.inference_mode(), pytest.raises(AssertionError, match="in inference mode"):
        getattr(NeuronModelForCausalLM, call)(*arguments)
