"""Limits: what a framework's files can say, declared one way and refused with one sentence.

`Words` holds a framework's own names for the planner's precisions, optimizers and schedules;
`Decoders` the models that its own code builds. What neither holds cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from planner.describe.model.model import Model
from planner.emitters.batch_job import BatchJob
from planner.errors import EmitError

__all__ = ["LLAMA", "TORCH_DTYPES", "Decoders", "Words", "not_written"]

T = TypeVar("T")

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""torch's type of the tensors that a training precision computes with: TF32 rounds fp32 inside a
matrix product only. FP8 has none, because its tensors carry scales."""


def not_written(what: str, framework: str, use: str) -> EmitError:
    """The refusal of what a framework's files cannot say, with what to use.

    >>> print(not_written("optimizer muon", "nanotron", "adamw"))
    optimizer muon is not written for nanotron; use adamw
    """
    return EmitError(f"{what} is not written for {framework}; use {use}")


@dataclass(frozen=True, slots=True)
class Words(Generic[T]):
    """What a framework calls the planner's precisions, optimizers or schedules.

    >>> Words("schedule", "nanotron", {"gpipe": "afab"})["gpipe"]
    'afab'
    """

    kind: str
    """What is named: precision, optimizer, schedule."""
    framework: str
    """Whose words they are."""
    words: Mapping[str, T]
    """The planner's name to the framework's word."""

    def __getitem__(self, name: str) -> T:
        """The word; raises EmitError where the framework has none."""
        if name not in self.words:
            *others, last = self.words
            known = f"{', '.join(others)} or {last}" if others else last
            raise not_written(f"{self.kind} {name}", self.framework, known)
        return self.words[name]


Biases = Literal["none", "qkv", "all", "mixed"]
_BIASES: Mapping[tuple[bool, bool, bool], Biases] = {
    (False, False, False): "none",
    (True, False, False): "qkv",
    (True, True, True): "all",
}
_BIASES_IN_WORDS: Mapping[Biases, str] = {
    "none": "has no biases",
    "qkv": "has biases of queries, keys and values only",
    "all": "has biases",
    "mixed": "has biases in some matrices only",
}


def _biases(model: Model) -> Biases:
    return _BIASES.get((model.qkv_bias, model.out_bias, model.mlp_bias), "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoders:
    """The decoders that a framework's own code builds, by what their parts may be.

    All have one normalisation before attention and one before the feed-forward, in series, and
    no bias in the output projection.
    """

    positions: tuple[str, ...]
    """Position schemes."""
    norms: tuple[str, ...]
    """Normalisations."""
    feed_forwards: tuple[str, ...]
    """Non-linearities of the feed-forward, `gated` where it has a gate."""
    biases: tuple[Biases, ...]
    """Which of the matrices of a layer have biases."""
    qk_norms: tuple[str, ...] = ("none",)
    """Normalisations of queries and keys."""
    experts: bool = False
    """Whether a feed-forward may be experts, without biases."""
    windows: bool = False
    """Whether all layers may have an attention window."""
    any_head_width: bool = True
    """Whether a head's width is free, or that of the residual stream over the heads."""

    def lacks(self, model: Model, sequence_length: int) -> str:
        """What sets a model apart from these; empty where nothing does.

        >>> from planner.describe.catalogue import load_model
        >>> [LLAMA.lacks(load_model(name), 4096) for name in ("mistral-7b", "gpt2")]
        ['', 'has learned positions']
        """
        feed_forward = f"{'gated ' if model.gated_mlp else ''}{model.activation}"
        windowed = 0 < model.sliding_window < sequence_length
        whole = model.num_window_layers == model.num_layers
        window = f"a window of {model.sliding_window} tokens in {model.num_window_layers} layers"
        experts = model.experts
        biased = experts is not None and (experts.expert_bias or experts.router_bias)
        odd = {
            f"is no decoder but {model.kind}": model.kind != "decoder",
            "has latent attention": model.latent_attention is not None,
            "has experts": experts is not None and not self.experts,
            "has biased experts": biased,
            f"has {model.position} positions": model.position not in self.positions,
            f"normalises with {model.norm}": model.norm not in self.norms,
            f"has {model.norms_per_layer} normalisations a layer": model.norms_per_layer != 2,
            "normalises its embedding": model.embedding_norm,
            f"has a feed-forward with {feed_forward}": feed_forward not in self.feed_forwards,
            _BIASES_IN_WORDS[_biases(model)]: _biases(model) not in self.biases,
            "has a bias in its output projection": model.head_bias,
            f"normalises queries and keys ({model.qk_norm})": model.qk_norm not in self.qk_norms,
            "has attention sinks": model.attention_sinks,
            "runs attention and feed-forward side by side": model.parallel_residual,
            "has a projected embedding": bool(model.embedding_size),
            f"has {window}": windowed and not (self.windows and whole),
            "has heads of another width": not self.any_head_width
            and model.head_dim * model.num_heads != model.hidden_size,
        }
        return next((what for what, found in odd.items() if found), "")

    def check(self, job: BatchJob, framework: str) -> None:
        """Raise EmitError where the job's model is none of these."""
        odd = self.lacks(job.model, job.workload.sequence_length)
        if odd:
            raise not_written(
                f"model {job.model.name[:60]!r}, which {odd},",
                framework,
                "a framework that runs the model's own code, such as deepspeed or accelerate",
            )


LLAMA = Decoders(
    positions=("rope",),
    norms=("rmsnorm",),
    feed_forwards=("gated silu",),
    biases=("none",),
    any_head_width=False,
)
"""The Llama of Meta in any size, which most frameworks bring."""
