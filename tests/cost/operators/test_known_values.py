"""Known values of functions of `planner.cost.operators`."""

from __future__ import annotations

from planner.cost.operators.adapters import stored_bytes
from planner.cost.operators.attention import attention
from planner.cost.operators.backward import after_ffn, kept_selectively, repeating, working
from planner.cost.operators.blocks import blocks, blocks_of
from planner.cost.operators.convolutions import stages
from planner.cost.operators.custom_module import traced_blocks
from planner.cost.operators.feed_forward import dense, routed
from planner.cost.operators.operations import attention_flop, model_flop, sequence_flop
from planner.cost.operators.sizes import Sizes
from planner.describe.catalogue import load_framework, load_model
from planner.describe.model.block import Attention
from planner.describe.model.model import Model
from planner.describe.model.traced_file import Traced, TracedBlock, TracedOperation, TracedWeight
from planner.describe.model.weight_blocks import layer_kinds
from planner.describe.workload import Workload
from tests.descriptions import default_scenario as make_scenario


def test_stored_bytes() -> None:
    assert (8 * stored_bytes("nf4", 4096), round(8 * stored_bytes("nf4-double", 4096), 3)) == (
        4.5,
        4.127,
    )


def test_with_adapters() -> None:
    job = make_scenario(framework="fsdp2", lora_rank=16, lora_targets=("query",))
    layer = blocks_of(job)[1]
    assert [(gemm.n, gemm.k) for gemm in layer.gemms if gemm.weight_gradient] == [
        (16, 4096),
        (4096, 16),
    ]
    # no mlp.input
    assert [item.name for item in layer.saved if "input" in item.name] == [
        "attention.input",
        "mlp.activation.input",
        "norm.input",
        "norm.input",
        "layer.input",
    ]


def test_attention() -> None:
    # h = 4096, a fourth as many keys
    llama = load_model("llama-3-8b")
    sizes = Sizes(llama, Workload(), load_framework("megatron-lm"))
    operators = attention(sizes, layer_kinds(llama)[0])
    assert [(gemm.n, gemm.k) for gemm in operators.gemms] == [(6144, 4096), (4096, 4096)]
    # 7 h, and 4 bytes a head
    assert sum(item.bytes_per_token for item in operators.saved) == 28800


def test_kept_selectively() -> None:
    # h = 4096, f = 3.5 h, a fourth the keys
    llama = load_model("llama-3-8b")
    sizes = Sizes(llama, Workload(), load_framework("fsdp2"))
    kept = kept_selectively(sizes, (), layer_kinds(llama)[0])
    assert [(item.name, item.bytes_per_token / 4096) for item in kept if "output" in item.name][
        :4
    ] == [("query.output", 2.0), ("value.output", 0.5), ("gate.output", 7.0), ("down.output", 2.0)]


def test_working() -> None:
    sizes = Sizes(load_model("llama-3-8b"), Workload(), load_framework("megatron-lm"))
    # 4 h and 2 * 2 f; 4 h and 4 * 2 h
    ffn, attention = working(sizes, None)
    assert [sum(item.bytes_per_token for item in items) / 4096 for items in (ffn, attention)] == [
        18.0,
        12.0,
    ]


def test_repeating() -> None:
    sizes = Sizes(load_model("llama-3-8b"), Workload(), load_framework("fsdp2"))
    assert [(item.bytes_per_token / 4096, item.split) for item in repeating(sizes)] == [
        (4.0, "whole"),
        (6.0, "scattered"),
    ]


def test_after_ffn() -> None:
    sizes = Sizes(load_model("llama-3-8b"), Workload(), load_framework("megatron-lm"))
    # 2 * 2 h
    assert sum(item.bytes_per_token for item in after_ffn(sizes, None)) / 4096 == 4.0


def test_deferred() -> None:
    layer = blocks_of(make_scenario(framework="fsdp2"))[1]
    # 2 (2 f + 5 h + 2 kv)
    assert sum(item.bytes_per_token for item in layer.deferred) == 102400.0


def test_blocks_of() -> None:
    scenario = make_scenario()
    # embedding, layers, head
    assert [block.count for block in blocks_of(scenario)] == [1, 32, 1]


def test_blocks() -> None:
    llama = blocks(load_model("llama-3-8b"), Workload(), load_framework("fsdp2"))
    assert [(block.name, block.count) for block in llama] == [
        ("embedding", 1),
        ("dense layer", 32),
        ("head", 1),
    ]
    assert sum(block.count * block.num_params for block in llama) == 8030261248


def test_scale_to_decoder() -> None:
    t5 = make_scenario("t5-3b-nemo", sequence_length=512)
    decoder = blocks_of(t5)[2]
    assert [(gemm.name, gemm.rows) for gemm in decoder.gemms if "cross" in gemm.name] == [
        ("cross_attention.query", 0.25),
        ("cross_attention.kv", 1),
        ("cross_attention.out", 0.25),
    ]


def test_stages() -> None:
    resnet = load_model("resnet-50")
    found = stages(Sizes(resnet, Workload(), load_framework("ddp")), resnet.convolutional)
    products = [(block.count, g) for block in found for g in block.gemms]
    # He et al., GMAC
    assert round(sum(n * g.rows * g.n * g.k for n, g in products) / 1e9, 3) == 4.089


def test_traced_blocks() -> None:
    product = TracedOperation(kind="product", rows=196, n=64, k=32)
    weights = (TracedWeight(rows=64, columns=32),)
    net = Traced(
        blocks=(
            TracedBlock(name="a", role="first"),
            TracedBlock(name="b", role="repeated", count=3, weights=weights, operations=(product,)),
            TracedBlock(name="c", role="last"),
        )
    )
    model = Model(name="m", family="traced", kind="traced", traced=net)
    sizes = Sizes(model, Workload(sequence_length=1), load_framework("ddp"))
    assert [
        (block.count, block.num_params, len(block.gemms)) for block in traced_blocks(sizes, net)
    ] == [(1, 0, 0), (3, 2048, 1), (1, 0, 0)]


def test_embedding() -> None:
    scenario = make_scenario()
    (lookup,) = blocks_of(scenario)[0].pointwise
    # 16 bits read and written
    assert lookup.forward_bytes == 2 * 2 * scenario.model.hidden_size


def test_head() -> None:
    scenario = make_scenario()
    kept = {item.name: item.bytes_per_token for item in blocks_of(scenario)[-1].saved}
    # one fp32 copy
    assert kept["loss.logits"] / scenario.model.vocab_size == 4.0


def test_dense() -> None:
    sizes = Sizes(load_model("llama-3-8b"), Workload(), load_framework("megatron-lm"))
    found = dense(sizes, 14336)
    # gate and up in one
    assert [(gemm.n, gemm.k) for gemm in found.gemms] == [(28672, 4096), (4096, 14336)]
    # 2 h + 3 * 2 f
    assert sum(item.bytes_per_token for item in found.saved) == 94208


def test_routed() -> None:
    # 2 of 8 experts, f = 14336
    mixtral = load_model("mixtral-8x7b")
    found = routed(Sizes(mixtral, Workload(), load_framework("megatron-lm")), mixtral.experts)
    assert [(gemm.n, gemm.k, gemm.top_k) for gemm in found.gemms] == [
        (8, 4096, 0),
        (28672, 4096, 2),
        (4096, 14336, 2),
    ]


def test_attention_flop() -> None:
    heads = Attention(num_heads=32, num_kv_heads=8, qk_dim=128, v_dim=128, causal=True)
    whole = float(attention_flop(heads, 1, 4096, skips_masked=False))
    assert whole == 2 * 4096 * (128 + 128) * 32
    assert float(attention_flop(heads, 1, 4096, skips_masked=True)) / whole == 0.5


def test_sequence_flop() -> None:
    heads = Attention(num_heads=32, num_kv_heads=8, qk_dim=128, v_dim=128, causal=True)
    whole = Workload(sequence_length=4096)
    # 1024^2 + 3072^2 = 10/16 of 4096^2
    packed = whole.replaced(document_lengths=(1024, 3072))
    sums = [sequence_flop(heads, 4096, job, skips_masked=False) for job in (packed, whole)]
    assert float(sums[0] / sums[1]) == 0.625


def test_model_flop() -> None:
    # 12 layers, h = 768
    gpt2 = make_scenario("gpt2", "ddp", sequence_length=1024)
    assert (
        float(model_flop(blocks_of(gpt2), gpt2.workload)) / gpt2.workload.tokens_per_step
        == 854438400.0
    )
    assert 6 * (12 * 12 * 768**2 + 50257 * 768) + 12 * 12 * 1024 * 768 == 854438400
