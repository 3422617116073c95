"""The contract between the core and an accelerator: what a backend author reads and implements.

Nothing here imports torch or a vendor SDK. Version 0: it may change until three kinds of shard have passed the kit.
"""

from tgi_core.contract.attention import AttentionChoice, AttentionOption, AttentionUse
from tgi_core.contract.backend import Backend, BackendInfo, DeviceInfo, Probe
from tgi_core.contract.capabilities import Capabilities, GraphMode, ShapeMode
from tgi_core.contract.device import Device, DeviceEvent, DeviceGraph, DeviceMemory
from tgi_core.contract.kernels import (
    AttentionBatch,
    AttentionSpec,
    DecodeInputs,
    HeadNorms,
    Kernels,
    Sampled,
    SampleInputs,
)
from tgi_core.contract.plan import (
    PLAN_VERSION,
    AppendedBlocks,
    CopiedBlock,
    LateInputs,
    NewSlot,
    PromptLogprobs,
    StepPlan,
    StepResult,
    TopTokens,
)
from tgi_core.contract.shard import (
    KVBudget,
    KVGroup,
    KVGroupBudget,
    LoadProgress,
    MemoryLine,
    ModelShard,
    ShardLimits,
    ShardSpec,
    Ticket,
)
from tgi_core.contract.state import DeviceState

CONTRACT_VERSION = 0

__all__ = [
    "CONTRACT_VERSION",
    "PLAN_VERSION",
    "AppendedBlocks",
    "AttentionBatch",
    "AttentionChoice",
    "AttentionOption",
    "AttentionSpec",
    "AttentionUse",
    "Backend",
    "BackendInfo",
    "Capabilities",
    "CopiedBlock",
    "DecodeInputs",
    "Device",
    "DeviceEvent",
    "DeviceGraph",
    "DeviceInfo",
    "DeviceMemory",
    "DeviceState",
    "GraphMode",
    "HeadNorms",
    "KVBudget",
    "KVGroup",
    "KVGroupBudget",
    "Kernels",
    "LateInputs",
    "LoadProgress",
    "MemoryLine",
    "ModelShard",
    "NewSlot",
    "Probe",
    "PromptLogprobs",
    "SampleInputs",
    "Sampled",
    "ShapeMode",
    "ShardLimits",
    "ShardSpec",
    "StepPlan",
    "StepResult",
    "Ticket",
    "TopTokens",
]
