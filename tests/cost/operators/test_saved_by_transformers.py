"""Saved tensors of layers and heads, against what autograd keeps in transformers' modules."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.operators.blocks import blocks
from planner.describe.catalogue import load_framework, load_model
from planner.describe.model.huggingface.config import from_config
from planner.describe.workload import Workload
from tests.describe.model.huggingface.test_config import like

TOKENS = 64
_WIDE = {"hidden_size": 512, "intermediate_size": 1376, "vocab_size": 300, "pad_token_id": 0}
_GPT = {"n_embd": 512, "n_head": 8, "n_layer": 2, "vocab_size": 300, "n_positions": 128}
CASES: dict[str, dict[str, Any]] = {
    "llama": like("llama", num_key_value_heads=2, **_WIDE),
    "smollm3": like("smollm3", num_key_value_heads=2, **_WIDE),
    "stablelm": like("stablelm", num_key_value_heads=8, **_WIDE),
    "stablelm parallel": like("stablelm", num_key_value_heads=2, **_WIDE)
    | {"use_parallel_residual": True, "qk_layernorm": True},
    "cohere": like("cohere", num_key_value_heads=8, **_WIDE),
    "cohere qk norm": like("cohere", num_key_value_heads=2, use_qk_norm=True, **_WIDE),
    "cohere2": like("cohere2", num_key_value_heads=2, **_WIDE),
    "olmo": like("olmo", num_key_value_heads=8, **_WIDE),
    "olmo clipped": like("olmo", num_key_value_heads=8, clip_qkv=8.0, **_WIDE),
    "nemotron": like("nemotron", num_key_value_heads=2, **_WIDE),
    "phi": like("phi", num_key_value_heads=2, **_WIDE),
    "mpt": {"model_type": "mpt", "d_model": 512, "n_heads": 4, "n_layers": 2, "vocab_size": 300},
    "bloom": {"model_type": "bloom", "hidden_size": 512, "n_head": 8, "n_layer": 2}
    | {"vocab_size": 300},
    "gptj": _GPT | {"model_type": "gptj", "rotary_dim": 16},
    "codegen": _GPT | {"model_type": "codegen", "rotary_dim": 16},
    "gpt2": _GPT | {"model_type": "gpt2", "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt_neox": like("gpt_neox", **_WIDE),
    "opt": like("opt", ffn_dim=2048, word_embed_proj_dim=512, dropout=0.0, **_WIDE),
    "falcon one key": like("falcon", **_WIDE),
    "falcon groups": like("falcon", new_decoder_architecture=True, num_kv_heads=2, **_WIDE),
    "falcon alibi": like("falcon", alibi=True, bias=True, multi_query=False, **_WIDE)
    | {"parallel_attn": False},
    "gemma2": like("gemma2", num_key_value_heads=2, head_dim=64, **_WIDE),
    "bert": like("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_WIDE),
    "roberta": like("roberta", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_WIDE),
    "llama4": like("llama4_text", num_key_value_heads=2, head_dim=64, num_local_experts=4, **_WIDE)
    | {"num_experts_per_tok": 1, "intermediate_size_mlp": 2048},
}


def _transformers() -> Any:
    pytest.importorskip("torch", reason="torch keeps the tensors")
    return pytest.importorskip("transformers", reason="its modules are compared")


def _depth(fields: dict[str, Any], layers: int) -> dict[str, Any]:
    key = next((key for key in ("n_layers", "n_layer") if key in fields), "num_hidden_layers")
    return {**fields, key: layers}


def _kept(module: Any, *, labels: bool = False) -> float:
    """Bytes per token that a forward pass on the CPU keeps, weights aside."""
    import torch

    weights = {value.untyped_storage()._cdata for value in module.state_dict().values()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    more: dict[str, Any] = {"labels": tokens} if labels else {}
    if not labels and module.config.model_type not in ("bert", "roberta"):
        more["use_cache"] = False
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(tokens, **more)
    assert output is not None
    return sum(float(storage.nbytes()) for storage in kept.values()) / TOKENS


def _of_layer(fields: dict[str, Any], attention: str | None) -> tuple[float, str]:
    """Bytes per token that autograd keeps of one layer, and the attention that ran."""
    import torch

    auto = _transformers().AutoModel
    sizes, ran = [], ""
    for layers in (1, 2):
        config = _transformers().AutoConfig.for_model(**_depth(fields, layers))
        chosen = {"attn_implementation": attention} if attention else {}
        module = auto.from_config(config, dtype=torch.bfloat16, **chosen).train()
        ran = module.config._attn_implementation
        sizes.append(_kept(module))
    return sizes[1] - sizes[0], ran


def _planned(fields: dict[str, Any], attention: str, kind: str = "layer") -> tuple[float, str]:
    """Bytes per token that the cost model saves of a block, and the attention that it takes."""
    release = ".".join(_transformers().__version__.split(".")[:2])
    framework = load_framework(f"accelerate+transformers={release}")
    model = from_config(fields, "test")
    stated = {"sequence_length": TOKENS, "attention": attention, "dropout": 0.0}
    workload = framework.with_attention(Workload.described(stated), model)
    block = next(block for block in blocks(model, workload, framework) if block.kind == kind)
    saved = sum(
        item.bytes_per_token * (TOKENS if item.scores else 1)
        for item in block.saved
        if not item.only and not item.selective_only
    )
    return saved, workload.attention


def _tolerance(name: str) -> float:
    """Relative tolerance of a case."""
    if name.startswith("llama4"):
        return 0.02  # the router counted is a softmax in fp32, Llama 4's a sigmoid in 16 bits
    if name in ("falcon groups", "codegen"):
        return 0.01  # not counted: a causal mask for every layer, sines and cosines in fp32
    return 0.005


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_layer_saves_what_autograd_keeps(name: str) -> None:
    """With the attention that the family has by default."""
    _transformers()
    planned, attention = _planned(CASES[name], "default")
    kept, ran = _of_layer(CASES[name], None)
    assert planned == pytest.approx(kept, rel=_tolerance(name))
    # scaled_dot_product_attention takes no unequal heads in its fused kernels
    assert (attention == "eager") == (ran == "eager" or name == "falcon one key")


_EAGER = ("llama", "phi", "gpt_neox", "gpt2", "opt", "falcon groups", "falcon alibi", "bert")
"""Families whose default is another; Falcon with one key-value head is counted as torch's own
kernel has it, and not as transformers has it."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _EAGER)
def test_eager_attention_saves_what_autograd_keeps(name: str) -> None:
    _transformers()
    planned, _ = _planned(CASES[name], "eager")
    kept, _ = _of_layer(CASES[name], "eager")
    assert planned == pytest.approx(kept, rel=_tolerance(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "vocabulary"), [("bert", 30522), ("roberta", 50265)])
@pytest.mark.parametrize(
    ("width", "heads", "tokens"),
    [(768, 12, 64), (768, 12, 512), (1024, 16, 64)],  # base twice, large
)
def test_heads_of_masked_language_models(
    family: str, vocabulary: int, width: int, heads: int, tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Embedding, head and loss of BERT and RoBERTa, base and large: bytes per token."""
    import torch

    monkeypatch.setattr(f"{__name__}.TOKENS", tokens)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": heads}
    fields = {"model_type": family, "vocab_size": vocabulary, "max_position_embeddings": 514}
    fields |= {**sizes, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    auto = _transformers().AutoModelForMaskedLM
    configs = (_transformers().AutoConfig.for_model(**_depth(fields, n)) for n in (1, 2))
    modules = (auto.from_config(config, dtype=torch.bfloat16).train() for config in configs)
    one, two = (_kept(module, labels=True) for module in modules)
    fields = _depth(fields, 1)
    ends = [_planned(fields, "default", kind)[0] for kind in ("embedding", "head")]
    # the caller of the model holds its logits besides: `loss.output`
    assert sum(ends) == pytest.approx(2 * one - two + 2 * vocabulary, rel=0.001)
    assert _planned(fields, "default")[0] == pytest.approx(two - one, rel=0.005)


@pytest.mark.parametrize(
    ("model", "release", "kind"),
    # first releases with `_supports_sdpa`; BLOOM and MPT have none
    [
        ("llama-2-7b", 4.35, "eager"),
        ("llama-2-7b", 4.36, "flash"),
        ("bert-large", 4.4, "eager"),
        ("bert-large", 4.41, "flash"),
        ("gpt2", 4.41, "eager"),
        ("gpt2", 4.42, "flash"),
        ("bloom-176b", 5.24, "eager"),
        ("gpt-oss-20b", 5.24, "eager"),
        ("falcon-40b", 4.36, "flash"),
    ],
)
def test_the_release_decides_on_the_default_attention(
    model: str, release: float, kind: str
) -> None:
    framework = load_framework(f"deepspeed+transformers={release}")
    default, described = Workload(sequence_length=512), load_model(model)
    assert framework.with_attention(default, described).attention == kind
    stated = default.replaced(attention="flash")
    assert framework.with_attention(stated, described).attention == "flash"
    # other programs bring their own blocks
    plain = load_framework("megatron-lm").with_attention(default, described)
    assert plain.attention == "flash"
