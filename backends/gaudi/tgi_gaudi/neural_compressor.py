"""Linears in 8 bits by a configuration of Intel's Neural Compressor: it measures once, and multiplies afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tgi_core.contract.kernels import PackedWeight
from tgi_core.errors import ExitCode, StartupError
from tgi_gaudi.linears import Linears

CONFIG_VARIABLE = "QUANT_CONFIG"
"""The environment variable that names the configuration, as in the vendor's other servers."""


class CompressedLinears(Linears):
    """Linears as modules of one model, which the library replaces by its own.

    They are called "linears.0", "linears.1" and so on in the order in which they are packed; the head is the last.
    What a weight packs to is its number.

    Args:
        config_path: a JSON file of the library's, in mode MEASURE or QUANTIZE.

    Raises:
        StartupError: the library is not installed, or does not take the configuration.
    """

    def __init__(self, config_path: str) -> None:
        try:
            from neural_compressor.torch.quantization import FP8Config

            self._config: Any = FP8Config.from_json_file(config_path)
        except Exception as error:  # the library raises anything, its imports too
            raise StartupError(
                f"{CONFIG_VARIABLE}={config_path} cannot be used: {type(error).__name__}: {error}.",
                "Check the file; if the library is missing: pip install neural-compressor-pt.",
                ExitCode.USAGE,
            ) from error
        from habana_frameworks.torch import core as htcore

        # Comes before anything lies on the card.
        htcore.hpu_inference_set_env()
        self.measures = bool(self._config.measure)
        self._model: Any = torch.nn.Module()
        self._model.linears = torch.nn.ModuleList()

    def pack(self, weight_NK: Tensor) -> PackedWeight:
        rows, columns = weight_NK.shape
        linear = torch.nn.Linear(columns, rows, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(weight_NK, requires_grad=False)
        self._model.linears.append(linear)
        return len(self._model.linears) - 1

    def apply(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        # The library's modules have a type of their own.
        product_TN: Tensor = self._model.linears[weight](x_TK).to(x_TK.dtype)
        return product_TN if bias_N is None else product_TN + bias_N

    def finish(self) -> None:
        from habana_frameworks.torch import core as htcore
        from neural_compressor.torch.quantization import convert, prepare

        if self.measures:
            self._model = prepare(self._model, self._config)
        else:
            self._model = convert(self._model, self._config)
            htcore.hpu_initialize(self._model, mark_only_scales_as_const=True)

    def close(self) -> None:
        from neural_compressor.torch.quantization import finalize_calibration

        if self.measures:
            finalize_calibration(self._model)
