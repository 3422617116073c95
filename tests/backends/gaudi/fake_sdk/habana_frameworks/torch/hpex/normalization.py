"""Fused norms."""

import torch


class FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data_in, gamma, eps):
        return torch.ops.hpu.rms_norm(data_in, gamma, eps)[0]
