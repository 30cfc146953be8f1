"""Shard: apply a layout to a stage with torch's own DTensor, checkpointing and FSDP2."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.validate.sharding import adapter
from planner.validate.sharding.attention import OPERATOR as FLASH_ATTENTION
from planner.validate.sharding.attention import Core
from planner.validate.sharding.models import ExpertFeedForward, GroupedExperts, Stage

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Meshes:
    """Device meshes of one rank, with tp fastest, then the data axis, then pp."""

    data: DeviceMesh
    tensor: DeviceMesh | None
    pipeline: DeviceMesh | None
    context: DeviceMesh | None
    expert: DeviceMesh | None
    expert_data: DeviceMesh | None

    @classmethod
    def of(cls, layout: Layout) -> Meshes:
        """Meshes of a layout inside an initialised process group."""
        pp, dp, cp, tp, ep = layout.pp, layout.dp, layout.cp, layout.tp, layout.ep
        world = make_mesh("cpu", pp=pp, dp=dp * cp, tp=tp)
        shards = layout.dp_shard * cp or dp * cp
        replicas, shards = (dp * cp // shards, shards) if layout.shards_gradients else (1, dp * cp)
        data, expert, expert_data, context = world["dp"], None, None, None
        if replicas > 1:
            split = make_mesh("cpu", pp=pp, replicate=replicas, shard=shards, tp=tp)
            data = split["replicate", "shard"]
        if ep > 1:
            # as in torchtitan since 0.3: whole experts, spread over the ranks of tp too
            mesh = make_mesh("cpu", pp=pp, replicate=replicas, shard=shards * tp // ep, ep=ep)
            expert = mesh["ep"]
            expert_data = mesh["replicate", "shard"] if replicas > 1 else mesh["shard"]
        if cp > 1:
            context = make_mesh("cpu", pp=pp, dp=dp, cp=cp, tp=tp)["cp"]
        tensor, pipeline = world["tp"] if tp > 1 else None, world["pp"] if pp > 1 else None
        return cls(data, tensor, pipeline, context, expert, expert_data)


def make_mesh(device: str, **sizes: int) -> DeviceMesh:
    """Mesh of all ranks by the sizes of its axes, the last one fastest."""
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def compute_dtype(workload: Workload) -> torch.dtype:
    """Torch type of activations."""
    return _DTYPES.get(workload.precision, torch.bfloat16)


def apply(
    stage: Stage,
    layout: Layout,
    workload: Workload,
    meshes: Meshes,
    *,
    reduce: torch.dtype = torch.float32,
) -> None:
    """Apply a layout: split over tp, wrap for recompute, shard or replicate over the data axis."""
    if meshes.tensor is not None:
        has_experts = meshes.expert is not None
        tensor_parallel(stage, meshes.tensor, layout.sequence_parallel, whole_experts=has_experts)
    if meshes.context is not None:
        for module in stage.modules():
            if isinstance(module, Core):
                module.ring = meshes.context.get_group()
    if meshes.expert is not None:
        for experts in _experts(stage):
            experts.spread(meshes.expert.get_group())
    stage.tie()
    if layout.recompute != "none":
        _recompute(stage, layout)
    if layout.offload_activations:
        for name, layer in list(stage.layers.items()):
            stage.layers[name] = OffDevice(layer)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype(workload), reduce_dtype=reduce)
    if not layout.shards_states:
        _groups(stage, meshes, partial(replicate, mp_policy=policy), {}, {})
    else:
        shard = partial(fully_shard, mp_policy=policy)
        layers = {"reshard_after_forward": layout.reshard or layout.shards_weights}
        _groups(stage, meshes, shard, layers, {"reshard_after_forward": False})
    if meshes.expert is not None:
        _prefetch(stage)


def _experts(module: nn.Module) -> list[GroupedExperts]:
    return [part for part in module.modules() if isinstance(part, GroupedExperts)]


def _groups(
    stage: Stage,
    meshes: Meshes,
    shard: Callable[..., Any],
    layers: dict[str, Any],
    head: dict[str, Any],
) -> None:
    """Make torchtitan's FSDP groups: embedding, each layer, its spread experts, norm with head."""
    tied = stage.tied
    before, after = stage.ends()
    if tied and stage.ends_in_stream:
        # the head is called separately, and shares the group of the tied embedding
        shard([*before, *after], mesh=meshes.data, **head)
    if before and not tied:
        shard(before, mesh=meshes.data, **layers)
    for layer in stage.layers.values():
        places = {"shard_placement_fn": _places(layer, meshes)} if layers else {}
        shard(layer, mesh=meshes.data, **layers, **places)
    if after and not tied:
        # backward would gather it again at once, so it stays gathered
        shard(after, mesh=meshes.data, **head)
    # the rest (tied embedding, final norm) stays gathered from forward to backward
    shard(stage, mesh=meshes.data)


def _places(layer: nn.Module, meshes: Meshes) -> Callable[[nn.Parameter], Any]:
    """Choose placements: experts shard over their own mesh, inside each if fewer than ranks."""
    experts = {id(param) for part in _experts(layer) for param in part.parameters()}
    expert_mesh = meshes.expert_data
    mesh = meshes.data if expert_mesh is None else expert_mesh
    on_own = None if expert_mesh is None else adapter.shard_on_mesh(expert_mesh)

    def choose(param: nn.Parameter) -> Any:
        if id(param) not in experts:
            return None
        place = Shard(1 if param.shape[0] < mesh.size(-1) else 0)
        return place if on_own is None else on_own(place)

    return choose


def _prefetch(stage: Stage) -> None:
    """Prefetch the next FSDP group during compute, as torchtitan does with expert parallelism."""
    before, after = ([], []) if stage.tied else stage.ends()
    order: list[Any] = [*before[:1], *stage.layers.values(), *after[:1]]
    for group, following in itertools.pairwise(order):
        group.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([group])


def tensor_parallel(
    stage: Stage,
    mesh: DeviceMesh,
    sequence: bool,
    *,
    whole_logits: bool = False,
    whole_experts: bool = False,
) -> None:
    """Split as Megatron (arXiv:1909.08053): columns, then rows, one reduction per pair and pass."""
    stream = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {}
    if stage.first:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
        if sequence and stage.position is not None:
            plan["position"] = SequenceParallel(sequence_dim=0, use_local_output=True)
            stage.num_row_shards, stage.row_shard = mesh.size(), mesh.get_local_rank()
        if sequence and stage.embedding_norm is not None:
            plan["embedding_norm"] = SequenceParallel(use_local_output=True)
    if stage.head is not None:
        plan["head"] = ColwiseParallel(
            input_layouts=stream,
            output_layouts=Replicate() if whole_logits else Shard(-1),
            use_local_output=whole_logits,
        )
    if stage.norm is not None and sequence:
        plan["norm"] = SequenceParallel()
    parallelize_module(stage, mesh, plan)
    for layer in stage.layers.values():
        parallelize_module(layer, mesh, _layer_plan(layer, stream, sequence))
        _split_heads(layer, mesh)
        if isinstance(layer.ffn, ExpertFeedForward):
            _split_experts(layer.ffn, mesh, whole_experts)


def _split_experts(ffn: ExpertFeedForward, mesh: DeviceMesh, whole_experts: bool) -> None:
    """Replicate the router; split experts by columns of the first products, rows of the last."""
    for name, linear in ffn.named_children():
        for part, _ in list(linear.named_parameters()) if name in ("router", "shared_gate") else []:
            _distribute(linear, part, mesh, Replicate())
    if whole_experts:
        ffn.part, ffn.num_parts = mesh.get_local_rank(), mesh.size()
        return
    last = {"down": Shard(2), "down_bias": Replicate()}
    for name, _ in list(ffn.experts.named_parameters()):
        _distribute(ffn.experts, name, mesh, last.get(name, Shard(1)))
    ffn.experts.num_splits = mesh.size()


def _split_heads(layer: nn.Module, mesh: DeviceMesh) -> None:
    attention = layer.attention
    assert isinstance(attention, Core)
    attention.head_shard = mesh.get_local_rank()
    if hasattr(attention, "sinks"):
        _distribute(attention, "sinks", mesh, Shard(0))


def _distribute(owner: nn.Module, name: str, mesh: DeviceMesh, place: Any) -> None:
    parameter = owner.get_parameter(name)
    owner.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [place])))


def _layer_plan(layer: nn.Module, stream: Any, sequence: bool) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(stream, None), desired_input_layouts=(Replicate(), None)
        ),
        "ffn": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate()),
        "attention.wo": RowwiseParallel(output_layouts=stream),
        "ffn.down": RowwiseParallel(output_layouts=stream),
    }
    for name in ("attention.wq", "attention.wk", "attention.wv", "ffn.gate", "ffn.up"):
        plan[name] = plan[name.replace("ffn.", "ffn.shared.")] = ColwiseParallel()
    # added to the routed experts' output before the reduction
    plan["ffn.shared.down"] = RowwiseParallel(output_layouts=Partial())
    if sequence:
        plan["attention_norm"] = plan["ffn_norm"] = SequenceParallel()
        for name in ("attention_post_norm", "ffn_post_norm"):
            plan[name] = SequenceParallel(use_local_output=True)
    for name in ("attention.q_norm", "attention.k_norm"):
        plan[name] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if isinstance(layer.ffn, ExpertFeedForward):
        plan["ffn"] = PrepareModuleInputOutput(
            input_layouts=stream,
            desired_input_layouts=Replicate(),
            output_layouts=Partial(),
            desired_output_layouts=stream,
        )
    present = {name for name, _ in layer.named_modules()}
    return {name: style for name, style in plan.items() if name in present}


def _selective() -> Any:
    """Make torchtitan's policy: save attention, communication, every second matrix product."""
    aten, functional = torch.ops.aten, torch.ops._c10d_functional
    num_products = {False: 0, True: 0}
    saved_operators = {
        aten.mm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        FLASH_ATTENTION,
        functional.reduce_scatter_tensor.default,
        functional.all_to_all_single.default,
        aten.max.default,
    }

    def policy(context: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        saves = func in saved_operators
        if func == aten.mm.default:
            num_products[context.is_recompute] += 1
            saves = num_products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _recompute(stage: Stage, layout: Layout) -> None:
    # torchtitan recomputes a layer to its end
    settings: dict[str, Any] = {"preserve_rng_state": False, "early_stop": False}
    for number, (name, layer) in enumerate(list(stage.layers.items()), 1):
        if number % layout.recompute_every or number > (layout.recompute_layers or number):
            continue
        if layout.recompute_modules:
            part = layer.get_submodule("ffn")
            layer.register_module("ffn", checkpoint_wrapper(part, **settings))
        elif layout.recompute == "full":
            stage.layers[name] = checkpoint_wrapper(layer, **settings)
        else:
            stage.layers[name] = checkpoint_wrapper(layer, context_fn=_selective, **settings)


class OffDevice(nn.Module):
    """Layer whose saved activations are offloaded until backward: only their shapes stay."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        """Run the layer with offload of its saved tensors."""
        with torch.autograd.graph.saved_tensors_hooks(self._down, self._up):
            return self.layer(*inputs)

    def _down(self, saved: torch.Tensor) -> Any:
        storage_id = saved.untyped_storage()._cdata
        # weights stay on the device; torch's own `save_on_cpu` would offload them too
        if any(param.untyped_storage()._cdata == storage_id for param in self.parameters()):
            return saved
        return saved.size(), saved.stride(), saved.dtype

    @staticmethod
    def _up(offloaded: Any) -> torch.Tensor:
        if isinstance(offloaded, torch.Tensor):
            return offloaded
        size, stride, dtype = offloaded
        return torch.empty_strided(size, stride, dtype=dtype)
