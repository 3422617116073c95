"""A Gaudi card made of software, as strict as the real one: what the fake SDK beside this package drives.

Tensors really lie on the device "hpu": what torch does with them passes ``tensor.HpuTensor``, which computes on the
host and holds callers to the rules of lazy mode and of recorded graphs. Nothing here knows the backend that it tests.
"""
