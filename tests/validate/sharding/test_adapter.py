"""Adapter: every private name of torch that validation uses is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from planner.validate.sharding import adapter

pytest.importorskip("torch")

PRIVATE: dict[str, tuple[str, ...]] = {
    "torch.distributed._functional_collectives.AsyncCollectiveTensor": (),
    "torch._subclasses.fake_tensor.FakeTensorMode": (),
    "torch.distributed._composable.replicate_with_fsdp.replicate": (),
    "torch.distributed._functional_collectives.all_to_all_single": (),
    "torch.distributed._functional_collectives.all_to_all_single_autograd": (),
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper": (),
    "torch.distributed.distributed_c10d._resolve_process_group": (),
    "torch.distributed.fsdp._fully_shard._fsdp_common.ShardPlacementResult": (),
    "torch.distributed.fsdp._fully_shard._fsdp_init._get_mesh_info": (),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup": (
        "unshard",
        "wait_for_unshard",
        "post_backward",
    ),
    "torch.distributed.pipelining._utils.InferenceMode": ("STATIC",),
    "torch.distributed.pipelining.schedules._PipelineSchedule": ("_warmup_p2p",),
    "torch.distributed.tensor._sharding_prop.ShardingPropagator": ("_fake_mode_lock",),
    "torch.distributed.tensor.debug._clear_sharding_prop_cache": (),
    "torch.distributed.tensor.experimental._context_parallel._attention": (
        "_templated_ring_attention",
        "_templated_ring_attention_backward",
    ),
    "torch.testing._internal.distributed.fake_pg.FakeStore": (),
    "torch.utils._python_dispatch.TorchDispatchMode": (),
    "torch.utils._python_dispatch._disable_current_modes": (),
    "torch.utils._pytree.tree_iter": (),
}
"""Private names of torch, and what is replaced or read of each."""


def missing_names(private: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Names that the installed torch lacks."""
    missing = []
    for path, attributes in private.items():
        try:
            attribute = adapter._private(path)
        except adapter.TorchMissingError:
            missing.append(path)
            continue
        missing += [f"{path}.{name}" for name in attributes if not hasattr(attribute, name)]
    return tuple(missing)


def _private_names() -> set[str]:
    """Names of torch in the package that are private or lie in a private module."""
    found: set[str] = set()
    for path in Path(adapter.__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'_private\(\s*"([^"]+)"', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name for name in names if "._" in name}
    return found


def test_torch_has_every_private_name() -> None:
    """Fails with the names that a torch release has moved."""
    assert missing_names(PRIVATE) == ()
    assert _private_names() == set(PRIVATE)


def test_a_moved_name_is_named() -> None:
    private = {"torch.nn.Module": ("_gone",), "torch._no.such": ()}
    assert missing_names(private) == ("torch.nn.Module._gone", "torch._no.such")
    with pytest.raises(adapter.TorchMissingError, match=r"has no torch\._no\.such"):
        adapter._private("torch._no.such")
