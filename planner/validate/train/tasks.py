"""Tasks: small trainings from fixed seeds, the same on any number of ranks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.model import Model
from planner.errors import DescriptionError, LayoutError
from planner.validate.sharding.models import Stage, cross_entropy, unsupported
from planner.validate.train.strategies import OWN_MODEL, TASKS, Spread

Tensors = dict[str, Tensor]
_MOST_ELEMENTS = 500_000_000


class Mlp(nn.Module):
    """Consecutive layers of the perceptron, named by their index; no GELU after the last."""

    def __init__(self, width: int, layers: range, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for number in layers:
            parts: dict[str, nn.Module] = {"linear": nn.Linear(width, width)}
            if number < depth - 1:
                parts["activation"] = nn.GELU()
            self.layers[str(number)] = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order."""
        for layer in self.layers.values():
            x = layer(x)
        return x


@dataclass(frozen=True, slots=True)
class MlpTask:
    """Multilayer perceptron: regression on a fixed random map."""

    batch: int = 128
    width: int = 1024
    depth: int = 4

    name = TASKS[0]

    @property
    def num_params(self) -> int:
        """Number of weights and biases."""
        return self.depth * (self.width + 1) * self.width

    @property
    def stream(self) -> tuple[int, ...]:
        """Shape of one sample's activations between layers."""
        return (self.width,)

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of `make_task`."""
        return asdict(self)

    def with_depth(self, depth: int) -> MlpTask:
        """Copy with another number of layers."""
        return replace(self, depth=depth)

    def matrices(self, layers: int, tp: int) -> list[tuple[int, int]]:
        """Output and input width of the products of consecutive layers, split over tp ranks."""
        wide, narrow = self.width, self.width // tp
        return [(wide, narrow) if layer % 2 else (narrow, wide) for layer in range(layers)]

    def module(self, layers: range) -> nn.Module:
        """Build consecutive layers."""
        return Mlp(self.width, layers, self.depth)

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the whole batch of a step."""
        seeded = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(self.batch, self.width, generator=seeded)
        return x, torch.sin(3 * x.roll(1, dims=1))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(output, target)


@dataclass(frozen=True, slots=True)
class ModelTask:
    """A transformer on fixed random tokens: the small GPT, or a user's model."""

    name: str
    model: Model
    batch: int = 8
    sequence: int = 128

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.model.num_layers

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.model.hidden_size

    @property
    def num_params(self) -> int:
        """Number of parameters."""
        return self.model.num_params

    @property
    def stream(self) -> tuple[int, ...]:
        """Shape of one sample's activations between layers."""
        return (self.sequence, self.width)

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of `make_task`."""
        sizes: dict[str, Any] = {"batch": self.batch, "sequence": self.sequence}
        if self.name == OWN_MODEL:
            return sizes | {"model": self.model.model_dump(mode="json", exclude_defaults=True)}
        heads, vocabulary = self.model.num_heads, self.model.vocab_size
        shape = {"width": self.width, "depth": self.depth, "heads": heads}
        return sizes | shape | {"vocabulary": vocabulary}

    def with_depth(self, depth: int) -> ModelTask:
        """Copy with another number of layers."""
        return replace(self, model=self.model.replaced(num_layers=depth))

    def module(self, layers: range) -> nn.Module:
        """Build consecutive layers, with the embedding if first and the head if last."""
        first, last = layers.start == 0, layers.stop == self.depth
        return Stage(self.model, layers, first=first, last=last)

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of the whole batch of a step."""
        seeded = torch.Generator().manual_seed(2000 + step)
        shape = (self.batch, self.sequence + 1)
        tokens = torch.randint(self.model.vocab_size, shape, generator=seeded)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean next-token loss."""
        return cross_entropy(output, target)


Task = MlpTask | ModelTask
T = TypeVar("T", MlpTask, ModelTask)

_SIZES = {
    "mlp": asdict(MlpTask()),
    "gpt": dict(batch=8, sequence=128, width=256, depth=4, heads=4, vocabulary=512),
    OWN_MODEL: {"batch": 8, "sequence": 128},
}
"""Sizes of every task, and their defaults."""


def make_task(name: str, fields: Mapping[str, Any] | None = None) -> Task:
    """Make a task by name with changed sizes. Raises DescriptionError if it cannot be made."""
    sizes = dict(fields or {})
    described = sizes.pop("model", {}) if name == OWN_MODEL else None
    if name not in _SIZES:
        raise DescriptionError(f"unknown task {name!r}; use one of {', '.join(TASKS)}")
    for field, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise DescriptionError(f"{field} = {value!r} must be a whole number of at least 1")
    if unknown := sorted(set(sizes) - set(_SIZES[name])):
        if described is not None:
            raise DescriptionError(f"{unknown[0]} is not a size of `model`; use batch and sequence")
        raise DescriptionError(f"{name} has the sizes {', '.join(_SIZES[name])}; use those")
    sizes = _SIZES[name] | sizes
    if name == "mlp":
        return _check_size(MlpTask(**sizes))
    model = _small_gpt(sizes) if described is None else Model.described(described, where="model")
    if reason := _reason_not_trained(model):
        raise DescriptionError(f"{model.name} cannot be run: {reason}")
    return _check_size(ModelTask(name, model, sizes["batch"], sizes["sequence"]))


def _small_gpt(sizes: dict[str, int]) -> Model:
    width, heads, sequence = sizes["width"], sizes["heads"], sizes["sequence"]
    if width % heads:
        raise DescriptionError(f"heads = {heads} must divide width = {width}; change one of them")
    return Model(
        name="small-gpt",
        family="gpt",
        num_layers=sizes["depth"],
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        ffn_size=4 * width,
        vocab_size=sizes["vocabulary"],
        norm="layernorm",
        gated_mlp=False,
        activation="gelu",
        position="learned",
        mlp_bias=True,
        num_position_rows=sequence,
        max_sequence_length=sequence,
    )


def _reason_not_trained(model: Model) -> str:
    if reason := unsupported(model):
        return f"{reason} are not supported; run llama-3-8b or gpt2 for a model of the same shape"
    if model.vision is not None or not model.output_head:
        return "it predicts no tokens; `planner validate trace` traces it"
    if model.experts is not None:
        return "grouped products of experts have no fp32 kernel; `planner validate trace` traces it"
    return ""


def _check_size(task: T) -> T:
    num_elements = max(4 * task.num_params, task.batch * math.prod(task.stream) * task.depth)
    if num_elements > _MOST_ELEMENTS:
        raise DescriptionError(
            f"{task.name} of {task.num_params:,} parameters and batch {task.batch} is too large "
            f"for a small shard; stay below {_MOST_ELEMENTS:,} elements of state and of activations"
        )
    return task


def fit_task(task: Task, spread: Spread) -> Task:
    """Add layers so that chunks fill evenly. Raises LayoutError if the batch does not divide."""
    step = spread.pp * spread.chunks * (2 if spread.tp > 1 and spread.pp > 1 else 1)
    depth = step * math.ceil(task.depth / step)
    rows = spread.dp * spread.micro_batches
    if task.batch % rows:
        raise LayoutError(
            f"batch {task.batch} does not divide into dp * micro-batches = {rows}; "
            f"use a multiple of {rows}"
        )
    if isinstance(task, ModelTask) and task.name == OWN_MODEL:
        _check_split(task.model, spread.tp)
    return task if depth == task.depth else task.with_depth(depth)


def _check_split(model: Model, tp: int) -> None:
    reason = ""
    if model.latent_attention is not None or model.qk_norm == "full":
        reason = (
            "latent attention and norms over all heads are split by each program in its own way"
        )
    elif any(size % tp for size in (model.num_kv_heads, model.ffn_size, model.vocab_size)):
        reason = "its key-value heads, feed-forward width and vocabulary must divide by tp"
    if tp > 1 and reason:
        raise LayoutError(f"{model.name} is not run over tp = {tp}: {reason}")


def initial_state(task: Task) -> Tensors:
    """Make the initial weights, the same for every strategy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = task.module(range(task.depth))
        if isinstance(module, Stage):
            module.tie()
        return {name: value.detach().clone() for name, value in module.state_dict().items()}


_LAYERS, _WIDTH, _KV_HEADS, _HEADS, _HEAD_DIM = 4, 256, 4, 16, 32
_FFN_STEP, _VOCABULARY, _RANK = 64, 512, 64
RULES = (
    f"at most {_LAYERS} layers, width {_WIDTH}, {_KV_HEADS} key-value heads with as many queries "
    f"each as before up to {_HEADS} heads, head width {_HEAD_DIM}, vocabulary {_VOCABULARY}, "
    f"latent ranks {_RANK}; the feed-forward shrinks with the width to a multiple of {_FFN_STEP}"
)
"""Rules by which `reduced` shrinks a model, as text for messages."""


def reduced(model: Model, sequence: int) -> Model:
    """Shrink a model to the sizes of RULES, with sequences of `sequence` tokens."""
    width = min(model.hidden_size, _WIDTH)
    ffn = math.ceil(model.ffn_size * width / model.hidden_size / _FFN_STEP) * _FFN_STEP
    kv = math.gcd(model.num_kv_heads, _KV_HEADS)
    group = model.num_heads // model.num_kv_heads
    sizes = {
        "num_layers": min(model.num_layers, _LAYERS),
        "num_window_layers": min(model.num_window_layers, _LAYERS // 2),
        "hidden_size": width,
        "ffn_size": min(model.ffn_size, ffn),
        "num_heads": kv * min(group, _HEADS // kv),
        "num_kv_heads": kv,
        "head_dim": min(model.head_dim, _HEAD_DIM),
        "vocab_size": min(model.vocab_size, _VOCABULARY),
    }
    if model.num_position_rows:
        sizes["num_position_rows"] = sequence
    latent = model.latent_attention
    if latent is not None:
        small = {name: min(size, _RANK) for name, size in latent.model_dump().items()}
        narrow = {name: min(size, _HEAD_DIM) for name, size in small.items() if "head" in name}
        return untie_embeddings(model).replaced(**sizes, latent_attention={**small, **narrow})
    return untie_embeddings(model).replaced(**sizes)


def untie_embeddings(model: Model) -> Model:
    """Untie embedding and head, which are on different pipeline stages, and set dropout to 0."""
    return model.replaced(tied_embeddings=False, dropout=0.0)
