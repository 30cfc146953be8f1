"""Tasks: small trainings from fixed seeds, the same on any number of ranks."""

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from planner.describe.files import read_toml
from planner.describe.model.model import Model
from planner.describe.model.traced_file import Traced, split_name
from planner.errors import DescriptionError, LayoutError
from planner.validate.sharding import own_module
from planner.validate.sharding.models import Stage, cross_entropy, unsupported
from planner.validate.sharding.shard import tensor_parallel
from planner.validate.trace.user_module import Sample, build_module
from planner.validate.train.strategies import Spread

Tensors = dict[str, Tensor]
_MOST_ELEMENTS = 500_000_000
SMALL_GPT = Model.described(read_toml(Path(__file__).with_name("small_gpt.toml")))
"""Model that is trained if the user names none."""


@dataclass(frozen=True, slots=True)
class Task:
    """A transformer on fixed random tokens: the small GPT, or a user's model."""

    model: Model = SMALL_GPT
    batch: int = 8
    sequence: int = 128

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.model.num_layers

    @property
    def traced(self) -> Traced:
        """The user's module as it was traced."""
        assert self.model.traced is not None
        return self.model.traced

    @property
    def stream(self) -> tuple[int, int]:
        """Shape of one sample's activations between layers."""
        return (self.sequence, self.model.hidden_size)

    def module(self, layers: range) -> nn.Module:
        """Build consecutive layers, with the embedding if first and the head if last."""
        first, last = layers.start == 0, layers.stop == self.depth
        return Stage(self.model, layers, first=first, last=last)

    def layers(self, chunk: Any) -> list[nn.Module]:
        """Layers of a chunk, which FSDP shards one by one."""
        return [*chunk.layers.values()]

    def prepare(self, chunk: Any) -> None:
        """Compute the tables of rotary positions."""
        device = next(chunk.parameters()).device
        chunk.default_rope = chunk.tables(self.sequence, device, torch.float32)

    def split(self, chunk: Any, mesh: DeviceMesh, spread: Spread) -> None:
        """Split a chunk over tensor-parallel ranks, with the logits whole."""
        tensor_parallel(chunk, mesh, spread.sequence_parallel, whole_logits=True)

    def fit(self, spread: Spread) -> Self:
        """Add layers so that chunks fill evenly. Raises LayoutError if tp does not divide."""
        step = spread.pp * spread.chunks
        _check_split(self.model, spread.tp)
        depth = step * math.ceil(self.depth / step)
        return replace(self, model=self.model.replaced(num_layers=depth))

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of the whole batch of a step."""
        seeded = torch.Generator().manual_seed(2000 + step)
        shape = (self.batch, self.sequence + 1)
        tokens = torch.randint(self.model.vocab_size, shape, generator=seeded)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean next-token loss."""
        return cross_entropy(output, target)


@dataclass(frozen=True, slots=True)
class OwnTask(Task):
    """A user's module on fixed random samples."""

    file: str = ""
    """FILE.py:FUNCTION that builds it."""

    @property
    def stream(self) -> tuple[int, int]:
        """Shape of the widest tensor between units, for one sample."""
        return (1, self.model.hidden_size)

    def module(self, layers: range) -> nn.Module:
        """Build consecutive units, with what runs before the first and after the last."""
        module, units = _build(self.file)[0], [*self.traced.units]
        ends = [place for place in (layers.start, layers.stop) if 0 < place < self.depth]
        if not ends:
            return module
        return own_module.make_stage(
            module, units, [units[end] for end in ends], int(layers.start > 0)
        )

    def layers(self, chunk: nn.Module) -> list[nn.Module]:
        """Units of a chunk, which FSDP shards one by one."""
        present = dict(chunk.named_modules())
        return [present[unit] for unit in self.traced.units if unit in present]

    def prepare(self, chunk: nn.Module) -> None:
        """Switch off dropout, which differs from rank to rank."""
        for part in chunk.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0

    def split(self, chunk: nn.Module, mesh: DeviceMesh, spread: Spread) -> None:
        """Split the Linear layers of a chunk."""
        del spread
        own_module.tensor_parallel(
            chunk, mesh, {split.name: split.kind for split in self.traced.splits}
        )

    def fit(self, spread: Spread) -> Self:
        """Check that the module can be spread so. Raises LayoutError if it cannot."""
        name, traced, stages = self.model.name, self.traced, spread.pp * spread.chunks
        if spread.sequence_parallel:
            raise LayoutError(f"{name} is not run under sp: it has samples, not sequences; use tp")
        if spread.tp > 1 and (not traced.splits or traced.split_width % spread.tp):
            reason = traced.no_tp or f"the degree must divide {traced.split_width}"
            raise LayoutError(f"{name} is not run over tp = {spread.tp}, as {reason}; use ddp")
        if stages > 1 and stages > len(traced.units):
            reason = traced.no_pp or f"it has {len(traced.units)} units"
            raise LayoutError(f"{name} is not cut into {stages} stages, as {reason}; use ddp")
        return self

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Samples for the whole batch of a step; the loss needs no targets."""
        seeded = torch.Generator().manual_seed(2000 + step)
        sample = _sample(self.file)
        x = torch.randn((self.batch, *sample.shape), generator=seeded).to(sample.dtype)
        return x, torch.zeros(self.batch)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean of the results, each weighted, which keeps nothing for backward; near 1."""
        del target
        weights = torch.linspace(-1, 1, output[0].numel(), device=output.device)
        return 1 + (output * weights.view_as(output[0])).mean()


def _build(file: str) -> tuple[nn.Module, Sample]:
    return build_module(*split_name(file), file, device="cpu")


@functools.cache
def _sample(file: str) -> Tensor:
    """One sample of a module of one tensor."""
    module, sample = _build(file)
    args, keywords = sample.batch(2)
    with torch.no_grad():
        result = module(*args, **keywords)
    if len(args) != 1 or keywords or not isinstance(result, Tensor) or result.shape[:1] != (2,):
        raise DescriptionError(
            f"{file} cannot be run: `planner validate run` takes a module of one tensor "
            "with one result for each sample; wrap it in one"
        )
    return args[0][0]


def fields_of(task: Task) -> dict[str, Any]:
    """Return the arguments of `make_task` for a task, as plain data."""
    model = task.model.model_dump(mode="json")
    file = task.file if isinstance(task, OwnTask) else ""
    return {"model": model, "batch": task.batch, "sequence": task.sequence, "file": file}


def make_task(model: dict[str, Any], batch: int, sequence: int, file: str = "") -> Task:
    """Make a task from a model's fields. Raises DescriptionError if it cannot be trained."""
    described = Model.described(model, where="model")
    if described.traced is None and (reason := _reason_not_trained(described)):
        raise DescriptionError(f"{described.name} cannot be run: {reason}")
    for name, size in (("batch", batch), ("sequence", sequence)):
        if size < 1:
            raise DescriptionError(f"{name} = {size} must be at least 1; give a positive number")
    task = Task(described, batch, sequence)
    if described.traced is not None:
        task = OwnTask(described, batch, 1, file)
    num_elements = max(4 * described.num_params, batch * math.prod(task.stream) * task.depth)
    if num_elements > _MOST_ELEMENTS:
        raise DescriptionError(
            f"{described.name} of {described.num_params:,} parameters and batch {batch} is too "
            f"large for a small shard; stay below {_MOST_ELEMENTS:,} elements of state and of "
            "activations"
        )
    return task


def _reason_not_trained(model: Model) -> str:
    if reason := unsupported(model):
        return f"{reason} are not supported; run llama-3-8b or gpt2 for a model of the same shape"
    if model.vision is not None or not model.output_head:
        return "it predicts no tokens; `planner validate trace` traces it"
    if model.experts is not None:
        return "grouped products of experts have no fp32 kernel; `planner validate trace` traces it"
    return ""


def fit_task(task: Task, spread: Spread) -> Task:
    """Fit a task to a strategy. Raises LayoutError if the batch does not divide."""
    rows = spread.dp * spread.micro_batches
    if task.batch % rows:
        raise LayoutError(
            f"batch {task.batch} does not divide into dp * micro-batches = {rows}; "
            f"use a multiple of {rows}"
        )
    return task.fit(spread)


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
    sizes: dict[str, Any] = {
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
        sizes["latent_attention"] = {**small, **narrow}
    return untie_embeddings(model).replaced(**sizes)


def untie_embeddings(model: Model) -> Model:
    """Untie embedding and head, which are on different pipeline stages, and set dropout to 0."""
    return model.replaced(tied_embeddings=False, dropout=0.0)
