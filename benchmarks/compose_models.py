"""How many lines and flops do composed models take, beside plain Equinox?

The models are those of `docs/composing.md` as they stand there, and of
`tests/support/plain_models.py`: the same model as one writes it with Equinox alone.
Lines are those of code (no docstrings, no empty ones), with what a model is made of:
the classes and functions of the same file that it names. Flops are what XLA counts of
one call, loops unrolled, as XLA counts what stands in a loop once. Parameters are drawn
from the same key on both sides, and `difference` is the largest between the outputs.
"""

import ast
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import plain_models  # noqa: E402
from support.page_models import definitions, sources  # noqa: E402

MODELS = {**plain_models.MODELS, **plain_models.STATEFUL}
QUICK = {"only": ("transformer_block",)}


def built(name, make):
    """A model, and its inputs; a state is one of them."""
    _, inputs = MODELS[name]
    if name in plain_models.STATEFUL:
        model, state = eqx.nn.make_with_state(make)(jr.key(0))
        return model, (inputs(), state)
    return make(jr.key(0)), (inputs(),)


def flops(model, inputs):
    """The operations that XLA counts in one call, and what it gives first."""
    arrays, rest = eqx.partition((model, inputs), eqx.is_array)

    def call(arrays):
        model, inputs = eqx.combine(arrays, rest)
        return model(*inputs)

    with jax.disable_jit():  # which unrolls loops
        jaxpr = jax.make_jaxpr(call)(arrays)
    program = jax.jit(jex.jaxpr_as_fun(jaxpr)).lower(*jtu.tree_leaves(arrays)).compile()
    y, *_ = program(*jtu.tree_leaves(arrays))
    return program.cost_analysis()["flops"], y


def lines(name, texts):
    """The lines of code of a definition, and of those that it names."""
    needed, todo = set(), [name]
    while todo:
        one = todo.pop()
        if one in texts and one not in needed:
            needed.add(one)
            tree = ast.parse(texts[one])
            todo += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return sum(_code(texts[one]) for one in needed)


def _code(text):
    """How many lines of a source have code on them."""
    tree, ignored = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first = node.body[0]
            ignored |= set(range(first.lineno, first.end_lineno + 1))
    rows = enumerate(text.splitlines(), 1)
    return sum(1 for i, row in rows if row.strip() and i not in ignored)


def plain_sources():
    text = Path(plain_models.__file__).read_text()
    return {
        node.name: ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def main(run):
    composed, plain = sources(), plain_sources()
    for name in run.chosen(MODELS):
        make, _ = MODELS[name]
        ours, y = flops(*built(name, definitions()[name]))
        theirs, z = flops(*built(name, make))
        run.row(
            case=name,
            lines=lines(name, composed),
            plain_lines=lines(make.__name__, plain),
            flops=int(ours),
            plain_flops=int(theirs),
            difference=float(jnp.max(jnp.abs(y - z))),
        )
