"""Shapes: the sizes of an architecture, checked for consistency."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, PositiveWidth, Width
from planner.describe.model.convolutional import Convolutional
from planner.describe.model.traced_file import Traced

_MAX_ROWS = 1_000_000_000


WrittenActivation = Literal["", "gelu_new", "gelu_fast"]
NormName = Literal["layernorm", "layernorm-nobias", "layernorm-nonparametric", "rmsnorm"]
QkNorm = Literal["none", "head", "full", "unweighted"]


class Experts(Description):
    """Mixture-of-experts feed-forward layers."""

    num_experts: int = Field(ge=2, le=65536)
    """Routed experts per expert layer."""
    top_k: int = Field(ge=1, le=1024)
    """Experts per token."""
    num_groups: int = Field(default=1, ge=1, le=65536)
    """Groups of experts; the router picks `top_groups` of them first (DeepSeek's n_group)."""
    top_groups: int = Field(default=1, ge=1, le=65536)
    """Groups per token (DeepSeek's topk_group)."""
    ffn_size: PositiveWidth
    """Width of one expert."""
    num_shared: int = Field(default=0, ge=0, le=1024)
    """Shared experts of width `ffn_size`, visited by every token."""
    shared_ffn_size: Width = 0
    """Total width of the shared expert if not num_shared * ffn_size; else 0."""
    shared_gate: bool = False
    """Whether the shared expert has its own sigmoid gate (Qwen2-MoE)."""
    router_bias: bool = False
    """Whether the router has one learned bias per expert (gpt-oss)."""
    expert_bias: bool = False
    """Whether expert projections have biases (gpt-oss)."""
    num_dense_layers: int = Field(default=0, ge=0, le=100_000)
    """Layers whose feed-forward is dense (width `Shapes.ffn_size`)."""
    interleaved: bool = False
    """Whether dense layers alternate with expert layers; else they come first (Llama 4)."""

    @model_validator(mode="after")
    def _check(self) -> Experts:
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k = {self.top_k} exceeds num_experts = {self.num_experts}; lower it"
            )
        if self.top_groups > self.num_groups or self.num_experts % self.num_groups:
            raise ValueError(
                f"num_groups = {self.num_groups} must divide num_experts = {self.num_experts} and "
                f"be at least top_groups = {self.top_groups}; correct one of them"
            )
        return self


class LatentAttention(Description):
    """Multi-head latent attention (DeepSeek-V2/V3)."""

    q_lora_rank: Width
    """Rank of the query compression; 0: queries are not compressed."""
    kv_lora_rank: PositiveWidth
    """Rank of the key-value compression."""
    qk_nope_head_dim: PositiveWidth
    """Head width without rotary embedding."""
    qk_rope_head_dim: PositiveWidth
    """Head width with rotary embedding."""
    v_head_dim: PositiveWidth
    """Head width of the values."""


class Vision(Description):
    """Patch embedding of a vision transformer."""

    image_size: int = Field(ge=1, le=100_000)
    """Edge of the square image [pixels]."""
    patch_size: int = Field(ge=1, le=100_000)
    """Edge of a patch [pixels]."""
    num_channels: int = Field(default=3, ge=1, le=1000)
    """Image channels."""


class Written(Description):
    """How transformers implements a family's blocks, as far as it changes saved tensors."""

    activation: WrittenActivation = ""
    """Activation computed in elementary operations; empty: in one kernel."""
    exact_norm_weight: bool = False
    """Whether RMSNorm multiplies by its weight before rounding to 16 bits (Gemma, OLMo 2)."""
    joined_qkv: bool = False
    """Whether queries, keys and values are views of one GEMM's output (GPT-NeoX, Phi-3)."""
    joined_rotary: bool = False
    """Whether rotated and unrotated parts of queries are concatenated, in another memory order."""
    key_copies: Literal["eager", "always", "never"] = "eager"
    """Keys and values repeated for every head: by eager attention, always or never (Falcon)."""
    fused_since: float = Field(default=0.0, ge=0, le=99)
    """First release whose attention is fused by default, such as 4.41; 99: none."""
    exact_attention: Literal["softmax", "none", "scores", "all"] = "softmax"
    """Part of eager attention in fp32: softmax; none (BERT); scores as well (GPT-J); or all."""
    exact_loss: bool = True
    """Whether logits are cast to fp32 for the loss; False: BERT, RoBERTa."""
    clipped_qkv: bool = False
    """Whether queries, keys and values are clamped (OLMo, MPT)."""
    exact_router: bool = False
    """Whether the router reads a copy of its input in fp32 (DeepSeek-V3, GLM-4.5)."""
    gate_tensors: int = Field(default=3, ge=0, le=12)
    """Tensors that an unfused gated activation saves besides its output (gpt-oss: 6)."""
    all_experts: bool = False
    """Whether every token passes through all experts, weighted by zero or not (Llama 4)."""
    norm_saved_bytes: int = Field(default=0, ge=0, le=100)
    """Bytes per element that an elementary LayerNorm saves (Cohere, OLMo); 0: one kernel."""


class Shapes(Description):
    """An architecture. Sizes are those of the checkpoint, without padding."""

    name: str = Field(min_length=1, max_length=200)
    """Name on the command line."""
    family: str = Field(min_length=1, max_length=60)
    """Family; Hugging Face's `model_type` if there is one."""
    kind: Literal["decoder", "encoder", "encoder-decoder", "vision", "convolutional", "traced"] = (
        "decoder"
    )
    """decoder: causal; encoder: masked language model; vision: ViT; traced: a user's module."""
    source: str = ""
    """Where the shapes were read."""
    note: str = ""
    """Remarks for readers."""
    num_layers: int = Field(default=0, ge=0, le=100_000)
    """Transformer layers (encoder layers of an encoder-decoder)."""
    num_decoder_layers: int = Field(default=0, ge=0, le=100_000)
    """Decoder layers of an encoder-decoder, each with cross attention; 0 otherwise."""
    decoder_share: float = Field(default=1.0, gt=0, le=100)
    """Decoder tokens / encoder tokens of an encoder-decoder; sequences count encoder tokens."""
    hidden_size: Width = 0
    """Width of the residual stream."""
    num_heads: int = Field(default=0, ge=0, le=1_000_000)
    """Attention heads (queries)."""
    num_kv_heads: int = Field(default=0, ge=0, le=1_000_000)
    """Key-value heads; equal to num_heads without grouped queries."""
    head_dim: int = Field(default=0, ge=0, le=1_000_000)
    """Width of one head; need not be hidden_size / num_heads."""
    ffn_size: Width = 0
    """Width of the dense feed-forward layer."""
    vocab_size: int = Field(default=0, ge=0, le=_MAX_ROWS)
    """Vocabulary rows of the embedding."""
    max_sequence_length: int = Field(default=0, ge=0, le=_MAX_ROWS)
    """Longest sequence of the position scheme; 0: not stated."""
    embedding_size: Width = 0
    """Width of the word embedding if a projection follows (OPT-350m); 0 otherwise."""
    tied_embeddings: bool = False
    """Whether the output projection is the embedding."""
    gated_mlp: bool = False
    """Whether the feed-forward has a gate (SwiGLU, GeGLU): three matrices instead of two."""
    activation: Literal["gelu", "relu", "silu", "squared-relu"] = "gelu"
    """Activation of the feed-forward; squared-relu is the square of ReLU (Nemotron-4)."""
    norm: NormName = "layernorm"
    """Normalisation; layernorm-nonparametric has no weights (OLMo)."""
    norms_per_layer: int = Field(default=2, ge=1, le=8)
    """Normalisations of one layer (4 for Gemma 2, 1 for the old Falcon)."""
    final_norm: bool = True
    """Whether a normalisation precedes the output projection."""
    embedding_norm: bool = False
    """Whether a normalisation follows the embedding (BLOOM, BERT)."""
    qk_norm: QkNorm = "none"
    """Norm of queries and keys: per head (Qwen3), over all heads (OLMo 2), or without weights."""
    position: Literal["learned", "rope", "alibi", "relative", "none"] = "rope"
    """Position scheme."""
    num_position_rows: int = Field(default=0, ge=0, le=_MAX_ROWS)
    """Rows of the learned position table (OPT has two more than its sequence)."""
    num_token_types: int = Field(default=0, ge=0, le=1000)
    """Rows of the token type table (BERT)."""
    num_relative_buckets: int = Field(default=0, ge=0, le=100_000)
    """Buckets of the relative position bias (T5)."""
    qkv_bias: bool = False
    """Whether query, key and value projections have biases."""
    out_bias: bool = False
    """Whether the attention output projection has a bias."""
    mlp_bias: bool = False
    """Whether the feed-forward matrices have biases."""
    head_bias: bool = False
    """Whether the output projection has a bias (GPT-J, Phi)."""
    attention_sinks: bool = False
    """Whether each head has a learned sink logit (gpt-oss)."""
    parallel_residual: bool = False
    """Whether attention and feed-forward read the same input (GPT-NeoX, Falcon)."""
    pooler: bool = False
    """Whether an encoder has a dense pooler (BERT, ViT)."""
    head_transform: bool = False
    """Whether a dense layer, an activation and a norm precede the output projection (BERT)."""
    output_head: bool = True
    """Whether a projection to the vocabulary follows (False for bare encoders and ViT)."""
    attention_softcap: bool = False
    """Whether attention scores pass a tanh (Gemma 2), which fused kernels lack."""
    logits_softcap: bool = False
    """Whether logits pass a tanh (Gemma 2)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability in training; 0: no masks are saved."""
    sliding_window: int = Field(default=0, ge=0, le=_MAX_ROWS)
    """Attention window of the windowed layers [tokens]; 0: none."""
    num_window_layers: int = Field(default=0, ge=0, le=100_000)
    """Number of windowed layers."""
    chunked_window: bool = False
    """Whether windows are chunks, in which tokens attend to each other only (Llama 4)."""
    experts: Experts | None = None
    """Mixture of experts; None: dense."""
    latent_attention: LatentAttention | None = None
    """Latent attention (MLA); None: separate keys and values."""
    vision: Vision | None = None
    """Patch embedding; None in language models."""
    written: Written = Written()
    """How transformers implements its blocks."""
    convolutional: Convolutional | None = None
    """Stages of a convolutional network; None in transformers."""
    traced: Traced | None = None
    """Traced module of a user; None otherwise."""
    reported_params: int = Field(default=0, ge=0, le=10**18)
    """Parameter count that the model's own software prints, if different; 0 otherwise."""
    reported_how: str = ""
    """Why the reported count differs."""

    @property
    def counts_samples(self) -> bool:
        """True if a token is a whole sample: convolutional networks, traced modules."""
        return self.convolutional is not None or self.traced is not None

    @model_validator(mode="after")
    def _check(self) -> Shapes:
        if self.counts_samples:
            return self
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} = {getattr(self, field)} must be at least 1; state it")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads = {self.num_kv_heads} must divide num_heads = {self.num_heads}; "
                "correct one of them"
            )
        if self.ffn_size < 1 and self.experts is None:
            raise ValueError("ffn_size = 0 needs experts; state the feed-forward width")
        if self.experts and self.experts.num_dense_layers > self.num_layers:
            raise ValueError(
                f"num_dense_layers = {self.experts.num_dense_layers} exceeds "
                f"num_layers = {self.num_layers}; lower it"
            )
        if self.kind != "vision" and self.vocab_size < 1:
            raise ValueError(f"vocab_size = {self.vocab_size} must be at least 1; state it")
        if self.kind == "vision" and self.vision is None:
            raise ValueError("a vision model needs [vision]; add patch and image size")
        return self
