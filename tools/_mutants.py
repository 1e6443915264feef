"""Which mutants there are: cosmic-ray's operators and two of our own, and a sample.

A mutant is one small change of one source file. Programs for JAX have few operators
and many calls, so to cosmic-ray's operators (numbers, comparisons, arithmetic, `not`,
loops, decorators, exceptions) are added: a call or `raise` that stands alone is left
out, and a keyword argument is left out.
"""

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names


class Mutant(NamedTuple):
    """One change: where, by which operator, and the file's text after it."""

    file: str
    line: int
    column: int
    operator: str
    text: str


def sample(files: list[Path], seed: int) -> Iterator[Mutant]:
    """Mutants of the files in a random order, one for each place, of any operator.

    So the eleven ways to replace a `+` do not count for more than a missing check. The
    order is that of the seed: the first twenty are a sample, the first forty another.
    """
    draw = random.Random(seed)
    places: dict[tuple[Path, int, int], list] = {}
    for file in files:
        for line, column, operator, make in everything(file.read_text()):
            places.setdefault((file, line, column), []).append((operator, make))
    for place in draw.sample(sorted(places), len(places)):
        file, line, column = place
        operator, make = draw.choice(places[place])
        text = make()
        if text and _differs(file.read_text(), text):
            yield Mutant(str(file), line, column, operator, text)


def everything(source: str) -> Iterator[tuple]:
    """All mutants of a source text as (line, column, operator, how to make it)."""
    tree = ast.parse(source)
    skipped = list(_skipped(tree))
    for line, column, operator, make in [*_cosmic_ray(source), *_ours(source, tree)]:
        if not any(first <= (line, column) < last for first, last in skipped):
            yield line, column, operator, make


def _cosmic_ray(source: str) -> Iterator[tuple]:
    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():  # needs names of variables, which differ by file
            continue
        places = [p for node in nodes for p in kind().mutation_positions(node)]
        for i, ((line, column), _) in enumerate(places):
            short = name.removeprefix("core/")
            yield line, column, short, lambda k=kind, i=i: mutate_code(source, k(), i)


def _ours(source: str, tree: ast.AST) -> Iterator[tuple]:
    lines = source.splitlines(keepends=True)
    starts = [0]
    for text in lines:
        starts.append(starts[-1] + len(text.encode()))

    def cut(first: tuple[int, int], last: tuple[int, int], put: str = "") -> str:
        a, b = starts[first[0] - 1] + first[1], starts[last[0] - 1] + last[1]
        data = source.encode()
        return (data[:a] + put.encode() + data[b:]).decode()

    for node in ast.walk(tree):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if alone or isinstance(node, ast.Raise | ast.AugAssign):
            first, last = _span(node)
            make = lambda f=first, t=last: cut(f, t, "pass")  # noqa: E731
            yield *first, "LeaveOutStatement", make
        if isinstance(node, ast.Call):
            parts = sorted([_span(a) for a in [*node.args, *node.keywords]])
            for keyword in node.keywords:
                first, last = _span(keyword)
                i = parts.index((first, last))
                begin = parts[i - 1][1] if i else first
                end = parts[1][0] if not i and len(parts) > 1 else last
                make = lambda f=begin, t=end: cut(f, t)  # noqa: E731
                yield *first, "LeaveOutKeyword", make


def _span(node) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _skipped(tree: ast.AST) -> Iterator[tuple]:
    """Yield the places of types, where mutants fail on import or change no value.

    And `strict=` of `zip`, which repeats what the lines before it see to.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield _span(node)
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                yield _span(getattr(node, name))
        is_instance = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_instance and node.func.id in ("isinstance", "issubclass"):
            yield _span(node.args[1])


def _differs(before: str, after: str) -> bool:
    try:
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    except SyntaxError:
        return False
