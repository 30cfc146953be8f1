"""Supported models: the decoders that a framework's own code builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.describe.base import Description, Width
from planner.describe.model.model import Model
from planner.describe.workload import OPTIMIZERS, PRECISIONS, OptimizerName, TrainingPrecision

__all__ = ["Axis", "Biases", "Flavor", "SupportedModels"]

Axis = Literal["tp", "pp", "cp", "ep"]
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
    experts = model.experts
    in_experts = experts is not None and experts.expert_bias
    return _BIASES.get((model.qkv_bias, model.out_bias, model.mlp_bias or in_experts), "mixed")


class Flavor(Description):
    """A model size that the code knows by name."""

    name: str
    """The framework's own name."""
    sizes: tuple[Width, Width, Width, Width, Width]
    """Layers, width, feed-forward of a layer (of an expert where it has any), key-value heads,
    vocabulary."""


class SupportedModels(Description):
    """Decoders that one code of a framework builds.

    All have one normalisation before attention and one before the feed-forward, in series, and
    no bias in the output projection.
    """

    module: str = ""
    """Name of that code in the framework, if it has several."""
    positions: tuple[Literal["learned", "rope", "alibi", "relative", "none"], ...] = ("rope",)
    """Position schemes."""
    norms: tuple[Literal["layernorm", "layernorm-nobias", "rmsnorm"], ...] = ("rmsnorm",)
    """Normalisations."""
    feed_forwards: tuple[str, ...] = ("gated silu",)
    """Non-linearities of the feed-forward, `gated` where it has a gate."""
    biases: tuple[Biases, ...] = ("none",)
    """Matrices of a layer with biases."""
    qk_norms: tuple[Literal["none", "head", "full"], ...] = ("none",)
    """Normalisations of queries and keys."""
    attention: tuple[Literal["heads", "latent"], ...] = ("heads",)
    """Attention with separate keys and values, or latent attention (MLA)."""
    sinks: tuple[bool, ...] = (False,)
    """Whether heads have a learned sink."""
    feed_forward: tuple[Literal["dense", "experts", "biased experts"], ...] = ("dense",)
    """Kinds of feed-forward layer."""
    windows: Literal["none", "all", "some"] = "none"
    """Layers that may have an attention window: none, all alike, or some."""
    tied: tuple[bool, ...] = (False, True)
    """Whether the output projection may be the embedding."""
    any_head_width: bool = True
    """Whether the head width is free; else hidden size / heads."""
    flavors: tuple[Flavor, ...] = ()
    """Sizes known by name."""
    any_size: bool = True
    """Whether sizes besides the flavors can be set."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions in which this code trains."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers with which this code trains."""
    axes: tuple[Axis, ...] | None = None
    """Parallel axes of this code besides data; None: all of the framework's."""

    def flavor(self, model: Model) -> str:
        """Name of a model's sizes; empty if they have none."""
        width = model.experts.ffn_size if model.experts is not None else model.ffn_size
        sizes = (model.num_layers, model.hidden_size, width, model.num_kv_heads, model.vocab_size)
        return next((flavor.name for flavor in self.flavors if flavor.sizes == sizes), "")

    def lacks(self, model: Model, sequence_length: int) -> str:
        """First difference of a model from the supported ones; empty if there is none.

        >>> from planner.describe.catalogue import load_model
        >>> [SupportedModels().lacks(load_model(name), 4096) for name in ("mistral-7b", "gpt2")]
        ['', 'has learned positions']
        """
        differences = self._model_differences(model)
        differences |= self._layer_differences(model, sequence_length)
        return next((difference for difference, differs in differences.items() if differs), "")

    def _model_differences(self, model: Model) -> dict[str, bool]:
        """Possible differences of the whole model."""
        return {
            f"is no decoder but {model.kind}": model.kind != "decoder",
            f"has {model.position} positions": model.position not in self.positions,
            f"normalises with {model.norm}": model.norm not in self.norms,
            f"has {model.norms_per_layer} normalisations a layer": model.norms_per_layer != 2,
            "normalises its embedding": model.embedding_norm,
            "has a bias in its output projection": model.head_bias,
            "runs attention and feed-forward side by side": model.parallel_residual,
            "has a projected embedding": bool(model.embedding_size),
            "has sizes of its own": not (self.any_size or self.flavor(model)),
            f"has {'' if model.tied_embeddings else 'no '}tied embeddings": (
                model.tied_embeddings not in self.tied
            ),
        }

    def _layer_differences(self, model: Model, sequence_length: int) -> dict[str, bool]:
        """Possible differences of attention and feed-forward."""
        layers = model.num_window_layers
        windowed = 0 < model.sliding_window < sequence_length and layers > 0
        allowed = {"none": False, "all": layers == model.num_layers, "some": True}
        latent = "heads" if model.latent_attention is None else "latent"
        activation = non_linearity(model)
        kind = _feed_forward(model)
        return {
            f"has {latent} attention": latent not in self.attention,
            f"has {kind}" if kind != "dense" else "has no experts": kind not in self.feed_forward,
            f"has a feed-forward with {activation}": activation not in self.feed_forwards,
            _BIASES_IN_WORDS[_biases(model)]: _biases(model) not in self.biases,
            f"normalises queries and keys ({model.qk_norm})": model.qk_norm not in self.qk_norms,
            "has attention sinks" if model.attention_sinks else "has no attention sinks": (
                model.attention_sinks not in self.sinks
            ),
            f"has a window of {model.sliding_window} tokens in {layers} layers": (
                windowed and not allowed[self.windows]
            ),
            "has heads of another width": not self.any_head_width
            and model.head_dim * model.num_heads != model.hidden_size,
        }


def non_linearity(model: Model) -> str:
    """Activation of the feed-forward in words.

    >>> from planner import load_model
    >>> non_linearity(load_model("llama-3-8b")), non_linearity(load_model("gpt2"))
    ('gated silu', 'gelu')
    """
    return f"{'gated ' if model.gated_mlp else ''}{model.activation}"


def _feed_forward(model: Model) -> Literal["dense", "experts", "biased experts"]:
    if model.experts is None:
        return "dense"
    biased = model.experts.expert_bias or model.experts.router_bias
    return "biased experts" if biased else "experts"
