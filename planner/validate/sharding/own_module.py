"""Own module: cut into stages, Linear layers split; needs torch alone, as folders hold a copy."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

_ELEMENTWISE_MODULES = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
_ELEMENTWISE = frozenset(
    (
        *(functional.relu, functional.gelu, functional.silu, functional.tanh, functional.sigmoid),
        *(torch.relu, torch.tanh, torch.sigmoid, torch.mul, operator.mul),
        *("relu", "tanh", "sigmoid", "mul"),
    )
)
"""Functions and methods after which each rank may keep its part of the columns."""
_STYLES: Mapping[str, Callable[[], Any]] = {
    "column": ColwiseParallel,
    "row": RowwiseParallel,
    "gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
}


class _Units(fx.Tracer):
    """Traces a module without looking into its units."""

    def __init__(self, units: Iterable[str]) -> None:
        super().__init__()
        self._units = frozenset(units)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self._units or super().is_leaf_module(
            m, module_qualified_name
        )


def _parts(module: nn.Module, units: list[str], starts: Iterable[str]) -> list[list[fx.Node]]:
    """Nodes of the module's graph, with a new part at each unit in `starts`."""
    parts: list[list[fx.Node]] = [[]]
    left = list(starts)
    for node in _Units(units).trace(module).nodes:
        if left and node.op == "call_module" and node.target == left[0]:
            left.pop(0)
            parts.append([])
        parts[-1].append(node)
    return parts


def _crossing(parts: list[list[fx.Node]], number: int) -> list[fx.Node]:
    """Values of the first `number` parts that later parts use."""
    later = set(chain(*parts[number:]))
    return [node for node in chain(*parts[:number]) if not later.isdisjoint(node.users)]


def no_stages(module: nn.Module, units: list[str]) -> str:
    """Reason why the module cannot be cut before each unit but the first; empty if it can."""
    if len(units) < 2:
        return "it has fewer than two units"
    try:
        parts = _parts(module, units, units)
    except Exception as error:
        return f"torch.fx cannot trace its forward ({' '.join(str(error).split())[:80]})"
    called = [node.target for part in parts for node in part if node.op == "call_module"]
    if [name for name in called if name in units] != units:
        return "its units do not run one after another, each once"
    for number, name in enumerate(units[1:], 2):
        if (count := len(_crossing(parts, number))) != 1:
            return f"{count} tensors, not one, enter {name}"
        if _parameters(module, parts[:number]) & _parameters(module, parts[number:]):
            return f"parameters are shared across {name}"
    return ""


def _parameters(module: nn.Module, parts: list[list[fx.Node]]) -> set[int]:
    nodes = [node for node in chain(*parts) if node.op == "call_module"]
    called = [module.get_submodule(str(node.target)) for node in nodes]
    return {id(parameter) for part in called for parameter in part.parameters()}


def make_stage(
    module: nn.Module, units: list[str], starts: list[str], index: int
) -> fx.GraphModule:
    """One stage of a module that is cut at the units in `starts`; names stay as they were."""
    parts = _parts(module, units, starts)
    graph, copies = fx.Graph(), {}
    for node in _crossing(parts, index):
        copies[node] = graph.placeholder(node.name)
    for node in parts[index]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    if index < len(parts) - 1:
        (sent,) = _crossing(parts, index + 1)
        graph.output(copies[sent])
    return fx.GraphModule(module, graph)


def linear_splits(module: nn.Module) -> dict[str, str]:
    """Linear layers by name: column and row in pairs, gathered alone; raises where fx cannot."""
    graph, kinds = fx.Tracer().trace(module), dict[fx.Node, str]()
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    uses = [id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)]
    linears = {
        node: linear
        for node in graph.nodes
        if node.op == "call_module"
        and type(linear := module.get_submodule(str(node.target))) is nn.Linear
        and calls.count(node.target) == uses.count(id(linear.weight)) == 1
    }
    for last in linears:
        between: set[fx.Node] = set()
        firsts = _sources(module, last.args[0], linears, between)
        users = {user for node in (*between, *firsts) for user in node.users}
        if firsts and users <= {last, *between} and kinds.keys().isdisjoint(firsts):
            kinds |= {**dict.fromkeys(firsts, "column"), last: "row"}
    widths = [linears[node].in_features for node, kind in kinds.items() if kind == "row"]
    alone = {node: linear.out_features for node, linear in linears.items() if node not in kinds}
    width = math.gcd(*widths) or max(alone.values(), default=1)
    kinds |= {node: "gathered" for node, columns in alone.items() if columns % width == 0}
    return {str(node.target): kinds[node] for node in linears if node in kinds}


def _sources(
    module: nn.Module, value: Any, linears: Mapping[fx.Node, nn.Linear], between: set[fx.Node]
) -> set[fx.Node]:
    """Linear layers that a value comes from through elementwise operations only; else none."""
    if value in linears:
        return {value}
    if not isinstance(value, fx.Node):
        return set()
    is_module = value.op == "call_module"
    if not (
        isinstance(module.get_submodule(str(value.target)), _ELEMENTWISE_MODULES)
        if is_module
        else value.target in _ELEMENTWISE
    ):
        return set()
    between.add(value)
    found = [_sources(module, node, linears, between) for node in value.all_input_nodes]
    return set().union(*found) if all(found) else set()


def split_width(module: nn.Module, splits: Mapping[str, str]) -> int:
    """Common divisor of the sizes that tensor parallelism divides."""
    sides = {n: "in_features" if kind == "row" else "out_features" for n, kind in splits.items()}
    return math.gcd(*(int(getattr(module.get_submodule(n), side)) for n, side in sides.items()))


def halve(module: nn.Module, splits: Mapping[str, str]) -> None:
    """Give the module the shapes of one of two tensor-parallel ranks, without their traffic."""
    for name, kind in splits.items():
        linear = module.get_submodule(name)
        axis = 1 if kind == "row" else 0
        for part, value in list(linear.named_parameters()):
            if axis == 0 or part == "weight":
                half = value.narrow(axis, 0, value.shape[axis] // 2).detach().clone()
                linear.register_parameter(part, nn.Parameter(half, value.requires_grad))
        if kind == "gathered":
            linear.register_forward_hook(lambda _, __, out: torch.cat((out, out), -1))


def tensor_parallel(module: nn.Module, mesh: DeviceMesh, splits: Mapping[str, str]) -> None:
    """Split the Linear layers that this module holds over the ranks of a mesh."""
    present = dict(module.named_modules())
    plan = {name: _STYLES[kind]() for name, kind in splits.items() if name in present}
    parallelize_module(module, mesh, plan)
