"""Feed-forward: dense layers and routed experts."""

from dataclasses import replace

from planner.cost.operators.sizes import FP32, Operators, Sizes
from planner.describe.model.block import Gemm, Pointwise, Saved, Split
from planner.describe.model.shapes import Experts
from planner.describe.model.weight_blocks import shared_size

_WRITTEN_OUT = {"": 1, "gelu_new": 4, "gelu_fast": 7}
"""Tensors that autograd saves for an activation besides its output: the input, or every operand of
its multiplications if it is not one kernel (transformers 5.23, activations.py)."""


def dense(sizes: Sizes, width: int) -> Operators:
    """Operators of a layer's dense feed-forward.

    Counted: both GEMMs, the activation, bytes per token saved for backward. Left out: the
    norm before. Korthikanti et al. 2022, arXiv:2205.05198, section 4.1; activations.md#activations.
    """
    size = sizes.product_input * sizes.model.hidden_size
    entering = Saved("mlp.input", size, "gathered", input_of=("gate", "up"), for_weights=1.0)
    products = _products(sizes, width, "mlp", until_ffn=True)
    # with one norm for both, attention saves the input
    saved = () if sizes.shares_norm else (entering,)
    return Operators(saved=saved) + products.recomputed_with("mlp")


def routed(sizes: Sizes, experts: Experts) -> Operators:
    """Operators of an expert layer: router, dispatch, routed experts and shared expert.

    Counted: GEMMs of top_k experts per token, copies to the experts' order and back, saved bytes
    per token. Left out: uneven routing (`expert_load`). compute.md#matrix-products.
    """
    h, e = sizes.model.hidden_size, sizes.element
    all_experts = sizes.kernels.transformers_blocks and sizes.model.written.all_experts
    k = experts.num_experts if all_experts else experts.top_k
    first = 2 if sizes.model.gated_mlp else 1
    width = k * experts.ffn_size
    activation = _activation(sizes, width, "expert.activation", "expert", until_ffn=True)
    routing, moved = FP32 * experts.num_experts, e * h * (2 + 3 * k)
    num = experts.num_experts
    exact = sizes.kernels.transformers_blocks and sizes.model.written.exact_router
    outside = Saved("mlp.input", e * h, "gathered", input_of=("gate", "up"), for_weights=1.0)
    outside = replace(outside, recomputed_with=("layernorm",))
    experts_operators = Operators(
        gemms=(
            Gemm("router", num, h, quantizable=False),
            Gemm("expert.up", first * experts.ffn_size, h, "column", 0, num, k),
            Gemm("expert.down", h, experts.ffn_size, "row", 0, num, k),
        ),
        pointwise=(
            # the cast of the saved input is not recomputed with it
            replace(activation.pointwise[0], recomputed_with=("moe_act",)),
            *activation.pointwise[1:],
            Pointwise("router", 6 * routing, 6 * routing, num_kernels=6),
            # copy every token to its experts' order and back
            Pointwise("dispatch", moved, moved, num_kernels=8),
            *_sort(sizes, e * h * 3 * k),
        ),
        saved=(
            Saved("router", 3 * routing + FP32 * h * exact, "gathered"),
            *_dispatched(sizes, e * h * k),
            activation.saved[0],
            replace(activation.saved[1], recomputed_with=("moe_act",)),
        ),
    )
    # the shared expert reads the same input as the routed ones
    if shared := shared_size(experts):
        experts_operators += _products(sizes, shared, "shared_expert").recomputed_with(
            "shared_experts"
        )
    return Operators(saved=(outside,)) + experts_operators.recomputed_with("moe")


def _sort(sizes: Sizes, moved: float) -> tuple[Pointwise, ...]:
    """Second sort, by local expert, of tokens of an all-to-all (Megatron-LM's token_dispatcher)."""
    if sizes.kernels.transformers_blocks:
        return ()
    once = sizes.framework.communication.experts_once_per_node
    return (Pointwise("dispatch.sort", moved, moved, num_kernels=0, except_spread=once),)


def _products(sizes: Sizes, width: int, name: str, *, until_ffn: bool = False) -> Operators:
    """Both GEMMs and the activation between them; the caller counts the input."""
    h, first = sizes.model.hidden_size, 2 if sizes.model.gated_mlp else 1
    gemms = (Gemm(f"{name}.up", first * width, h, "column"), Gemm(f"{name}.down", h, width, "row"))
    activation = _activation(sizes, width, f"{name}.activation", until_ffn=until_ffn)
    return Operators(gemms=gemms) + activation


def _activation(
    sizes: Sizes, width: float, name: str, split: Split = "sharded", *, until_ffn: bool
) -> Operators:
    """Activation: its inputs as saved, and its output, which is the input of the down GEMM."""
    e, gated, fused = sizes.element, sizes.model.gated_mlp, sizes.fuses_activation
    if gated:
        forward, backward = (3, 5) if fused else (5, 8)
        # gate, up, and the activated gate where not fused
        unfused = sizes.model.written.gate_tensors if sizes.kernels.transformers_blocks else 3
        saved_tensors = 2 if fused else unfused
    else:
        forward, backward = (2, 3) if fused else (4, 5)
        # ReLU keeps its result, which is the input of the down GEMM unless it is dropped out (T5)
        keeps_input = sizes.model.activation != "relu" or bool(sizes.model.num_decoder_layers)
        written = sizes.model.written.activation if sizes.writes_activation else ""
        saved_tensors = _WRITTEN_OUT[written] * keeps_input
    kernels = 1 if fused else 2
    operators = [Pointwise(name, forward * e * width, backward * e * width, split, kernels)]
    narrow = sizes.activation_input
    if narrow < e:
        # one kernel casts it to the narrow format, another casts it back
        moved = saved_tensors * (e + narrow) * width
        operators.append(Pointwise(f"{name}.input", moved, moved, split))
    entering = Saved(f"{name}.input", saved_tensors * narrow * width, split, until_ffn=until_ffn)
    leaving = Saved(f"{name}.output", sizes.product_input * width, split, until_ffn=until_ffn)
    leaving = replace(leaving, input_of=("down",), for_weights=1.0)
    return Operators(pointwise=tuple(operators), saved=(entering, leaving))


def _dispatched(sizes: Sizes, size: float) -> tuple[Saved, ...]:
    """Saved tokens in the experts' order, and tensors saved to weight them by router scores."""
    if sizes.kernels.scores_before_experts:
        exact = size * FP32 / sizes.element
        return (Saved("expert.input", size + exact, "dispatched"),)
    entering = Saved("expert.input", size * sizes.product_input / sizes.element, "dispatched")
    entering = replace(entering, input_of=("gate", "up"), for_weights=1.0)
    if sizes.kernels.scores_inside_experts:
        return (entering,)
    return (entering, Saved("expert.output", size, "residual"))
