"""Puts charges into a parsed chat template, where the sandbox would not hear of the work otherwise.

The sandbox calls it between parsing and compiling.

INVARIANT: what the template puts out does not change; loops, macros, comparisons, slices, concatenations and
lists that it writes down all pass by the sandbox's charges.
"""

# ruff: noqa: N802 (the library calls visitors by the names of nodes)

from __future__ import annotations

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from asyncpage.text.template_budget import CHARACTERS_A_UNIT


class Meter(NodeTransformer):
    """The names that it calls are attributes of the sandbox: `spend`, `weighed`, `sized` and `concatenated`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """Every turn is charged with its constant text; a filtered loop's test also for turns that it skips."""
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_call("spend", nodes.Const(1)), node.test)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("concatenated", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        # Beside a constant only the outside of the other side is looked at.
        name = "weighed" if sum(not isinstance(side, nodes.Const) for side in sides) > 1 else "sized"
        node.expr, *others = (side if isinstance(side, nodes.Const) else _call(name, side) for side in sides)
        for operand, other in zip(node.ops, others, strict=True):
            operand.expr = other
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _call("sized", node.node)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        if node.ctx != "load":  # names that are assigned to
            return node
        return self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._literal(node, [part for item in node.items for part in (item.key, item.value)])

    def _literal(self, node: nodes.Expr, parts: list[nodes.Expr]) -> nodes.Expr:
        self.generic_visit(node)
        return node if all(isinstance(part, nodes.Const) for part in parts) else _call("weighed", node)


def _charge(body: list[nodes.Node]) -> nodes.ExprStmt:
    text = sum(len(data.data) for node in body for data in _constant_texts(node))
    return nodes.ExprStmt(_call("spend", nodes.Const(1 + text // CHARACTERS_A_UNIT)))


def _constant_texts(node: nodes.Node) -> list[nodes.TemplateData]:
    own = [node] if isinstance(node, nodes.TemplateData) else []
    return own + list(node.find_all(nodes.TemplateData))


def _call(name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)
