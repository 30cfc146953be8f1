"""Limits: the models and layouts that a trace covers."""

import itertools
from collections.abc import Iterator

from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.errors import DescriptionError, LayoutError


def load_transformer(name: str) -> Model:
    """Load a transformer by name. Raises DescriptionError for other kinds of models."""
    model = load_model(name)
    if model.kind in ("convolutional", "traced"):
        raise DescriptionError(
            f"{model.name} is {model.kind}: validation can only build transformers; choose a "
            "transformer"
        )
    return model


def check_traceable(scenario: Scenario, layout: Layout, stage: int) -> None:
    """Raise LayoutError with the first reason why a stage cannot be traced."""
    wrong = itertools.chain(
        _wrong_context(scenario, layout),
        _wrong_experts(scenario, layout),
        _wrong_recompute(layout),
        _wrong_optimizer(scenario, layout),
        _wrong_adapters(scenario, layout),
        _wrong_chunks(scenario, layout),
        _wrong_model(scenario, layout),
    )
    if message := next(wrong, ""):
        raise LayoutError(message)
    if not 0 <= stage < layout.pp:
        raise LayoutError(f"stage = {stage} must be below pp = {layout.pp}")


def _wrong_context(scenario: Scenario, layout: Layout) -> Iterator[str]:
    framework, workload, model = scenario.framework.family, scenario.workload, scenario.model
    special = model.latent_attention is not None or model.attention_sinks
    rings = model.kind == "decoder" and not special and model.position != "alibi"
    if framework != "fsdp2":
        yield f"framework {framework} is not traced; use fsdp2"
    if layout.cp > 1 and (not rings or workload.attention != "flash"):
        yield (
            f"cp = {layout.cp} is traced only with causal fused attention, without sinks, ALiBi "
            "or latent projections; use cp = 1"
        )
    if layout.cp > 1 and layout.recompute == "selective":
        yield "selective recompute is not traced with context parallelism; use none or full"
    if workload.sequence_length % (2 * layout.cp) > 0 and layout.cp > 1:
        yield (
            f"sequence_length = {workload.sequence_length} must be a multiple of 2 cp = "
            f"{2 * layout.cp}: each rank has an early and a late piece"
        )


def _wrong_optimizer(scenario: Scenario, layout: Layout) -> Iterator[str]:
    optimizer = scenario.workload.optimizer
    if layout.offload != "none":
        yield f"offload {layout.offload} is not traced; use none"
    if optimizer not in ("adamw", "adam-8bit"):
        yield f"optimizer {optimizer} is not traced; use adamw or adam-8bit"
    if scenario.framework.kernels.optimizer_in_backward and layout.grad_accumulation > 1:
        yield (
            f"grad_accumulation = {layout.grad_accumulation} is not traced with an optimizer in "
            "backward, which needs 1"
        )


def _wrong_model(scenario: Scenario, layout: Layout) -> Iterator[str]:
    model, workload = scenario.model, scenario.workload
    dropout = model.dropout if workload.dropout is None else workload.dropout
    if workload.precision == "fp8":
        yield "fp8 products are not traced; use bf16"
    if dropout > 0:
        yield f"dropout = {dropout:g} is not traced; use a workload with dropout 0"
    if layout.tp > 1 and (model.latent_attention is not None or model.qk_norm == "full"):
        yield (
            f"tp = {layout.tp} is not traced with latent attention and norms over all heads, "
            "whose sharding torch leaves to each program; use tp = 1"
        )
    if layout.sequence_parallel and layout.tp > 1 and (model.pooler or model.head_transform):
        yield (
            "sequence parallelism is not traced with a pooler or a head's own layer; leave it out"
        )


def _wrong_recompute(layout: Layout) -> Iterator[str]:
    modules, model_parallel = layout.recompute_modules, layout.tp * layout.pp * layout.cp > 1
    if layout.recompute_span > 1:
        yield f"recompute_span = {layout.recompute_span} is not traced; use 1"
    if modules not in ((), ("mlp",), ("moe",)):
        yield f"recompute of {'+'.join(modules)} is not traced; use mlp or moe"
    if model_parallel and (bool(modules) or layout.offload_activations):
        yield "modules and offload of activations are not traced with tp, pp or cp; set each to 1"


def _wrong_chunks(scenario: Scenario, layout: Layout) -> Iterator[str]:
    pieces, model = scenario.framework.kernels.loss_chunks, scenario.model
    if pieces == 1:
        return
    if layout.tp * layout.pp * layout.cp * layout.ep > 1 or scenario.workload.adapted:
        yield (
            f"a loss in {pieces} pieces is not traced with tp, pp, cp, ep or adapters; use only dp"
        )
    if not layout.shards_states:
        yield (
            f"a loss in {pieces} pieces is not traced with zero_stage = 0, for which torch "
            "cannot keep the head's weights separate; use 1, 2 or 3"
        )
    if not model.output_head or model.head_transform or bool(model.logits_softcap):
        yield (
            f"a loss in {pieces} pieces is traced only for plain logits; use a model with a head "
            "and without soft caps"
        )


def _wrong_adapters(scenario: Scenario, layout: Layout) -> Iterator[str]:
    workload, model = scenario.workload, scenario.model
    if not workload.adapted:
        return
    if layout.tp * layout.pp * layout.cp * layout.ep > 1:
        yield f"{layout} is not traced with adapters and frozen parts; use only dp"
    if model.experts is not None or model.latent_attention is not None:
        yield "adapters are not traced with experts or latent projections; use a dense model"
    if model.tied_embeddings and model.output_head:
        yield (
            f"frozen parts of {model.name}, whose embedding and head are one tensor, are not "
            "traced; use a model with two tensors"
        )
    if workload.lora_dropout > 0:
        yield f"lora_dropout = {workload.lora_dropout:g} is not traced; use 0"
    if workload.base_format not in ("computed", "nf4"):
        yield f"base_format = {workload.base_format} is not traced; use computed or nf4"
    if workload.base_format == "nf4" and workload.compute_bytes != 2:
        yield "a 4-bit base is traced only with 16-bit products; use bf16"


def _wrong_experts(scenario: Scenario, layout: Layout) -> Iterator[str]:
    if layout.ep == 1:
        return
    experts = scenario.model.experts
    count, top_k = (experts.num_experts, experts.top_k) if experts else (0, 0)
    shards = (layout.dp_shard or layout.dp) * layout.cp
    rows = layout.micro_batch * scenario.workload.sequence_length // layout.cp // layout.tp
    if not count:
        yield f"ep = {layout.ep}: {scenario.model.name} has no experts; use ep = 1"
    if not layout.shards_states:
        yield (
            f"ep = {layout.ep} is not traced with zero_stage = 0, for which FSDP2 has no second "
            "mesh; use 1, 2 or 3"
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield (
            f"ep = {layout.ep} with tp = {layout.tp} is traced only with sequence parallelism; "
            "switch it on"
        )
    if count % layout.ep > 0 or shards * layout.tp % layout.ep > 0:
        yield (
            f"ep = {layout.ep} must divide num_experts = {count} and the {shards * layout.tp} "
            "ranks that shard, those of tp included; change it"
        )
    if bool(count) and rows * top_k % count > 0:
        yield (
            f"{rows} tokens of a rank times {top_k} do not spread evenly over {count} experts, "
            "which traces require; change the sequence or micro-batch"
        )
