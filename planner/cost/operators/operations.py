"""Operations: FLOP of GEMMs and attention."""

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int
from planner.describe.model.block import Attention, Block
from planner.describe.workload import Workload


def attention_flop(
    attention: Attention, queries: ArrayLike, keys: ArrayLike, *, skips_masked: bool
) -> Float:
    """Forward FLOP of attention over all heads, `queries` tokens against `keys` tokens [FLOP].

    Counted: both GEMMs, 2 s_q s_k (d_qk + d_v) per head; with `skips_masked` half of the keys
    under a causal mask, w - w^2 / 2 s_k within a window w; chunks as sequences of their own. Left
    out: softmax. Dao 2023, arXiv:2307.08691, section 4; compute.md#attention.
    """
    reach: Float = attention.keys * np.asarray(keys, dtype=float)
    visible = np.minimum(reach, attention.window) if attention.window else reach
    if attention.window and attention.chunked:
        rest = reach % attention.window
        reach = visible = ((reach - rest) * attention.window + rest**2) / reach
    if attention.causal and skips_masked:
        visible = visible - visible**2 / (2 * reach)
    width = attention.qk_dim + attention.v_dim
    return 2.0 * attention.queries * np.asarray(queries) * visible * width * attention.num_heads


def sequence_flop(
    attention: Attention, tokens: ArrayLike, workload: Workload, *, skips_masked: bool
) -> Float:
    """Forward FLOP of attention over all heads, on `tokens` of a workload's sequences [FLOP].

    Counted: `attention_flop` of whole sequences, or of documents that attend only to themselves,
    each by its share of the tokens. Left out: softmax. Llama 3, arXiv:2407.21783, section 3.2;
    compute.md#attention.
    """
    if not workload.documents:
        return attention_flop(
            attention, tokens, workload.sequence_length, skips_masked=skips_masked
        )
    keys, times = np.asarray(workload.documents, dtype=float).T
    tokens_of = keys * times
    share = tokens_of / tokens_of.sum()
    each = attention_flop(attention, share, keys, skips_masked=skips_masked)
    return np.asarray(tokens, dtype=float) * each.sum()


def model_flop(
    blocks: tuple[Block, ...],
    workload: Workload,
    kept_share: ArrayLike = 1.0,
    tokens: int | Int | None = None,
) -> Float:
    """Model FLOP of one step: forward and backward, without recompute [FLOP].

    `kept_share`: share of routed tokens that experts process; `tokens` of the step, if not those of
    the workload. Counted: GEMMs (6 per weight and
    token, without padding and dropped tokens) and full attention, 12 s h per token and layer, or
    the square of every document. Left out: everything else. PaLM (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B), nanoGPT; compute.md#operations-and-utilisation.
    """
    tokens = workload.tokens_per_step if tokens is None else tokens
    routed_share = np.asarray(kept_share, dtype=float)
    total = np.zeros_like(routed_share)
    for block in blocks:
        for gemm in block.gemms:
            passes = 1 + gemm.input_gradient + gemm.weight_gradient
            visits = gemm.top_k * routed_share if gemm.top_k else 1.0
            products = gemm.rows * max(gemm.copies, 1) * gemm.n * gemm.k * visits
            total = total + block.count * 2.0 * passes * products * tokens
        for attention in block.attentions:
            flop = sequence_flop(attention, tokens, workload, skips_masked=False)
            total = total + block.count * 3.0 * flop
    return total
