"""Small mistakes to make in a module, one at a time, each as a replacement of a piece of its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARISONS: dict[type, tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type, type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
PAIRS = ("min max", "any all", "floor ceil", "minimum maximum", "amin amax", "argmin argmax", "zeros ones", "mean sum")
PAIRS += (
    "zeros_like ones_like",
    "new_zeros new_ones",
    "clamp_min clamp_max",
    "union intersection",
    "startswith endswith",
)
NAMES = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}
SKIPPED = ("annotation", "returns", "decorator_list", "type_comment")  # fields without code that runs


@dataclass(frozen=True)
class Mutation:
    """The bytes [start, end) of the module become `text`; `lines` are those that run it, none if the import does."""

    line: int
    kind: str
    start: int
    end: int
    text: str
    lines: tuple[int, ...]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """Every mutation of a module, in the order of the text.

    >>> [m.apply(b"def f(a): return a < 2").decode() for m in mutations(b"def f(a): return a < 2")][0]
    'def f(a): return (a <= 2)'
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def found() -> Iterator[Mutation]:
        for node, statement, function in visited(ast.parse(source), None, None):
            for kind, place, text in changes(node, function):
                span = place if hasattr(statement, "body") else statement  # of an `if` or a loop not what is inside
                lines = {statement.lineno, *range(span.lineno, span.end_lineno + 1)} if function else ()
                start = starts[place.lineno - 1] + place.col_offset
                end = starts[place.end_lineno - 1] + place.end_col_offset
                yield Mutation(place.lineno, kind, start, end, text, tuple(sorted(lines)))

    return [change for change in found() if change.apply(source) != source]


def visited(node: ast.AST, statement: ast.AST | None, function: ast.AST | None) -> Iterator[tuple]:
    """Nodes that run, each with its statement and the function (or lambda) that runs it."""
    if isinstance(node, ast.JoinedStr | ast.Assert) or ast.unparse(getattr(node, "test", node))[:13] == "TYPE_CHECKING":
        return
    if isinstance(node, ast.stmt):
        statement = node
    if statement is not None and hasattr(node, "end_lineno"):
        yield node, statement, function
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        inside = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body" else function
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in SKIPPED:
                yield from visited(child, statement, inside)


def changes(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[str, ast.AST, str]]:
    """Kind, node to replace, new text."""

    def with_(**fields: object) -> str:
        return f"({ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **fields}))})"

    def at(values: list, index: int, *new: object) -> list:
        return [*values[:index], *new, *values[index + max(len(new), 1) :]]

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for new in COMPARISONS[type(op)]:
                    yield "comparison", node, with_(ops=at(ops, i, new()))
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", node, with_(op=ARITHMETIC[type(op)]())
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", node, with_(op=ARITHMETIC[type(op)]())[1:-1]
        case ast.BoolOp(op=op):
            yield "and/or", node, with_(op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "sign or not removed", node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, str(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, repr(2 * value or 1.0)
        case ast.Name(id=name) if name in NAMES:
            yield "name", node, NAMES[name]
        case ast.Attribute(attr=name) if name in NAMES:
            yield "name", node, with_(attr=NAMES[name])
        case ast.Call(args=args, keywords=keywords):
            for i, (a, b) in enumerate(pairwise(args)):
                if type(a) is type(b) and not isinstance(a, ast.Constant | ast.Starred):
                    yield "arguments swapped", node, with_(args=at(args, i, b, a))
            for i, keyword in enumerate(keywords):
                if keyword.arg:
                    yield "argument dropped", node, with_(keywords=at(keywords, i))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, f"(not ({ast.unparse(test)}))"
    match node:
        case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call()):
            yield "statement dropped", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement dropped", node, "pass"
        case ast.Assign(targets=[ast.Name(id=name)]) if function and bound_before(function, name, node.lineno):
            yield "statement dropped", node, "pass"
        case ast.Return(value=value) if value and function and getattr(function, "returns", None):
            for argument in function.args.posonlyargs + function.args.args:
                if argument.annotation and ast.unparse(argument.annotation) == ast.unparse(function.returns):
                    yield "input returned", node, f"return {argument.arg}"


def bound_before(function: ast.AST, name: str, line: int) -> bool:
    """Whether a name has a value before this line of the function."""
    names = (n for n in ast.walk(function) if isinstance(n, ast.arg) or isinstance(getattr(n, "ctx", None), ast.Store))
    return any((getattr(n, "arg", None) or getattr(n, "id", None)) == name and n.lineno < line for n in names)
