"""Reading config.json: exact against transformers, and one clear sentence for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.describe.catalogue import load_model
from planner.describe.model.huggingface.config import FAMILIES, from_config, read_config
from planner.describe.model.model import Model
from planner.errors import PlannerError

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
_LLAMA = {"model_type": "llama", **_SIZES}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    **_MOE,
}
_GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 100, "vocab_size": 300}
_OPT = {k: v for k, v in _SIZES.items() if k != "intermediate_size"} | {
    "model_type": "opt",
    "ffn_dim": 96,
}
_FALCON = {k: v for k, v in _SIZES.items() if k != "intermediate_size"} | {"model_type": "falcon"}
_T5 = {"model_type": "t5", "d_model": 64, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
_T5 |= {"vocab_size": 200}


_MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 300}


def like(family: str, **changes: Any) -> dict[str, Any]:
    return {**_SIZES, "model_type": family, **changes}


_LLAMA4 = like("llama4_text", num_experts_per_tok=1, num_key_value_heads=2, head_dim=16)
_LLAMA4 |= {"intermediate_size_mlp": 200, "num_hidden_layers": 4}

CASES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama grouped": like("llama", num_key_value_heads=2),
    "llama kv null": like("llama", num_key_value_heads=None, head_dim=None),
    "llama tied": like("llama", tie_word_embeddings=True, num_key_value_heads=1),
    "llama biases": like("llama", attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    "llama head_dim": like("llama", head_dim=32, num_key_value_heads=4),
    "llama-3.2-1b": like(
        "llama",
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "granite": like("granite", num_key_value_heads=4, attention_bias=True),
    "mistral default kv": like("mistral", num_attention_heads=16),
    "mistral": like("mistral", num_key_value_heads=2, head_dim=16, sliding_window=None),
    "qwen2": like("qwen2", num_key_value_heads=2),
    "qwen2 tied window": like(
        "qwen2",
        num_key_value_heads=4,
        tie_word_embeddings=True,
        use_sliding_window=True,
        max_window_layers=1,
    ),
    "qwen3": like("qwen3", num_key_value_heads=2),
    "qwen3 narrow": like("qwen3", num_key_value_heads=8, head_dim=4, attention_bias=True),
    "phi3": like("phi3", num_key_value_heads=2, pad_token_id=0),
    "olmo2": like("olmo2", num_key_value_heads=2),
    "olmo2 bias": like("olmo2", attention_bias=True, tie_word_embeddings=True),
    "gemma": like("gemma", num_key_value_heads=1, head_dim=16),
    "gemma default head_dim": like("gemma", num_key_value_heads=8),
    "gemma2": like("gemma2", num_key_value_heads=2, head_dim=16),
    "gemma2 untied": like("gemma2", num_key_value_heads=4, tie_word_embeddings=False),
    "gemma3_text": like("gemma3_text", num_key_value_heads=2, head_dim=24),
    "gpt2": {"model_type": "gpt2", **_GPT2},
    "gpt2 n_inner untied": {
        "model_type": "gpt2",
        **_GPT2,
        "n_inner": 100,
        "tie_word_embeddings": False,
    },
    "gptj": {"model_type": "gptj", **_GPT2, "rotary_dim": 8},
    "codegen": {"model_type": "codegen", **_GPT2, "rotary_dim": 8},
    "gpt_neox": like("gpt_neox"),
    "gpt_neox no bias": like("gpt_neox", attention_bias=False, tie_word_embeddings=True),
    "phi": like("phi", num_key_value_heads=4),
    "starcoder2": like("starcoder2", num_key_value_heads=2),
    "starcoder2 no bias": like("starcoder2", use_bias=False, num_key_value_heads=4),
    "opt": {**_OPT, "word_embed_proj_dim": 64},
    "opt 350m": {**_OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "opt no bias": {**_OPT, "word_embed_proj_dim": 64, "enable_bias": False},
    "opt no final norm": {**_OPT, "word_embed_proj_dim": 64, "_remove_final_layer_norm": True},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 3, "n_head": 4}
    | {"vocab_size": 300},
    "bloom n_embed": {"model_type": "bloom", "n_embed": 96, "n_layer": 2, "n_head": 4}
    | {"vocab_size": 300},
    "falcon 7b": _FALCON,
    "falcon all heads": {**_FALCON, "multi_query": False},
    "falcon rw": {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True}
    | {"alibi": True},
    "falcon 40b": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon 11b": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 4}
    | {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False, "ffn_hidden_size": 100},
    "mixtral": like("mixtral", num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2),
    "qwen2_moe": like("qwen2_moe", num_experts=4, num_key_value_heads=2, **_MOE)
    | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2},
    "qwen3_moe": like("qwen3_moe", num_experts=4, num_key_value_heads=2, head_dim=16, **_MOE),
    "qwen3_moe dense layers": like("qwen3_moe", num_local_experts=4, **_MOE)
    | {"mlp_only_layers": [0], "decoder_sparse_step": 1, "tie_word_embeddings": True},
    "deepseek_v2": like("deepseek_v2", **_LATENT),
    "deepseek_v2 lite": like("deepseek_v2", **{**_LATENT, "q_lora_rank": None}),
    "deepseek_v3": like("deepseek_v3", **_LATENT),
    "deepseek_v3 dense": like("deepseek_v3", **{**_LATENT, "first_k_dense_replace": 9}),
    "gpt_oss": like("gpt_oss", num_local_experts=4, num_experts_per_tok=2)
    | {"num_key_value_heads": 2, "head_dim": 16},
    "gpt_oss no bias": like("gpt_oss", num_local_experts=4, num_experts_per_tok=2)
    | {"attention_bias": False},
    "bert": like("bert"),
    "bert masked": like("bert", architectures=["BertForMaskedLM"]),
    "bert bare": like("bert", architectures=["BertModel"]),
    "roberta bare": like("roberta", architectures=["RobertaModel"]),
    "bert types": like("bert", type_vocab_size=4),
    "roberta": like("roberta", type_vocab_size=1),
    "vit": {**_SIZES, "model_type": "vit", "image_size": 32, "patch_size": 8},
    "vit no bias": {**_SIZES, "model_type": "vit", "image_size": 48, "patch_size": 16}
    | {"qkv_bias": False, "num_channels": 1},
    "smollm3": like("smollm3", num_key_value_heads=2, pad_token_id=0),
    "stablelm": like("stablelm", num_key_value_heads=8),
    "stablelm biases": like("stablelm", num_key_value_heads=4, use_qkv_bias=True),
    "stablelm parallel": like("stablelm", num_key_value_heads=2, use_parallel_residual=True)
    | {"qk_layernorm": True},
    "cohere": like("cohere", num_key_value_heads=2),
    "cohere qk norm": like("cohere", num_key_value_heads=4, use_qk_norm=True)
    | {"attention_bias": True, "tie_word_embeddings": False},
    "cohere2": like("cohere2", num_key_value_heads=2),
    "olmo": like("olmo", num_key_value_heads=8),
    "olmo clipped": like("olmo", num_key_value_heads=2, clip_qkv=8.0, tie_word_embeddings=True),
    "olmoe": like("olmoe", num_experts=4, num_experts_per_tok=2, num_key_value_heads=2),
    "glm": like("glm", num_key_value_heads=2, head_dim=16, pad_token_id=0),
    "glm4": like("glm4", num_key_value_heads=2, head_dim=16, pad_token_id=0)
    | {"attention_bias": False},
    "glm4_moe": like("glm4_moe", num_key_value_heads=2, head_dim=16, use_qk_norm=True)
    | {"n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 2, **_MOE},
    "glm4_moe bias": like("glm4_moe", num_key_value_heads=4, attention_bias=True, **_MOE)
    | {"n_routed_experts": 4, "n_group": 2},
    "llama4": {**_LLAMA4, "num_local_experts": 4},
    "llama4 interleaved": {**_LLAMA4, "num_local_experts": 4, "interleave_moe_layer_step": 2}
    | {"use_qk_norm": False, "attention_bias": True},
    "llama4 stated layers": {**_LLAMA4, "num_local_experts": 4, "moe_layers": [0, 2]},
    "nemotron": like("nemotron", num_key_value_heads=2, head_dim=16),
    "nemotron biases": like("nemotron", num_key_value_heads=8, attention_bias=True, mlp_bias=True),
    "mpt": _MPT,
    "mpt untied": {**_MPT, "tie_word_embeddings": False, "attn_config": {"clip_qkv": 6.0}},
    "t5": _T5,
    "t5 gated": {**_T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 3},
}


def count_with_transformers(fields: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds on the meta device."""
    torch = pytest.importorskip("torch", reason="torch builds the reference models")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is the reference for config.json"
    )
    config = transformers.AutoConfig.for_model(**fields)
    encoder = transformers.AutoModelForMaskedLM
    if str(fields.get("architectures", "")).endswith("Model']"):
        encoder = transformers.AutoModel
    auto = {
        "bert": encoder,
        "roberta": encoder,
        "vit": transformers.AutoModel,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "gemma3": transformers.AutoModelForImageTextToText,
    }.get(fields["model_type"], transformers.AutoModelForCausalLM)
    with torch.device("meta"):
        model = auto.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_family_has_a_case() -> None:
    assert {fields["model_type"] for fields in CASES.values()} == set(FAMILIES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_counts_agree_with_transformers(fields: dict[str, Any]) -> None:
    assert from_config(fields, "test").num_params == count_with_transformers(fields)


# The config.json of a real checkpoint, retyped from the source that the catalogue file cites.
REAL = {
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}
    | {"n_positions": 1024, "vocab_size": 50257},
    "mixtral-8x7b": like("mixtral", hidden_size=4096, intermediate_size=14336)
    | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
    | {"max_position_embeddings": 32768, "sliding_window": None},
    "qwen3-30b-a3b": like("qwen3_moe", hidden_size=2048, intermediate_size=6144)
    | {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    | {"head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 768, "max_position_embeddings": 40960},
    "deepseek-v3": like("deepseek_v3", hidden_size=7168, intermediate_size=18432)
    | {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    | {"vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128}
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "n_routed_experts": 256}
    | {"n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    | {"first_k_dense_replace": 3, "max_position_embeddings": 163840}
    | {"quantization_config": {"quant_method": "fp8"}},
    "gemma-2-27b": like("gemma2", hidden_size=4608, intermediate_size=36864)
    | {"num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16}
    | {"head_dim": 128, "vocab_size": 256000, "max_position_embeddings": 8192},
    "bert-large": like("bert", hidden_size=1024, intermediate_size=4096)
    | {"num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 30522}
    | {"max_position_embeddings": 512, "type_vocab_size": 2},
    "bloom-176b": {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "n_head": 112}
    | {"vocab_size": 250880},
    "vit-h-14": {"model_type": "vit", "hidden_size": 1280, "intermediate_size": 5120}
    | {"num_hidden_layers": 32, "num_attention_heads": 16, "image_size": 224, "patch_size": 14},
    "falcon-40b": {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60}
    | {"num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True}
    | {"vocab_size": 65024},
    "opt-66b": {"model_type": "opt", "hidden_size": 9216, "ffn_dim": 36864, "vocab_size": 50272}
    | {"num_hidden_layers": 64, "num_attention_heads": 72, "word_embed_proj_dim": 9216}
    | {"max_position_embeddings": 2048},
}
NOT_SHAPES = {"name", "source", "note", "dropout", "reported_params", "reported_how"}


@pytest.mark.parametrize("name", REAL)
def test_reader_and_catalogue_describe_the_same_model(name: str) -> None:
    read = from_config(REAL[name], name).model_dump(exclude=NOT_SHAPES)
    listed = load_model(name).model_dump(exclude=NOT_SHAPES)
    if name == "bloom-176b":  # the file states no sequence length: ALiBi has none
        listed["max_sequence_length"] = 0
    assert read == listed


def test_windows() -> None:
    def windows(model: Model) -> tuple[int, int]:
        return model.sliding_window, model.num_window_layers

    def read(**changes: Any) -> tuple[int, int]:
        return windows(from_config({**_SIZES, "num_hidden_layers": 12, **changes}, "test"))

    assert read(model_type="llama", sliding_window=8) == (0, 0)
    assert read(model_type="mistral", num_attention_heads=8) == (4096, 12)
    assert read(model_type="mistral", sliding_window=None) == (0, 0)
    assert read(model_type="gemma2") == (4096, 6)
    assert read(model_type="gemma3_text") == (4096, 10)
    assert read(model_type="gemma3_text", sliding_window_pattern=4) == (4096, 9)
    assert read(model_type="qwen2", num_key_value_heads=2, sliding_window=9) == (0, 0)
    qwen = {"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": True}
    assert read(**qwen, max_window_layers=5) == (4096, 7)
    assert read(model_type="cohere2") == (4096, 9)
    llama4 = {**_LLAMA4, "num_local_experts": 4, "num_hidden_layers": 12}
    assert read(**llama4, attention_chunk_size=512) == (512, 9)
    assert read(**llama4, attention_chunk_size=None) == (0, 0)
    chunks = ["chunked_attention"] * 2 + ["full_attention"] * 10
    assert read(**llama4, layer_types=chunks) == (8192, 2)
    types = ["full_attention"] * 9 + ["sliding_attention"] * 3
    assert read(model_type="gemma2", sliding_window=64, layer_types=types) == (64, 3)


def test_expert_layers_come_last_or_between() -> None:
    def dense(**changes: Any) -> tuple[int, bool]:
        experts = from_config({**_LLAMA4, "num_local_experts": 4, **changes}, "test").experts
        assert experts is not None
        return experts.num_dense_layers, experts.interleaved

    # transformers 5.23, modeling_llama4.py: is_moe_layer
    assert dense() == (0, False)
    assert dense(interleave_moe_layer_step=2) == (2, True)
    assert dense(moe_layers=[2, 3]) == (2, False)
    assert dense(moe_layers=[0, 3]) == (2, True)


def test_rest_of_the_description() -> None:
    model = from_config(like("bert", hidden_dropout_prob=0.2), "test")
    assert (model.kind, model.dropout, model.output_head) == ("encoder", 0.2, True)
    assert "masked language model" in model.note
    # with the pooler of BertForPreTraining; its next-sentence classifier is not counted
    pretraining = from_config(like("bert", architectures=["BertForPreTraining"]), "test")
    assert (pretraining.pooler, pretraining.head_transform) == (True, True)
    classifier = like("bert", architectures=["BertForSequenceClassification"])
    assert not from_config(classifier, "test").output_head
    roberta = from_config(like("roberta", max_position_embeddings=514), "test")
    assert (roberta.num_position_rows, roberta.max_sequence_length) == (514, 512)
    t5 = from_config(_T5, "test")
    assert (t5.kind, t5.num_decoder_layers, t5.activation) == ("encoder-decoder", 2, "relu")
    # T5 v1.1 does not share the embedding with the classifier
    untied = from_config({**_T5, "tie_word_embeddings": False}, "test")
    assert untied.num_params - t5.num_params == 200 * 64
    assert from_config(like("gemma", num_key_value_heads=8), "test").tied_embeddings


# Nested files omit what equals the default: heads, vocabulary and head_dim of Gemma 3 here.
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}


@pytest.mark.filterwarnings("ignore")
def test_multimodal_file_describes_its_text_tower() -> None:
    model = from_config(GEMMA3, "gemma")
    assert "only the text tower" in model.note
    assert (model.num_heads, model.num_kv_heads, model.head_dim) == (8, 4, 256)
    assert (model.sliding_window, model.num_window_layers) == (1024, 29)
    assert model.num_params == count_with_transformers(dict(GEMMA3["text_config"]))


@pytest.mark.parametrize(
    ("wrapper", "tower"),
    [("qwen2_5_vl", "qwen2_5_vl_text"), ("qwen3_vl", "qwen3_vl_text"), ("llava", "llama")],
)
def test_towers_of_other_multimodal_families(wrapper: str, tower: str) -> None:
    text = {**_SIZES, "model_type": tower, "num_key_value_heads": 4, "head_dim": 8}
    fields = {"model_type": wrapper, "text_config": text, "tie_word_embeddings": True}
    model = from_config(fields, "test")
    assert model.tied_embeddings
    assert model.num_params > 0
    del text["model_type"]
    assert from_config(fields, "test").num_params == model.num_params


@pytest.mark.parametrize("key", ["quantization_config", "quantization"])
def test_quantised_checkpoint_is_read_with_a_note(key: str) -> None:
    model = from_config({**_LLAMA, key: {"quant_method": "gptq", "bits": 4}}, "test")
    assert model.num_params == from_config(_LLAMA, "test").num_params
    assert f"{key} (gptq)" in model.note


def _write(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_read_config_names_the_model_and_its_source(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    model = read_config(_write(folder, json.dumps(_LLAMA)))
    assert model.name == "My-Model"
    assert model.source.endswith("config.json")
    assert load_model(str(folder)) == model
    cached = tmp_path / "models--org--Some-7B" / "snapshots" / "0123abcd"
    cached.mkdir(parents=True)
    assert read_config(_write(cached, json.dumps(_LLAMA))).name == "org/Some-7B"
    other = folder / "tiny.json"
    other.write_text("\ufeff" + json.dumps(_LLAMA), encoding="utf-8")
    assert read_config(other).name == "tiny"


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "not valid JSON"),
    "not json": ("model_type: llama", "line 1, column 1"),
    "truncated": (json.dumps(_LLAMA, indent=1)[:-20], "line"),
    "trailing comma": ('{"a": 1,\n}', "line"),
    "latin-1": ('{"model_type": "llam\xe9"}'.encode("latin-1"), "not UTF-8"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "list": ("[1, 2]", "a list where an object is expected"),
    "string": ('"llama"', '"llama" where an object is expected'),
    "number": ("7", "7 where an object is expected"),
    "null": ("null", "null where an object is expected"),
    "deep": ("[" * 200_000, "nested too deeply"),
    "deep object": ('{"a":' * 100_000, "nested too deeply"),
    "digits": ('{"hidden_size": ' + "9" * 5000 + "}", "thousands of digits"),
    "huge": (b" " * 1_100_000, "1.1 MB"),
    "no model_type": (json.dumps(_SIZES), "no model_type"),
    "adapter": (
        '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}',
        'adapter of "org/base"',
    ),
}


@pytest.mark.parametrize(("text", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_broken_file_is_one_sentence(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(PlannerError) as caught:
        read_config(_write(tmp_path, text))
    assert_one_sentence(str(caught.value), says)


def assert_one_sentence(message: str, says: str) -> None:
    assert says in message
    assert "\n" not in message
    assert "; " in message or "did you mean" in message or "known are" in message
    assert len(message) < 1000
    message.encode("utf-8")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/config.json", "No such file"),
        (".", "is a directory"),
        ("/dev/null", "not a regular file"),
        ("a\0b.json", "null"),
        ("x" * 5000 + ".json", "too long"),
    ],
)
def test_path_that_is_no_file(path: str, says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        read_config(Path(path))


BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown family": ({**_LLAMA, "model_type": "lama"}, "did you mean llama"),
    "far family": ({**_LLAMA, "model_type": "zzz"}, "known are"),
    "family list": ({**_LLAMA, "model_type": ["llama"]}, "a list is not a name"),
    "family surrogate": ({**_LLAMA, "model_type": "\ud800"}, "unknown model_type"),
    "missing size": ({"model_type": "llama"}, "'num_attention_heads' is missing"),
    "default kv heads": (like("gemma"), "num_key_value_heads = 16 does not divide"),
    "null size": ({**_LLAMA, "hidden_size": None}, "hidden_size = null"),
    "string": ({**_LLAMA, "hidden_size": "4096"}, 'hidden_size = "4096" is not a whole number'),
    "bool": ({**_LLAMA, "num_hidden_layers": True}, "num_hidden_layers = true"),
    "float": ({**_LLAMA, "vocab_size": 1e30}, "vocab_size = 1e+30"),
    "fraction": ({**_LLAMA, "hidden_size": 64.5}, "hidden_size = 64.5"),
    "nan": ({**_LLAMA, "hidden_size": float("nan")}, "hidden_size = NaN"),
    "infinity": ({**_LLAMA, "hidden_size": float("inf")}, "hidden_size = Infinity"),
    "negative": ({**_LLAMA, "hidden_size": -64}, "hidden_size = -64 must be at least 1"),
    "zero": ({**_LLAMA, "num_attention_heads": 0}, "must be at least 1"),
    "object": ({**_LLAMA, "hidden_size": {"a": 1}}, "hidden_size = an object"),
    "absurd": ({**_LLAMA, "hidden_size": 4096_000_000}, "check your units"),
    "absurd layers": ({**_LLAMA, "num_hidden_layers": 10**6}, "check your units"),
    "absurd digits": ({**_LLAMA, "vocab_size": 10**40}, "more than 18 digits"),
    "kv heads": ({**_LLAMA, "num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide"),
    "heads": ({**_LLAMA, "hidden_size": 65}, "8 heads do not divide the hidden size 65"),
    "flag": ({**_LLAMA, "attention_bias": "yes"}, 'attention_bias = "yes" is not true or false'),
    "flag number": ({**_LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings = 1"),
    "activation": ({**_LLAMA, "hidden_act": "tanh"}, 'hidden_act = "tanh" is not known'),
    "dropout": (like("bert", hidden_dropout_prob=1.5), "must be in [0, 1)"),
    "dropout nan": (like("bert", hidden_dropout_prob=float("nan")), "NaN"),
    "dropout text": (like("bert", hidden_dropout_prob="0.1"), "is not a number"),
    "text_config": ({"model_type": "gemma3", "text_config": [1]}, "text_config holds a list"),
    "tower": (
        {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
        "unknown model_type 'clip_text_model'",
    ),
    "layer types": (like("gemma2", layer_types=["full_attention"]), "names 1 layers"),
    "layer types kind": (like("gemma2", layer_types=[1, 2, 3]), "not a list of str"),
    "mlp_only": (
        like("qwen3_moe", num_experts=4, mlp_only_layers=["0"], **_MOE),
        "list of int",
    ),
    "one expert": (
        like("mixtral", num_local_experts=1, num_experts_per_tok=1),
        "num_local_experts = 1 must be at least 2",
    ),
    "top k": (
        like("mixtral", num_local_experts=2, num_experts_per_tok=3),
        "top_k = 3 exceeds",
    ),
    "no experts": (like("mixtral"), "'num_local_experts' is missing"),
    "patch": (
        {**_SIZES, "model_type": "vit", "image_size": 8, "patch_size": 16},
        "patch_size = 16 exceeds image_size = 8",
    ),
    "t5 proj": ({**_T5, "feed_forward_proj": ["relu"]}, "feed_forward_proj = a list"),
    "latent bias": (like("deepseek_v3", attention_bias=True, **_LATENT), "attention_bias = true"),
    "phi norm": (like("phi", qk_layernorm=True), "qk_layernorm = true"),
    "groups": (
        like("deepseek_v3", **{**_LATENT, "n_group": 4}),
        "num_groups = 4 must divide num_experts = 6",
    ),
    "smollm3 window": (like("smollm3", use_sliding_window=True), "use_sliding_window = true"),
    "mpt queries": (
        {**_MPT, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2}},
        'attn_type = "grouped_query_attention" is not read',
    ),
    "mpt bias": ({**_MPT, "no_bias": False}, "no_bias = false is not read, true alone"),
    "mpt config": ({**_MPT, "attn_config": [1]}, "attn_config = a list is not an object"),
}


def test_groups_that_a_router_picks_are_read() -> None:
    # DeepSeek-V3's config.json: n_group 8, topk_group 4; without them every expert is in reach
    limited = from_config(like("deepseek_v3", **_LATENT), "limited")
    none = {"n_group": None, "topk_group": None}
    free = from_config(like("deepseek_v2", **{**_LATENT, **none}), "free")
    assert limited.experts is not None
    assert free.experts is not None
    assert (limited.experts.num_groups, limited.experts.top_groups) == (3, 2)
    assert (free.experts.num_groups, free.experts.top_groups) == (1, 1)


@pytest.mark.parametrize(("fields", "says"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_bad_field_is_one_sentence(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError) as caught:
        from_config(fields, "broken")
    assert_one_sentence(str(caught.value), says)


def test_hostile_names_cannot_flood_or_break_a_message() -> None:
    with pytest.raises(PlannerError) as caught:
        from_config({"model_type": "llama"}, "\x1b[31m\n\ud800" + "x" * 10_000)
    assert_one_sentence(str(caught.value), "is missing")
    assert "\x1b" not in str(caught.value)


_KEYS = sorted({key for family in FAMILIES.values() for key in family.defaults})
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-4, max_value=300)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["silu", "gelu", "relu", "gated-gelu", "full_attention"])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_CONFIGS = st.fixed_dictionaries(
    {"model_type": st.sampled_from(sorted(FAMILIES)) | _VALUES},
    optional={
        **{key: st.integers(min_value=1, max_value=64) | _VALUES for key in _KEYS},
        "text_config": _VALUES,
        "quantization_config": _VALUES,
        "peft_type": _VALUES,
    },
)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_CONFIGS)
def test_any_fields_give_a_model_or_a_clear_error(fields: dict[str, Any]) -> None:
    try:
        model = from_config(fields, "random")
    except PlannerError as error:
        str(error).encode("utf-8")
    else:
        assert model.num_params > 0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_one_spoilt_field_gives_a_model_or_a_clear_error(case: str, data: st.DataObject) -> None:
    fields = dict(CASES[case])
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(_VALUES)
    try:
        model = from_config(fields, case)
    except PlannerError as error:
        str(error).encode("utf-8")
    else:
        assert model.num_params > 0


@settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.binary(max_size=200) | _VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_clear_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(PlannerError):
        read_config(_write(tmp_path, content))
