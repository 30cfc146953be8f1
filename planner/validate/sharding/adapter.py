"""Adapter: the private or unstable torch calls of validation, each guarded."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any
from unittest import mock

from planner.errors import PlannerError

_OLDEST = (2, 9)
_TRIED = "2.13"


class TorchMissingError(PlannerError):
    """torch is not installed, or this version cannot be used for validation."""


def require_torch() -> str:
    """Return the version of torch. Raises TorchMissingError if it is not installed or too old."""
    try:
        import torch
    except ImportError as error:
        raise TorchMissingError(
            "validation and traced modules need torch, which is not installed; run "
            "pip install 'parallelism-planner[torch]'"
        ) from error
    version = str(torch.__version__)
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < _OLDEST:
        raise TorchMissingError(
            f"validation and traced modules need torch 2.9 or later (tried with {_TRIED}), found "
            f"{version}; run pip install --upgrade torch"
        )
    return version


def _private(path: str) -> Any:
    """Import a private name of torch. Raises TorchMissingError if it moved."""
    import importlib

    module, name = path.rsplit(".", 1)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _moved(path) from error


def _moved(path: str) -> TorchMissingError:
    import torch

    return TorchMissingError(
        f"torch {torch.__version__} has no {path}, which validation needs; "
        f"install torch {_TRIED} or adapt planner/validate/sharding/adapter.py"
    )


@contextlib.contextmanager
def fake_world(rank: int, world: int) -> Iterator[None]:
    """Open a fake process group of `world` ranks: only `rank` exists, collectives do nothing."""
    import torch.distributed as dist

    store = _private("torch.testing._internal.distributed.fake_pg.FakeStore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    dist.init_process_group("fake", store=store(), rank=rank, world_size=world)
    # cached shardings hold the groups of the world in which they were made
    forget = _private("torch.distributed.tensor.debug._clear_sharding_prop_cache")
    try:
        yield
    finally:
        dist.destroy_process_group()
        forget()


@contextlib.contextmanager
def fake_mode() -> Iterator[None]:
    """Make tensors without data: shapes, strides and bytes are exact."""
    mode = _private("torch._subclasses.fake_tensor.FakeTensorMode")
    with mode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a private class. Raises TorchMissingError if one moved."""
    for name in attributes:
        if not hasattr(owner, name):
            raise _moved(f"{owner.__module__}.{owner.__qualname__}.{name}")
    with mock.patch.multiple(owner, **attributes):
        yield


def quiet_propagation() -> AbstractContextManager[None]:
    """Keep DTensor's shape propagation out of the trace: it makes tensors of global shape."""
    disable = _private("torch.utils._python_dispatch._disable_current_modes")

    class Guard(list[Any]):
        def __enter__(self) -> None:
            self.append(disable())
            self[-1].__enter__()

        def __exit__(self, *exception: Any) -> None:
            self.pop().__exit__(*exception)

    propagator = _private("torch.distributed.tensor._sharding_prop.ShardingPropagator")
    return _replaced(propagator, _fake_mode_lock=Guard())


def static_pipeline() -> AbstractContextManager[None]:
    """Make pipeline stages use their example shapes: asking a neighbour would need real data."""
    static = _private("torch.distributed.pipelining._utils.InferenceMode").STATIC

    def warmup(_: Any, stages: Any, *__: Any) -> None:
        for stage in stages:
            stage._inference_mode = static

    schedule = _private("torch.distributed.pipelining.schedules._PipelineSchedule")
    return _replaced(schedule, _warmup_p2p=warmup)


def receive_buffers(stage: Any) -> list[Any]:
    """Receive buffers of a pipeline stage: all micro-batches, both directions."""
    try:
        infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
        return [
            info.buffer for stage_infos in infos for info in stage_infos if info.buffer is not None
        ]
    except AttributeError as error:
        raise _moved(f"PipelineStage.{error.name}") from error


class Region(Enum):
    """Kind of FSDP communication that allocates a storage; its value is the storage's category."""

    GATHER = "gathered_parameters"
    REDUCE = "reduction_buffers"


def communication_region(enter: Any) -> AbstractContextManager[None]:
    """Call `enter(region, group)` around FSDP's all-gather, copy-out and reduction of a group."""
    group = _private("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup")

    def wrapped(name: str, region: Region) -> Any:
        original = getattr(group, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with enter(region, self):
                return original(self, *args, **kwargs)

        return call

    regions = dict.fromkeys(("unshard", "wait_for_unshard"), Region.GATHER)
    regions["post_backward"] = Region.REDUCE
    return _replaced(group, **{name: wrapped(name, region) for name, region in regions.items()})


def group_ranks(handle: Any) -> tuple[int, ...]:
    """Global ranks of a collective's process group."""
    import torch
    import torch.distributed as dist

    resolve = _private("torch.distributed.distributed_c10d._resolve_process_group")
    if isinstance(handle, str):
        handle = resolve(handle)
    elif isinstance(handle, torch.ScriptObject):
        handle = dist.ProcessGroup.unbox(handle)
    return tuple(dist.get_process_group_ranks(handle))


def shard_on_mesh(mesh: Any) -> Callable[[Any], Any]:
    """Make placements by which FSDP shards parameters over a mesh other than their module's."""
    result = _private("torch.distributed.fsdp._fully_shard._fsdp_common.ShardPlacementResult")
    # all parameters of a group must share one object
    about = _private("torch.distributed.fsdp._fully_shard._fsdp_init._get_mesh_info")(mesh)
    return lambda placement: result(placement=placement, mesh_info=about)


def exchange_counts(counts: Any, group: Any) -> Any:
    """Exchange token counts by an all-to-all of equal parts, without gradients."""
    import torch

    exchange = _private("torch.distributed._functional_collectives.all_to_all_single")
    with torch.no_grad():
        return exchange(counts, None, None, group=group)


def all_to_all(rows: Any, group: Any) -> Any:
    """Exchange rows by a differentiable all-to-all of equal parts."""
    import torch.distributed as dist

    exchange = _private("torch.distributed._functional_collectives.all_to_all_single_autograd")
    ranks = dist.get_world_size(group)
    parts = [len(rows) // ranks] * ranks
    return exchange(rows, parts, parts, group)


def ring_templates() -> tuple[Any, Any]:
    """Return torch's ring attention, forward and backward, which take a kernel as argument."""
    ring = _private("torch.distributed.tensor.experimental._context_parallel._attention")
    return ring._templated_ring_attention, ring._templated_ring_attention_backward


def unsharded_gradients(group: Any) -> list[Any]:
    """Unsharded gradients that an FSDP group is about to reduce."""
    params = [getattr(param, "_unsharded_param", None) for param in group.fsdp_params]
    gradients = [param.grad for param in params if param is not None and param.grad is not None]
    return gradients + [
        param.unsharded_accumulated_grad
        for param in group.fsdp_params
        if param.unsharded_accumulated_grad is not None
    ]
