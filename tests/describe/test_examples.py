"""Examples of small functions of the descriptions, each with its answer."""

from __future__ import annotations

from typing import Any

import pytest

from planner.describe import base, files, layout
from planner.describe.configurations import shell
from planner.describe.configurations.configuration import _without_own
from planner.describe.configurations.document import Table
from planner.describe.configurations.readers import deepspeed, megatron
from planner.describe.configurations.stated_job import _switches_in, split_fields
from planner.describe.framework.switches import merge_tables, split_name, strip_switches
from planner.describe.model.convolutional import Convolution, Pool
from planner.describe.model.huggingface import config_fields, hub
from planner.describe.model.traced_file import TracedOperation, is_python_file
from planner.describe.workload import documents

_SCRIPT = """TP=2
ARGS="--tensor-model-parallel-size ${TP} --bf16"
torchrun --nproc_per_node $((2 * TP)) pretrain_gpt.py $ARGS --seq-length=$LENGTH"""
_HYDRA = 'python3 -m wordplay data=owt model.n_layer=24 "model.batch_size=${MB:-2}"'

_EXAMPLES: list[tuple[Any, Any]] = [
    ([shell._arithmetic(text) for text in ("8 * 40", "2 ** 999", "1 / 0")], [320, None, None]),
    (
        list(shell._statements("a=1; b  # no\nc && d")),
        [("a=1", ";"), ("b", "\n"), ("c", "&&"), ("d", "")],
    ),
    (shell._cut('torchrun $ARGS "a b" x=( 1 2 )'), ["torchrun", "$ARGS", '"a b"', "x=( 1 2 )"]),
    (shell.options_of(_SCRIPT)["nproc-per-node"], "4"),
    (shell.options_of(_SCRIPT)["bf16"], True),
    (shell.options_of(_SCRIPT)["seq-length"], "$LENGTH"),
    (shell.settings_of(_HYDRA), {"model": {"n_layer": "24", "batch_size": "2"}}),
    (split_fields([8, 8, 8, 8]), {}),
    (split_fields([7, 8, 8, 7]), {"embedding_slots": 1, "head_slots": 1}),
    (split_fields([8, 9, 8, 7], usual=(1, 1)), {}),
    (split_fields([5, 9, 9, 9]), {"split": "5,9*3"}),
    (
        list(
            _switches_in(
                "megatron-lm", Table({"tp-comm-overlap": True, "cuda-graph-impl": "none"}, "job.sh")
            )
        ),
        ["tp-comm-overlap"],
    ),
    (
        list(_without_own(["fp32-gradients", "bf16-states"], "deepspeed", "megatron-deepspeed")),
        ["bf16-states"],
    ),
    (
        [deepspeed.offload_of(*places) for places in (("cpu", "none"), ("nvme", "cpu"))],
        ["optimizer-cpu", "all-cpu"],
    ),
    (
        [megatron._layers_of(stage) for stage in ("Et*3", "tt", "t,tL", "m", "")],
        [3, 2, 2, 0, 0],
    ),
    (megatron._stages_of("Et*2|t*2|t*1L"), ["Et*2", "t*2", "t*1L"]),
    (len(megatron._stages_of("Et|(tt|)*6t,L")), 8),
    (base.quote(10**300), "1e+300"),
    (base.quote(10**5000), "a number of thousands of digits"),
    (base.field_docs(base.Quantity)["value"], "The number in SI units."),
    (files.has_endless_keys("a.b = 1"), False),
    (files.has_endless_keys("x = { " + "a . " * 70 + "b = 1 }"), True),
    (layout.parse_split("7, 8*3, 0"), (7, 8, 8, 8, 0)),
    (layout.format_split([7, 8, 8, 8, 0]), "7,8*3,0"),
    (layout.divisors(12), [1, 2, 3, 4, 6, 12]),
    (
        layout.Layout(recompute="full", recompute_layers=3).recomputed,
        "full recompute of 3 layers",
    ),
    (
        split_name("fsdp2+compile+bucket=5e7"),
        ("fsdp2", ("compile", "bucket=5e7")),
    ),
    (split_name("my+own.toml+compile"), ("my+own.toml", ("compile",))),
    (
        split_name("deepspeed+bucket=2e+08+no-overlap"),
        ("deepspeed", ("bucket=2e+08", "no-overlap")),
    ),
    (strip_switches("megatron-lm with blocking launches"), "megatron-lm"),
    (
        merge_tables({"code": {"a": 1, "b": 2}, "tp": 1}, {"code": {"b": 3}}),
        {"code": {"a": 1, "b": 3}, "tp": 1},
    ),
    (Pool(kernel=(3,), stride=(2,), padding=1).after((112, 112)), (56, 56)),
    (Convolution(out_channels=64, kernel=(7,), stride=(2,)).after((224, 224)), (112, 112)),
    (
        Convolution(out_channels=64, kernel=(2,), stride=(2,), transposed=True).after((8, 8, 8)),
        (16, 16, 16),
    ),
    (  # torch: (edge - 1) * stride - 2 * padding + kernel
        Convolution(out_channels=8, kernel=(4,), stride=(2,), padding=1, transposed=True).after(
            (8,)
        ),
        (16,),
    ),
    (
        [config_fields.quote(value) for value in ("x", None, [1, 2], 10**30)],
        ['"x"', "null", "a list", "a number of more than 18 digits"],
    ),
    (
        [
            config_fields.parse_activation(name)
            for name in ("gelu_pytorch_tanh", "swish", "relu2", "tanh")
        ],
        ["gelu", "silu", "squared-relu", ""],
    ),
    (
        [hub.parse_hub_name(name) for name in ("org/name@v1.0", "org/name", "./name", "a/b/c")],
        [("org/name", "v1.0"), ("org/name", None), None, None],
    ),
    ([is_python_file(name) for name in ("./nets/net.py", "gpt2")], [True, False]),
    (TracedOperation(kind="product", rows=10, n=3, k=4, count=2).flop, 480),
    (documents.parse_documents("100, 2k"), (100, 2000)),
]


@pytest.mark.parametrize(("answer", "expected"), _EXAMPLES)
def test_example(answer: Any, expected: Any) -> None:
    assert answer == expected
