"""Convolutions: parameters, operations and kept bytes against torch, sizes against papers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch builds the reference networks")

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import model_flop
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.block_time import block_time
from planner.describe.catalogue import load_framework, load_model
from planner.describe.layout import Layout
from planner.describe.model.block import Block, Gemm
from planner.describe.model.convolutional import Convolution, Convolutional, ConvStage
from planner.errors import DescriptionError
from tests import descriptions
from tests.cost.operators import networks

scenario = functools.partial(
    descriptions.scenario,
    framework="ddp",
    sequence_length=1,
    global_batch=1,
    precision="fp32",
    optimizer="sgd-momentum",
)

BUILT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet-50": (lambda: networks.resnet(late=True), (3, 224, 224)),
    "resnet-50-v1": (lambda: networks.resnet(late=False), (3, 224, 224)),
    "unet3d-mlperf": (networks.UNet, (1, 128, 128, 128)),
    "cosmoflow": (networks.cosmoflow, (4, 128, 128, 128)),
}


def built(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The network on the meta device, and one sample."""
    make, shape = BUILT[name]
    with torch.device("meta"):
        return make(), torch.empty(1, *shape)


@pytest.mark.parametrize("name", BUILT)
def test_parameters_are_those_of_torch(name: str) -> None:
    module, _ = built(name)
    assert load_model(name).num_params == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", BUILT)
def test_operations_are_those_of_torch(name: str) -> None:
    """Forward and backward; torch counts no gradient of the samples either."""
    module, sample = built(name)
    with FlopCounterMode(display=False) as counted:
        module(sample).sum().backward()
    q = scenario(name)
    assert float(model_flop(blocks_of(q), q.workload)) == counted.get_total_flops()


def test_resnet_takes_what_its_paper_says() -> None:
    # He et al. 2015, arXiv:1512.03385, table 1: 3.8e9 multiply-adds (v1); torchvision: 4.09 (v1.5)
    for name, expected in (("resnet-50-v1", 3.8e9), ("resnet-50", 4.089e9)):
        products = [(b.count, g) for b in blocks_of(scenario(name)) for g in b.gemms]
        found = sum(n * g.rows * g.n * g.k for n, g in products)
        assert found == pytest.approx(expected, rel=0.02)


def _kept_by_torch(module: nn.Module, sample: torch.Tensor) -> int:
    """Bytes of distinct tensors that autograd keeps, parameters and buffers left out."""
    own = {p.untyped_storage()._cdata for p in (*module.parameters(), *module.buffers())}
    seen: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in own:
            seen[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = module(sample)
    assert found.grad_fn is not None
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize("name", BUILT)
def test_what_is_kept_of_a_sample_is_what_autograd_keeps(name: str) -> None:
    """In fp32, so that nothing is converted; statistics of norms and the loss are left out."""
    module, sample = built(name)
    blocks = blocks_of(scenario(name))
    kept = sum(
        block.count * item.bytes_per_token
        for block in blocks
        for item in block.saved
        if item.name != "loss.kept"
    )
    assert kept == pytest.approx(_kept_by_torch(module, sample), rel=0.003)


def test_sizes_go_through_strides_pools_and_joins() -> None:
    def shapes(name: str) -> list[tuple[int, ...]]:
        net = load_model(name).convolutional
        assert net is not None
        return [(stage.out_channels, *stage.out_places) for stage in net.sized_stages()]

    assert shapes("resnet-50")[-1] == (2048, 7, 7)
    assert shapes("cosmoflow")[-1] == (512, 4, 4, 4)
    assert shapes("unet3d-mlperf")[5] == (320, 4, 4, 4)
    assert shapes("unet3d-mlperf")[-1] == (3, 128, 128, 128)


@pytest.mark.parametrize(
    ("fields", "layer"),
    [
        ({"kernel": (3, 5), "stride": (1, 2)}, {"kernel_size": (3, 5), "stride": (1, 2)}),
        ({"kernel": 3, "groups": 8}, {"kernel_size": 3, "groups": 8}),
        ({"kernel": 3, "dilation": 2}, {"kernel_size": 3, "dilation": 2}),
        ({"kernel": 4, "stride": 2, "padding": 1}, {"kernel_size": 4, "stride": 2, "padding": 1}),
    ],
)
def test_one_convolution_is_torch_s(fields: dict[str, Any], layer: dict[str, Any]) -> None:
    """Anisotropic, grouped and dilated kernels, of 16 channels of 30 x 40 places."""
    first = ConvStage(name="first", convolutions=(Convolution(out_channels=16, kernel=1),))
    stage = ConvStage(name="one", convolutions=(Convolution(out_channels=24, **fields),))
    net = Convolutional(dimensions=2, in_channels=16, size=(30, 40), stages=(first, stage))
    model = load_model("resnet-50").replaced(convolutional=net.model_dump())
    gemm = blocks_of(scenario(model))[1].gemms[0]
    padding = layer.pop("padding", None)
    if padding is None:
        edges = layer["kernel_size"]
        edges = edges if isinstance(edges, tuple) else (edges, edges)
        padding = tuple((edge - 1) // 2 * layer.get("dilation", 1) for edge in edges)
    module = nn.Conv2d(16, 24, padding=padding, bias=False, device="meta", **layer)
    with FlopCounterMode(display=False) as counted:
        out = module(torch.empty(1, 16, 30, 40, device="meta"))
    assert list(net.sized_stages())[1].out_places == tuple(out.shape[2:])
    assert 2 * gemm.rows * gemm.n * gemm.k == counted.get_total_flops()
    groups = fields.get("groups", 1)
    assert groups * gemm.n * gemm.k == sum(p.numel() for p in module.parameters())


def test_a_join_that_is_not_there_is_refused() -> None:
    stages = [{"name": n, "convolutions": [{"out_channels": 8, "kernel": 3}]} for n in "ab"]
    stages[1]["joins"] = "c"
    fields = {"dimensions": 2, "in_channels": 3, "size": 32, "stages": stages}
    with pytest.raises(DescriptionError, match="joins = 'c' of stage 'b' is not a stage before it"):
        Convolutional.described(fields)


def test_blocks_that_change_the_shape_are_not_repeated() -> None:
    stage = {"name": "a", "convolutions": [{"out_channels": 8, "kernel": 3}], "count": 2}
    fields = {"dimensions": 2, "in_channels": 3, "size": 32, "stages": [stage, stage]}
    with pytest.raises(DescriptionError, match="count = 2 of stage 'a'"):
        Convolutional.described(fields)


def test_a_picture_too_small_for_its_kernels_is_refused() -> None:
    net = load_model("resnet-50").convolutional
    assert net is not None
    with pytest.raises(DescriptionError, match="does not fit its input of 4; use larger samples"):
        Convolutional.described(
            {
                "dimensions": 2,
                "in_channels": 3,
                "size": 4,
                "stages": [
                    {
                        "name": name,
                        "convolutions": [{"out_channels": 8, "kernel": 7, "padding": 0}],
                    }
                    for name in ("a", "b")
                ],
            }
        )


def seconds(block: Block, **asked: Any) -> float:
    """Forward and backward of a block for 64 samples."""
    time = block_time(scenario(**asked), block, Layouts.of(Layout(micro_batch=64)))
    return float(time.forward_s + time.backward_s)


def test_channels_last_spares_turns_on_matrix_units_alone() -> None:
    plain, last = load_framework("ddp"), load_framework("ddp").with_switches("channels-last")

    def gained(precision: str) -> float:
        each = []
        for framework in (plain, last):
            asked: dict[str, Any] = {"framework": framework, "precision": precision}
            block = blocks_of(scenario("resnet-50", **asked))[1]
            each.append(seconds(block, model="resnet-50", **asked))
        return each[0] - each[1]

    q = scenario("resnet-50")
    rate = q.machine.device.memory_bytes_per_s.value * q.machine.device.memory_efficiency.value
    convs = next(stage for stage in q.model.convolutional.sized_stages() if stage.stage.residual)  # type: ignore[union-attr]
    elements = sum(conv.inputs + conv.outputs for conv in convs.convolutions)
    # three products, each of which turns operands and result: read and written
    assert gained("bf16") == pytest.approx(64 * 3 * 2 * 2 * elements / rate)
    assert gained("fp32") == 0


def test_winograd_is_for_small_kernels_on_vector_units() -> None:
    # Lavin and Gray 2015, arXiv:1509.09308, section 4.1: 16 multiplications for 36
    marked = {g.name for b in blocks_of(scenario("resnet-50")) for g in b.gemms if g.small_kernel}
    assert marked == {
        f"conv{n} {which}.2" for n in (2, 3, 4, 5) for which in ("first", "others")
    } - {f"conv{n} first.2" for n in (3, 4, 5)}
    plain = Gemm("wide", 2048, 9 * 2048, rows=1024, convolution=True)
    small = Block("one", "layer", 1, (), gemms=(replace(plain, small_kernel=True),))
    for precision, ratio in (("fp32", 16 / 36), ("tf32", 1.0)):
        asked = {"precision": precision, "machine": "dgx-a100"}
        found = seconds(small, **asked) / seconds(replace(small, gemms=(plain,)), **asked)
        assert found == pytest.approx(ratio)


def test_starts_of_tiles_of_convolutions_are_hidden() -> None:
    """Short products of many places: the start of a tile costs a plain product, no convolution."""
    shape: dict[str, Any] = {"n": 2048, "k": 64, "rows": 3136}
    plain, conv = (
        seconds(Block("one", "layer", 1, (), gemms=(Gemm("g", **shape, convolution=convolution),)))
        for convolution in (False, True)
    )
    assert math.isclose(conv, plain * 64 / (64 + 96), rel_tol=0.25)
    assert conv < plain


def test_no_convolution_computes_in_fp8() -> None:
    gemms = [gemm for block in blocks_of(scenario("resnet-50")) for gemm in block.gemms]
    assert {gemm.quantizable for gemm in gemms if gemm.convolution} == {False}
