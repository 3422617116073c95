"""What the layers of both sides have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgi_core.contract.kernels import Kernels
from tgi_core.models.decoder_weights import MLPWeights
from tgi_core.models.encoder_decoder.spec import EncoderDecoderSpec
from tgi_core.models.encoder_decoder.weights import StackWeights
from tgi_core.models.linear import Linear, NormWeights
from tgi_core.models.spec import Norm


class Layers:
    """Embeddings, norms, residual sums and MLPs of one side.

    Args:
        spec: the model.
        weights: of the side.
        kernels: every operation but attention.
        norms_first: embeddings are normed before positions are added.
    """

    def __init__(self, spec: EncoderDecoderSpec, weights: StackWeights, kernels: Kernels, *, norms_first: bool) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self._norms_first = norms_first
        # Rounded to the weights' type first, as the models were trained.
        self._scale = float(torch.tensor(spec.embedding_scale, dtype=weights.embedding_VE.dtype))

    def embed(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """What the first layer reads, [T, E]."""
        spec, weights, kernels = self._spec, self._weights, self._kernels
        x_TE = kernels.embedding(ids_T, weights.embedding_VE)
        if spec.embedding_scale != 1.0:
            x_TE = x_TE * self._scale
        if self._norms_first:
            x_TE = self.norm(x_TE, weights.embedding_norm)
        if weights.positions_XE is not None:
            x_TE = x_TE + kernels.embedding(positions_T + spec.position_offset, weights.positions_XE)
        return x_TE if self._norms_first else self.norm(x_TE, weights.embedding_norm)

    def add(self, x_TE: Tensor, part: Callable[[Tensor], Tensor], norm: NormWeights) -> Tensor:
        """The residual stream after one part of a layer."""
        if self._spec.pre_norm:
            return x_TE + part(self.norm(x_TE, norm))
        return self.norm(x_TE + part(x_TE), norm)

    def mlp(self, x_TE: Tensor, mlp: MLPWeights) -> Tensor:
        """An MLP."""
        activation = self._spec.activation
        if self._spec.gated:
            x_TF = self._kernels.gated_linear(x_TE, mlp.up.weight, mlp.up.bias, activation)
        else:
            x_TF = self._kernels.activation(self.linear(x_TE, mlp.up), activation)
        return self.linear(x_TF, mlp.down)

    def linear(self, x_TK: Tensor, linear: Linear) -> Tensor:
        """A linear."""
        return self._kernels.linear(x_TK, linear.weight, linear.bias)

    def norm(self, x_TE: Tensor, norm: NormWeights | None) -> Tensor:
        """``x`` normed; itself where there is no norm."""
        if norm is None:
            return x_TE
        if self._spec.norm is Norm.RMS:
            return self._kernels.rms_norm(x_TE, norm.weight, self._spec.norm_eps, 0.0)
        return self._kernels.layer_norm(x_TE, norm.weight, norm.bias, self._spec.norm_eps)
