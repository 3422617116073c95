"""Reads a model's ``config.json`` in the spellings that transformers 4.55 to 5.x write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tgi_core.errors import ExitCode, StartupError, UnsupportedModelError
from tgi_core.lenient_json import decode_object
from tgi_core.models.ropes import LinearScaling, Llama3Scaling, LongRopeScaling, RopeScaling, RopeSpec, YarnScaling
from tgi_core.models.spec import LayerSpec

T = TypeVar("T")

FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""Names of activations and what the kernels call them."""

PLAIN_ACTIVATIONS: Mapping[str, str] = {**ACTIVATIONS, "relu": "relu", "relu2": "relu2"}
"""Those of an MLP without a gate."""

LARGEST_SIZE = 1 << 24
"""No dimension of a model comes near it; a larger number is damage, and would end in an allocation that fails."""

LONGEST_CONTEXT = 1 << 30
MOST_LAYERS = 1 << 14

_FIX = "Serve another model, or write an architecture plugin that knows this one."


class HFConfig:
    """Typed access to a configuration; every complaint names the key."""

    def __init__(
        self, values: Mapping[str, Any], where: str = "config.json", other_names: Mapping[str, str] | None = None
    ) -> None:
        self._values = values
        self._where = where
        self._other_names = other_names or {}

    def with_names(self, **other_names: str) -> HFConfig:
        """The same configuration, in which a key that is absent may have another name: usual name = name here."""
        return HFConfig(self._values, self._where, {**self._other_names, **other_names})

    def with_values(self, **values: Any) -> HFConfig:
        """The same configuration with values that it keeps elsewhere."""
        return HFConfig({**self._values, **values}, self._where, self._other_names)

    @classmethod
    def read(cls, model_dir: Path) -> HFConfig:
        """Read ``config.json`` of ``model_dir``.

        Raises:
            StartupError: it is missing or no JSON object.
        """
        path = model_dir / "config.json"
        try:
            return cls(decode_object(path.read_bytes()), str(path))
        except FileNotFoundError:
            raise StartupError(
                f"{model_dir} has no config.json.", "Point --model-id at a model's folder.", ExitCode.MODEL
            ) from None
        except (OSError, msgspec.MsgspecError) as error:
            raise StartupError(
                f"{path} cannot be read: {error}.", "Download or copy the model again.", ExitCode.MODEL
            ) from error

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self._values.get(self._name(key)) is not None

    def names(self, key: str) -> bool:
        """Whether ``key`` is there, were it as null."""
        return self._name(key) in self._values

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key`` as ``kind``; null counts as absent.

        Raises:
            StartupError: it is absent without a default, or of another type.
        """
        key = self._name(key)
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise StartupError(f"`{key}` is missing in {self._where}.", _FIX, ExitCode.MODEL)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.refuse(key, str(error)) from error

    def size(self, key: str, default: int | None = None, *, most: int = LARGEST_SIZE) -> int:
        """The value of ``key`` as a size: a whole number from 1 to ``most``.

        Raises:
            StartupError: it is absent without a default, or no such number.
        """
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            raise self.refuse(key, f"it must be from 1 to {most}")
        return value

    def positive(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """The value of ``key`` as a finite number above 0, or above ``above``.

        Raises:
            StartupError: it is absent without a default, or no such number.
        """
        value = self.get(key, float, default)
        if not above < value < math.inf:
            raise self.refuse(key, f"it must be a number above {above:g}")
        return value

    def section(self, key: str, defaults: Mapping[str, Any] | None = None) -> HFConfig:
        """The nested object at ``key``; ``defaults`` stand in for what it does not name, and for itself.

        Raises:
            StartupError: it is absent and there are no defaults.
        """
        values = self.get(key, dict[str, Any], None if defaults is None else {})
        named = {name: value for name, value in values.items() if value is not None}
        return HFConfig({**(defaults or {}), **named}, self._where)

    def refuse(self, key: str, reason: str) -> StartupError:
        """The error that says ``key`` has a value that is not supported."""
        key = self._name(key)
        return StartupError(f"`{key}` = {self._values.get(key)!r} in {self._where}: {reason}.", _FIX, ExitCode.MODEL)

    def unsupported(self, key: str, reason: str) -> UnsupportedModelError:
        """The error that says ``key`` asks for what is valid and not built."""
        error = self.refuse(key, reason)
        return UnsupportedModelError(error.cause, error.fix, error.exit_code)

    def refuse_if_set(self, *keys: str) -> None:
        """Refuse features that would change the computation and are not built: anything but null, false and 0."""
        for key in keys:
            if self._values.get(key):
                raise self.unsupported(key, "not supported")

    def activation(self, *keys: str, known: Mapping[str, str] = ACTIVATIONS, default: str | None = None) -> str:
        """The activation that the first key present names."""
        key = next((key for key in keys if self.has(key)), keys[-1])
        name = self.get(key, str, default)
        if name not in known:
            raise self.unsupported(key, f"unknown activation; known are {', '.join(known)}")
        return known[name]

    def layer_types(self, default: list[str], known: tuple[str, ...] = (FULL, SLIDING)) -> list[str]:
        """The type of each layer, one of those ``known``."""
        types = self.get("layer_types", list[str], default)
        if len(types) != len(default):
            raise self.refuse("layer_types", f"{len(types)} entries for {len(default)} layers")
        for name in types:
            if name not in known:
                raise self.unsupported("layer_types", f"unknown type `{name}`")
        return types

    def layers(self, types: list[str], rope_of: Mapping[str, int | None] | None = None) -> tuple[LayerSpec, ...]:
        """A layer spec for each type; ``rope_of`` says which rope a type uses if any, the first by default."""
        window = self.size("sliding_window", most=LONGEST_CONTEXT) if SLIDING in types else None
        ropes = rope_of or {}
        return tuple(LayerSpec(window if name == SLIDING else None, ropes.get(name, 0)) for name in types)

    def _name(self, key: str) -> str:
        """The name under which ``key`` stands here."""
        return key if self._values.get(key) is not None else self._other_names.get(key, key)

    def rope(
        self,
        head_dim: int,
        layer_type: str | None = None,
        default_theta: float = 10_000.0,
        theta_key: str = "",
        default_partial: float = 1.0,
    ) -> RopeSpec:
        """The rotary embedding, from ``rope_parameters`` (5.x) or ``rope_theta`` and ``rope_scaling`` (4.x).

        Args:
            head_dim: features of a head.
            layer_type: whose, where the configuration keeps one a layer type.
            default_theta: base when none is named.
            theta_key: the old spelling's key of this layer type's base; it then has no scaling.
            default_partial: share of the features that is rotated when none is named.
        """
        key = "rope_parameters" if self.has("rope_parameters") else "rope_scaling"
        theta = self.positive(theta_key or "rope_theta", default_theta, above=1.0)
        if self.has("rope_parameters"):
            self._refuse_two_scalings()
            values = self.section(key)
            if layer_type is not None and values.has(layer_type):
                values = values.section(layer_type)
            theta = values.positive("rope_theta", theta, above=1.0)
        else:
            values = HFConfig({}, self._where) if theta_key else self.section(key, {})
        partial = values.positive("partial_rotary_factor", self.positive("partial_rotary_factor", default_partial))
        rotary_dim = int(head_dim * partial)
        if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
            raise self.refuse("head_dim", f"{rotary_dim} of {head_dim} features cannot be rotated in pairs")
        return RopeSpec(theta=theta, rotary_dim=rotary_dim, scaling=self._scaling(key, values, rotary_dim))

    def _refuse_two_scalings(self) -> None:
        """A scaling added in the old spelling to a configuration in the new one would be lost."""
        old, new = self.get("rope_scaling", dict[str, Any], {}), self.get("rope_parameters", dict[str, Any])
        new = {"type": new.get("rope_type"), **new}
        if any(new.get(name) != value for name, value in old.items()):
            raise self.refuse("rope_scaling", "`rope_parameters` says something else, keep one of them")

    def _scaling(self, key: str, values: HFConfig, rotary_dim: int) -> RopeScaling | None:
        kind = values.get("rope_type", str, values.get("type", str, "default"))
        match kind:
            case "default" | "dynamic":
                # Dynamic scaling leaves the context that the model was trained for as it is. Beyond it every new token
                # would turn all the keys before it, so what is served ends there.
                return None
            case "linear":
                return LinearScaling(values.positive("factor"))
            case "llama3":
                low, high = values.positive("low_freq_factor"), values.positive("high_freq_factor")
                if low >= high:
                    raise values.refuse("high_freq_factor", f"it must be above `low_freq_factor`, {low:g}")
                return Llama3Scaling(values.positive("factor"), low, high, self._original_positions(values))
            case "yarn":
                original = self._original_positions(values)
                max_positions = self.size("max_position_embeddings", original, most=LONGEST_CONTEXT)
                factor = values.positive("factor", max_positions / original)
                return YarnScaling(
                    factor,
                    values.positive("attention_factor", _yarn_attention_factor(factor, values)),
                    values.positive("beta_fast", 32.0),
                    values.positive("beta_slow", 1.0),
                    original,
                    values.get("truncate", bool, True),
                )
            case "longrope" | "su":
                return self._long_rope(values, rotary_dim)
        known = "default, linear, dynamic, llama3, yarn, longrope"
        raise self.unsupported(key, f"unknown rope type `{kind}`; known are {known}")

    def _long_rope(self, values: HFConfig, rotary_dim: int) -> LongRopeScaling:
        original = self._original_positions(values)
        longest = self.size("max_position_embeddings", original, most=LONGEST_CONTEXT)
        factor = values.positive("factor", longest / original)
        usual = 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        return LongRopeScaling(
            _pair_factors(values, "short_factor", rotary_dim),
            _pair_factors(values, "long_factor", rotary_dim),
            values.positive("attention_factor", values.positive("short_mscale", usual)),
            values.positive("attention_factor", values.positive("long_mscale", usual)),
            original,
        )

    def _original_positions(self, values: HFConfig) -> int:
        """The context before it was stretched, in tokens."""
        key = "original_max_position_embeddings"
        holder = next((config for config in (values, self) if config.has(key)), None)
        if holder is None:
            return self.size("max_position_embeddings", most=LONGEST_CONTEXT)
        return holder.size(key, most=LONGEST_CONTEXT)


def _pair_factors(values: HFConfig, key: str, rotary_dim: int) -> tuple[float, ...]:
    factors = tuple(values.get(key, list[float]))
    if len(factors) != rotary_dim // 2:
        raise values.refuse(key, f"{len(factors)} factors for {rotary_dim // 2} pairs of features")
    if not all(0 < factor < math.inf for factor in factors):
        raise values.refuse(key, "its factors must be numbers above 0")
    return factors


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """How much larger attention's inputs become when a context is stretched by ``factor``."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_attention_factor(factor: float, values: HFConfig) -> float:
    part, whole = values.get("mscale", float, 0.0), values.get("mscale_all_dim", float, 0.0)
    if part and whole:
        return yarn_magnitude(factor, part) / yarn_magnitude(factor, whole)
    return yarn_magnitude(factor)
