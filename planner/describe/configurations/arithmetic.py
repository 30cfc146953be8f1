"""Arithmetic: sums and products of whole numbers, which scripts and Python files write out."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Literal

__all__ = ["arithmetic", "evaluate_integer", "parsed"]

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_LARGEST = 10**15


def arithmetic(text: str) -> int | None:
    """The value [1] of a sum or a product of whole numbers; None where it is another thing.

    Counted: + - * and division, rounded down as a shell does. Left out: powers, names, reals.
    Definition.

    >>> arithmetic("8 * 40"), arithmetic("2 ** 999"), arithmetic("1 / 0")
    (320, None, None)
    """
    try:
        tree = parsed(text.strip(), "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return evaluate_integer(tree.body) if isinstance(tree, ast.Expression) else None


def parsed(text: str, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """The tree of a text that may be Python; what Python only warns of is nobody's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(text, "<text>", mode, ast.PyCF_ONLY_AST)


def evaluate_integer(node: ast.expr) -> int | None:
    """The value [1] of an expression, as `arithmetic`.

    Counted, left out: as there. Definition.

    >>> evaluate_integer(ast.parse("5 * 8", mode="eval").body)
    40
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value if abs(node.value) <= _LARGEST else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = evaluate_integer(node.left), evaluate_integer(node.right)
    if left is None or right is None:
        return None
    if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv):
        return None
    number = _OPERATIONS[type(node.op)](left, right)
    return number if abs(number) <= _LARGEST else None
