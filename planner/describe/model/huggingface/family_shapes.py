"""Readers of shapes: one function per way in which families state them in a config.json."""

from typing import Any

from planner.describe.model.huggingface.config_fields import Fields, parse_activation, quote

Shapes = dict[str, Any]


def _head_dim(f: Fields, hidden: int, heads: int) -> int:
    if f.reads("qk_nope_head_dim"):  # latent attention: the width of queries and keys
        return f.size("qk_nope_head_dim") + f.size("qk_rope_head_dim")
    if f.reads("d_kv"):
        return f.size("d_kv")
    if f.raw("head_dim") is not None:
        return f.size("head_dim")
    if hidden % heads:
        raise f.error(f"{heads} heads do not divide the hidden size {hidden}; correct one of them")
    return hidden // heads


def _kv_heads(f: Fields, heads: int, key: str = "num_key_value_heads") -> int:
    kv_heads = f.size_or(heads, key, "heads")
    if heads % kv_heads:
        raise f.error(
            f"{key} = {kv_heads} does not divide the {heads} attention heads; state one that does"
        )
    return kv_heads


def _biases(flag: bool) -> Shapes:
    return {"qkv_bias": flag, "out_bias": flag, "mlp_bias": flag}


def _trunk(
    f: Fields,
    hidden_key: str = "hidden_size",
    layers_key: str = "num_hidden_layers",
    heads_key: str = "num_attention_heads",
) -> Shapes:
    heads, layers = f.size(heads_key, "heads"), f.size(layers_key, "layers")
    hidden = f.size(hidden_key)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "vocab_size": f.size("vocab_size"),
        "tied_embeddings": f.flag("tie_word_embeddings"),
        "head_dim": _head_dim(f, hidden, heads),
    }


def _decoder(f: Fields) -> Shapes:
    shapes = _trunk(f)
    return {
        **shapes,
        "num_kv_heads": _kv_heads(f, shapes["num_heads"]),
        "ffn_size": f.size("intermediate_size"),
        "max_sequence_length": f.size("max_position_embeddings", "rows"),
    }


def llama(f: Fields) -> Shapes:
    """Decoders with RMSNorm and a gated feed-forward: Llama and most later families."""
    shapes = _decoder(f)
    gemma = f.reads("hidden_activation")
    return {
        **shapes,
        "gated_mlp": True,
        "activation": f.activation("hidden_activation" if gemma else "hidden_act"),
        "norm": "rmsnorm",
        "qkv_bias": f.flag("attention_bias") or f.flag("qkv_bias"),
        "out_bias": f.flag("attention_bias"),
        "mlp_bias": f.flag("mlp_bias"),
        "dropout": f.dropout("attention_dropout", "resid_pdrop", "hidden_dropout"),
        "written": {"clipped_qkv": f.raw("clip_qkv") is not None},
        **_window(f, shapes["num_layers"]),
    }


def _window(f: Fields, layers: int) -> Shapes:
    window = f.size_or(0, "sliding_window", "rows", least=0)
    if not window or (f.reads("use_sliding_window") and not f.flag("use_sliding_window")):
        return {}
    if types := f.sequence("layer_types", str):
        if len(types) != layers:
            raise f.error(
                f"layer_types names {len(types)} layers, but there are {layers}; correct one"
            )
        count = types.count("sliding_attention") + types.count("chunked_attention")
    elif f.reads("max_window_layers"):
        count = max(0, layers - f.size("max_window_layers", "layers", least=0))
    else:
        # every n-th layer attends to the whole sequence; without a pattern none does
        period = f.size_or(0, "sliding_window_pattern", "layers")
        count = layers - layers // period if period else layers
    return {"sliding_window": window, "num_window_layers": count} if count else {}


def _experts(f: Fields, width: int, key: str = "num_local_experts") -> Shapes:
    return {
        "num_experts": f.size(key, "experts", least=2),
        "top_k": f.size("num_experts_per_tok", "experts"),
        "ffn_size": width,
    }


def _every_nth(f: Fields, key: str, layers: int) -> set[int]:
    step = f.size(key, "layers")
    return set(range(step - 1, layers, step))


def _dense_layers(layers: int, sparse: set[int]) -> Shapes:
    """Count the layers without experts, and tell whether expert layers are between them."""
    dense = layers - len(sparse)
    return {"num_dense_layers": dense, "interleaved": sparse != set(range(dense, layers))}


def mixtral(f: Fields) -> Shapes:
    """Mixtral: experts in every layer, of width intermediate_size."""
    shapes = llama(f)
    return {**shapes, "experts": _experts(f, shapes["ffn_size"])}


def gpt_oss(f: Fields) -> Shapes:
    """gpt-oss: experts and router with biases."""
    shapes = mixtral(f)
    return {**shapes, "experts": {**shapes["experts"], "router_bias": True, "expert_bias": True}}


def qwen_moe(f: Fields) -> Shapes:
    """Qwen2-MoE and Qwen3-MoE: some layers may be dense; Qwen2 has a gated shared expert."""
    shapes = llama(f)
    key = "num_experts" if f.reads("num_experts") else "num_local_experts"
    experts = _experts(f, f.size("moe_intermediate_size"), key)
    dense = set(f.sequence("mlp_only_layers", int))
    sparse = _every_nth(f, "decoder_sparse_step", shapes["num_layers"]) - dense
    experts |= _dense_layers(shapes["num_layers"], sparse)
    if f.reads("shared_expert_intermediate_size"):
        width = f.size("shared_expert_intermediate_size")
        experts |= {"num_shared": 1, "shared_ffn_size": width, "shared_gate": True}
    return {**shapes, "experts": experts}


def llama4(f: Fields) -> Shapes:
    """Llama 4: a shared expert as wide as the others, every n-th layer with experts."""
    shapes = llama(f)
    layers = shapes["num_layers"]
    sparse = _every_nth(f, "interleave_moe_layer_step", layers)
    if f.raw("moe_layers") is not None:
        sparse = set(f.sequence("moe_layers", int)) & set(range(layers))
    experts = {**_experts(f, shapes["ffn_size"]), "num_shared": 1, **_dense_layers(layers, sparse)}
    return {**shapes, "ffn_size": f.size("intermediate_size_mlp"), "experts": experts}


def glm4_moe(f: Fields) -> Shapes:
    """GLM-4.5: shared experts, dense first layers."""
    shapes = llama(f)
    experts = _experts(f, f.size("moe_intermediate_size"), "n_routed_experts")
    experts["num_shared"] = f.size("n_shared_experts", "experts")
    groups = f.size_or(1, "n_group", "experts")
    experts |= {"num_groups": groups, "top_groups": f.size_or(groups, "topk_group", "experts")}
    first = f.size("first_k_dense_replace", "layers", least=0)
    experts["num_dense_layers"] = min(first, shapes["num_layers"])
    return {**shapes, "experts": experts}


def deepseek(f: Fields) -> Shapes:
    """DeepSeek-V2 and V3: latent attention, experts as GLM-4.5."""
    latent = {
        "q_lora_rank": f.size_or(0, "q_lora_rank"),
        "kv_lora_rank": f.size("kv_lora_rank"),
        "qk_nope_head_dim": f.size("qk_nope_head_dim"),
        "qk_rope_head_dim": f.size("qk_rope_head_dim"),
        "v_head_dim": f.size("v_head_dim"),
    }
    return {**glm4_moe(f), "latent_attention": latent}


def gpt2(f: Fields) -> Shapes:
    """GPT-2: learned positions, which GPT-J replaces."""
    shapes = _trunk(f, "n_embd", "n_layer", "n_head")
    hidden = shapes["hidden_size"]
    positions = f.size("n_positions", "rows")
    return {
        **shapes,
        "ffn_size": f.size_or(4 * hidden, "n_inner"),
        "max_sequence_length": positions,
        "activation": f.activation("activation_function"),
        "position": "learned",
        "num_position_rows": positions,
        "dropout": f.dropout("resid_pdrop", "attn_pdrop"),
    }


def dense(f: Fields) -> Shapes:
    """LayerNorm and a feed-forward of two matrices: GPT-NeoX, Phi, StarCoder2, Nemotron, BERT."""
    shapes = _decoder(f)
    bias = f.flag("attention_bias") or f.flag("use_bias")
    return {
        **shapes,
        "activation": f.activation("hidden_act"),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": f.flag("use_bias") or f.flag("mlp_bias"),
        "parallel_residual": f.flag("use_parallel_residual"),
        "dropout": f.dropout("hidden_dropout", "resid_pdrop", "residual_dropout"),
        **_window(f, shapes["num_layers"]),
    }


def bert(f: Fields) -> Shapes:
    """BERT: token types, learned positions; the head of the class that `architectures` names."""
    shapes, classes = dense(f), " ".join(f.sequence("architectures", str))
    masked = not classes or "ForPreTraining" in classes or "ForMaskedLM" in classes
    return {
        **shapes,
        **dict.fromkeys(("output_head", "head_bias", "head_transform"), masked),
        "pooler": not masked or "ForPreTraining" in classes,
        "num_position_rows": shapes["max_sequence_length"],
        "num_token_types": f.size("type_vocab_size", "experts"),
        "dropout": f.dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
    }


def roberta(f: Fields) -> Shapes:
    """RoBERTa: BERT with two rows of the position table for padding."""
    shapes = bert(f)
    # the first two rows of the table stand for padding
    return {**shapes, "max_sequence_length": max(shapes["max_sequence_length"] - 2, 1)}


def vit(f: Fields) -> Shapes:
    """ViT: a patch embedding, a class token and learned positions."""
    hidden = f.size("hidden_size")
    heads = f.size("num_attention_heads", "heads")
    image, patch = f.size("image_size"), f.size("patch_size")
    if patch > image:
        raise f.error(f"patch_size = {patch} exceeds image_size = {image}; correct one of them")
    rows = (image // patch) ** 2 + 1  # the class token
    return {
        "num_layers": f.size("num_hidden_layers", "layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _head_dim(f, hidden, heads),
        "ffn_size": f.size("intermediate_size"),
        "max_sequence_length": rows,
        "num_position_rows": rows,
        "activation": f.activation("hidden_act"),
        "qkv_bias": f.flag("qkv_bias"),
        "dropout": f.dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "vision": {
            "image_size": image,
            "patch_size": patch,
            "num_channels": f.size("num_channels"),
        },
    }


def opt(f: Fields) -> Shapes:
    """OPT: two more position rows than the sequence; the embedding may be narrower."""
    shapes = _trunk(f)
    hidden = shapes["hidden_size"]
    positions = f.size("max_position_embeddings", "rows")
    width = f.size_or(hidden, "word_embed_proj_dim")
    return {
        **shapes,
        **_biases(f.flag("enable_bias")),
        "ffn_size": f.size("ffn_dim"),
        "embedding_size": width if width != hidden else 0,
        "final_norm": f.flag("do_layer_norm_before") and not f.flag("_remove_final_layer_norm"),
        "activation": f.activation("activation_function"),
        "max_sequence_length": positions,
        "num_position_rows": positions + 2,  # OPT numbers positions from 2
        "dropout": f.dropout("dropout", "attention_dropout"),
    }


def mpt(f: Fields) -> Shapes:
    """MPT: no biases, ALiBi."""
    shapes = _trunk(f, "d_model", "n_layers", "n_heads")
    hidden, attention = shapes["hidden_size"], f.raw("attn_config") or {}
    if not isinstance(attention, dict):
        raise f.error(f"attn_config = {quote(attention)} is not an object; correct it")
    options = {**attention, "no_bias": f.raw("no_bias")}
    usual = {"attn_type": "multihead_attention", "alibi": True, "qk_ln": False, "no_bias": True}
    for key, value in usual.items():
        if options.get(key, value) != value:
            raise f.error(
                f"{key} = {quote(options[key])} is not read, {quote(value)} alone; "
                "describe the model in a TOML file"
            )
    return {
        **shapes,
        "ffn_size": hidden * f.size("expansion_ratio"),
        "max_sequence_length": f.size("max_seq_len", "rows"),
        "dropout": f.dropout("resid_pdrop"),
        "written": {"clipped_qkv": bool(attention.get("clip_qkv"))},
    }


def bloom(f: Fields) -> Shapes:
    """BLOOM: no learned positions."""
    shapes = _trunk(f, "hidden_size", "n_layer", "n_head")
    return {
        **shapes,
        "ffn_size": 4 * shapes["hidden_size"],
        "dropout": f.dropout("hidden_dropout", "attention_dropout"),
    }


def falcon(f: Fields) -> Shapes:
    """Falcon: the old layer (one or all key-value heads) and the new one (groups)."""
    shapes = _trunk(f)
    hidden, heads = shapes["hidden_size"], shapes["num_heads"]
    new, parallel = f.flag("new_decoder_architecture"), f.flag("parallel_attn")
    kv_heads = 1 if f.flag("multi_query") else heads
    broadcast = {"key_copies": "never", "fused_since": 99, "exact_attention": "all"}
    written: Shapes = {"key_copies": "always"} if new else broadcast if kv_heads != heads else {}
    # the old parallel layer feeds attention and feed-forward from one norm
    norms = f.size_or(2 if new else 1, "num_ln_in_parallel_attn") if parallel else 2
    return {
        **shapes,
        **_biases(f.flag("bias")),
        "num_kv_heads": _kv_heads(f, heads, "num_kv_heads") if new else kv_heads,
        "ffn_size": f.size_or(4 * hidden, "ffn_hidden_size"),
        "max_sequence_length": f.size("max_position_embeddings", "rows"),
        "norms_per_layer": 2 if norms == 2 else 1,
        "activation": f.activation("activation"),
        "position": "alibi" if f.flag("alibi") else "rope",
        "parallel_residual": new or parallel,
        "written": written,
        "dropout": f.dropout("hidden_dropout", "attention_dropout"),
    }


def t5(f: Fields) -> Shapes:
    """T5: encoder and decoder stacks with a relative position bias."""
    shapes = _trunk(f, "d_model", "num_layers", "num_heads")
    value = f.raw("feed_forward_proj")
    name = value.removeprefix("gated-") if isinstance(value, str) else ""
    if not (activation := parse_activation(name)):
        raise f.error(f"feed_forward_proj = {quote(value)} is not known; use relu or gated-gelu")
    return {
        **shapes,
        "num_decoder_layers": f.size_or(shapes["num_layers"], "num_decoder_layers", "layers"),
        "ffn_size": f.size("d_ff"),
        "gated_mlp": name != value,
        "activation": activation,
        "num_relative_buckets": f.size("relative_attention_num_buckets", "experts"),
        "dropout": f.dropout("dropout_rate"),
    }
