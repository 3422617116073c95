"""The operations that this device does better than the reference; all others are the reference."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tgi_core.reference import ReferenceKernels


class ExampleKernels(ReferenceKernels):
    """One operation, as a beginning."""

    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        """In place, and in one call of torch's where the weight needs no offset."""
        residual_TE.add_(x_TE)
        if offset:
            return self.rms_norm(residual_TE, weight_E, eps, offset), residual_TE
        normed_TE = F.rms_norm(residual_TE.float(), weight_E.shape, eps=eps).to(x_TE.dtype)
        return normed_TE.mul_(weight_E), residual_TE
