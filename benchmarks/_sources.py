"""The code and the operations of a model: its lines, its tokens, its flops."""

import ast
import io
import tokenize

import equinox as eqx
import jax
import jax.extend.core as jex


def definitions(text):
    """Return the source of each class and function of a file, by name."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            rows = text.splitlines()[first - 1 : node.end_lineno]
            found[node.name] = "\n".join(rows)
    return found


def needed(name, texts):
    """Return the sources of a definition and of those that it names."""
    names, todo = {}, [name]
    while todo:
        one = todo.pop()
        if one in texts and one not in names:
            names[one] = texts[one]
            tree = ast.parse(texts[one])
            todo += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [*dict.fromkeys(text for one, text in texts.items() if one in names)]


def size(texts):
    """Count the lines and tokens of code, without comments and docstrings."""
    lines = tokens = 0
    aside = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)
    aside += (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for text in texts:
        ignored = set()
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if named and ast.get_docstring(node):
                first = node.body[0]
                ignored |= set(range(first.lineno, first.end_lineno + 1))
        found = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in aside and token.start[0] not in ignored
        ]
        tokens += len(found)
        lines += len({n for t in found for n in range(t.start[0], t.end[0] + 1)})
    return lines, tokens


def flops(model, inputs):
    """Return the operations that XLA counts in one call, and the outputs.

    Loops are unrolled, since XLA counts the body of a loop once.
    """
    arrays, rest = eqx.partition((model, inputs), eqx.is_array)

    def call(arrays):
        model, inputs = eqx.combine(arrays, rest)
        return model(*inputs)

    with jax.disable_jit():
        jaxpr = jax.make_jaxpr(call)(arrays)
    leaves = jax.tree.leaves(arrays)
    program = jax.jit(jex.jaxpr_as_fun(jaxpr)).lower(*leaves).compile()
    return int(program.cost_analysis()["flops"]), program(*leaves)
