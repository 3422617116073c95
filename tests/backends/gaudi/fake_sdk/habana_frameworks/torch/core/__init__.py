"""``htcore``."""

from fake_hpu.machine import MACHINE


def mark_step():
    """Launch what has been gathered; nothing to do outside of lazy mode."""
    MACHINE.forbid_recording("a mark step")
    MACHINE.mark_step()


def hpu_inference_set_env(model=None):
    """To be called before anything lies on the device."""
    if MACHINE.in_use_bytes:
        raise RuntimeError("hpu_inference_set_env comes before tensors are brought to the device")


def hpu_initialize(model=None, mark_only_scales_as_const=False):
    """Marks the scales of a quantized model as constants."""
    model.state_dict()
