"""The contract between the core and an accelerator: what a backend author reads and implements.

Nothing here imports torch or a vendor SDK.

Versions. What a plugin relies on changes only with ``CONTRACT_VERSION``: a method that goes or takes other arguments,
a field that goes, another meaning. What is added with a default changes nothing for a plugin and no version. From
version 1 on, a version stays in use for at least two minor releases of tgi-serve, and six months, after the next one
has come: until then its plugins run, and what they miss has its default. An older plugin, or one of a newer contract,
is refused with what to install. Version 0 makes no promise: it may change with any release, until eager, bucketed and
whole-model shards have passed the conformance kit.
"""

from tgi_core.contract.attention import AttentionChoice, AttentionOption, AttentionUse
from tgi_core.contract.backend import Backend, BackendInfo, BackendOption, DeviceInfo, Probe
from tgi_core.contract.capabilities import BucketRules, Capabilities, GraphMode, Ladder, ShapeMode
from tgi_core.contract.device import CompiledStep, Device, DeviceEvent, DeviceGraph, DeviceMemory, HostCopy
from tgi_core.contract.kernels import (
    AttentionBatch,
    AttentionSpec,
    DecodeInputs,
    FlatBlocks,
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
    UnsupportedParameter,
)
from tgi_core.contract.state import DeviceState

CONTRACT_VERSION = 0
"""The contract of this release; ``BackendInfo.contract_version`` says which one a plugin was written for."""

OLDEST_CONTRACT_VERSION = 0
"""The oldest contract whose plugins still run."""

__all__ = [
    "CONTRACT_VERSION",
    "OLDEST_CONTRACT_VERSION",
    "PLAN_VERSION",
    "AppendedBlocks",
    "AttentionBatch",
    "AttentionChoice",
    "AttentionOption",
    "AttentionSpec",
    "AttentionUse",
    "Backend",
    "BackendInfo",
    "BackendOption",
    "BucketRules",
    "Capabilities",
    "CompiledStep",
    "CopiedBlock",
    "DecodeInputs",
    "Device",
    "DeviceEvent",
    "DeviceGraph",
    "DeviceInfo",
    "DeviceMemory",
    "DeviceState",
    "FlatBlocks",
    "GraphMode",
    "HeadNorms",
    "HostCopy",
    "KVBudget",
    "KVGroup",
    "KVGroupBudget",
    "Kernels",
    "Ladder",
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
    "UnsupportedParameter",
]
