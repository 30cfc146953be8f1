"""Support: models that a framework's own code builds, and settings that its files can state."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from planner.describe.base import Description, Width, ZeroStage
from planner.describe.layout import Schedule
from planner.describe.model.model import Model
from planner.describe.model.shapes import NormName, QkNorm
from planner.describe.workload import (
    OPTIMIZERS,
    PRECISIONS,
    OptimizerName,
    TrainingPrecision,
    Workload,
)
from planner.units import either

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
    """Layers, hidden size, feed-forward width of a layer or expert, key-value heads, vocabulary."""


class SupportedModels(Description):
    """Decoders that one model code of a framework builds: two norms per layer, no output bias."""

    module: str = ""
    """Name of this model code in the framework, if it has several."""
    positions: tuple[Literal["learned", "rope", "alibi", "relative", "none"], ...] = ("rope",)
    """Position schemes."""
    norms: tuple[NormName, ...] = ("rmsnorm",)
    """Normalisations."""
    feed_forwards: tuple[str, ...] = ("gated silu",)
    """Activations of the feed-forward, such as `gated silu`."""
    biases: tuple[Biases, ...] = ("none",)
    """Matrices of a layer with biases."""
    qk_norms: tuple[QkNorm, ...] = ("none",)
    """Normalisations of queries and keys."""
    attention: tuple[Literal["heads", "latent"], ...] = ("heads",)
    """Attention with separate keys and values, or latent attention (MLA)."""
    sinks: tuple[bool, ...] = (False,)
    """Supported values of `attention_sinks`."""
    feed_forward: tuple[Literal["dense", "experts", "biased experts"], ...] = ("dense",)
    """Kinds of feed-forward layer."""
    windows: Literal["none", "all", "some"] = "none"
    """Supported numbers of layers with an attention window: none, all layers, or any."""
    tied: tuple[bool, ...] = (False, True)
    """Supported values of `tied_embeddings`."""
    any_head_width: bool = True
    """Whether the head width is free; else hidden size / heads."""
    flavors: tuple[Flavor, ...] = ()
    """Sizes known by name."""
    any_size: bool = True
    """Whether sizes other than the flavors can be set."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions in which this code trains."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers with which this code trains."""
    axes: tuple[Axis, ...] | None = None
    """Parallel axes besides data that this code supports; None: all of the framework."""

    def flavor(self, model: Model) -> str:
        """Name of the flavor that has a model's sizes; empty if there is none."""
        width = model.experts.ffn_size if model.experts is not None else model.ffn_size
        sizes = (model.num_layers, model.hidden_size, width, model.num_kv_heads, model.vocab_size)
        return next((flavor.name for flavor in self.flavors if flavor.sizes == sizes), "")

    def lacks(self, model: Model, sequence_length: int) -> str:
        """First feature of a model that this code does not support; empty if there is none."""
        differences = self._model_differences(model)
        differences |= self._layer_differences(model, sequence_length)
        return next((difference for difference, differs in differences.items() if differs), "")

    def _model_differences(self, model: Model) -> dict[str, bool]:
        return {
            f"is of kind {model.kind} (only decoders are supported)": model.kind != "decoder",
            f"has {model.position} positions": model.position not in self.positions,
            f"normalises with {model.norm}": model.norm not in self.norms,
            f"has {model.norms_per_layer} normalisations a layer": model.norms_per_layer != 2,
            "normalises its embedding": model.embedding_norm,
            "has a bias in its output projection": model.head_bias,
            "runs attention and feed-forward in parallel": model.parallel_residual,
            "has a projected embedding": bool(model.embedding_size),
            "has custom sizes": not (self.any_size or self.flavor(model)),
            f"has {'' if model.tied_embeddings else 'no '}tied embeddings": (
                model.tied_embeddings not in self.tied
            ),
        }

    def _layer_differences(self, model: Model, sequence_length: int) -> dict[str, bool]:
        layers = model.num_window_layers
        windowed = 0 < model.sliding_window < sequence_length and layers > 0
        allowed = {"none": False, "all": layers == model.num_layers, "some": True}
        latent = "heads" if model.latent_attention is None else "latent"
        activation = non_linearity(model)
        experts, kind = model.experts, "dense"
        if experts is not None:
            biased = experts.expert_bias or experts.router_bias
            kind = "biased experts" if biased else "experts"
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
            f"attends within chunks of {model.sliding_window} tokens in {layers} layers": (
                windowed and model.chunked_window
            ),
            "has a head width other than hidden size / heads": not self.any_head_width
            and model.head_dim * model.num_heads != model.hidden_size,
        }


def non_linearity(model: Model) -> str:
    """Activation of the feed-forward in words."""
    return f"{'gated ' if model.gated_mlp else ''}{model.activation}"


class EmitSupport(Description):
    """Limits of the framework's own code and files, where estimates can cover more."""

    models: tuple[SupportedModels, ...] = ()
    """Models that its own code builds; empty: it runs the user's model code."""
    other_models: Literal["none", "data-parallel"] = "none"
    """Support of other models: none, or data parallelism around their own code."""
    other_blocks: dict[str, Any] = Field(default_factory=dict)
    """Kernels of these other models; in TOML the framework that runs them so."""
    unsharded_kinds: tuple[str, ...] = ()
    """Kinds of model that it cannot shard: their tied tensors belong to two groups."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions that its files can set."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers that its files can set."""
    drops_tokens: bool = False
    """Whether its files can set an expert capacity, beyond which tokens are dropped."""
    pads_experts: bool = True
    """Whether it can pad experts to their capacity."""
    own_module_axes: tuple[Axis, ...] = ()
    """Axes besides data over which its files split a user's traced module."""
    own_module_schedules: tuple[Schedule, ...] = ("none",)
    """Pipeline schedules of such modules."""
    masks_documents: bool = False
    """Whether its code masks documents of a sequence in a kernel that skips the masked part."""
    zero_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages that its files can set; empty: all it offers."""
    schedules: tuple[Schedule, ...] = ()
    """Pipeline schedules that its files can set; empty: all it offers."""
    recompute_by: tuple[Literal["layers", "every", "span"], ...] | None = None
    """As `Framework.recompute_by`, for its files; None: all it offers."""
    reshards_whole: bool = False
    """Whether its files reshard models of its code over all ranks or not at all after forward."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """As `Framework.axes_need_sharding`, for its files."""

    def lacks(self, model: Model, workload: Workload) -> str:
        """Reason why no files can be written for a job; empty if they can."""
        if unsupported := self.unsupported_setting(workload):
            return unsupported
        if self.other_models != "none" or not self.models:
            return ""
        if workload.adapted:
            return "its code trains no adapters and freezes no parts"
        if reason := self._mixing_reason(workload):
            return reason
        return self.unsupported_model(model, workload.sequence_length)

    def unsupported_setting(self, workload: Workload) -> str:
        """Reason why its files cannot state a workload; empty if they can."""
        if workload.precision not in self.precisions:
            choices = either(self.precisions)
            return f"its files cannot set precision {workload.precision}; use {choices}"
        if workload.optimizer not in self.optimizers:
            choices = either(self.optimizers)
            return f"its files cannot set optimizer {workload.optimizer}; use {choices}"
        if workload.expert_capacity and not self.drops_tokens:
            return f"its files cannot set expert_capacity {workload.expert_capacity:g}; use 0"
        if workload.pad_experts and not self.pads_experts:
            return "its files cannot set pad_experts; leave it out"
        return ""

    def _mixing_reason(self, workload: Workload) -> str:
        """Reason why its code mixes documents that estimates separate; empty if it does not."""
        if workload.document_lengths and workload.packing == "padded":
            return "its data loader fills sequences with the next document (packing = padded)"
        masks = self.masks_documents and workload.attention != "eager"
        if workload.document_lengths and not masks:
            fused = f" with attention {workload.attention}" if self.masks_documents else ""
            return f"documents that share a sequence (document_lengths) attend to each other{fused}"
        return ""

    def unsupported_model(self, model: Model, sequence_length: int) -> str:
        """Reason why its code cannot build a model; empty if it can."""
        reasons = [decoders.lacks(model, sequence_length) for decoders in self.models]
        return "" if not reasons or "" in reasons else f"its code builds no model that {reasons[0]}"

    def builds(self, model: Model, workload: Workload) -> SupportedModels | None:
        """Find the model code that trains a job's model; None if the user's model code runs."""
        if workload.adapted or self._mixing_reason(workload):
            return None
        for decoders in self.models:
            precise = workload.precision in decoders.precisions
            trains = precise and workload.optimizer in decoders.optimizers
            if trains and not decoders.lacks(model, workload.sequence_length):
                return decoders
        return None
