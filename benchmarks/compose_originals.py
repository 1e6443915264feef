"""How many lines and flops do published models of Equinox take, and composed ones?

The published ones are those of the examples of Equinox and diffrax, in notebooks at the
commits below. They are not part of this project: `--equinox FOLDER` and `--diffrax
FOLDER` name clones of the two, whose models are run as they stand there (einops must be
installed). Ours are in `benchmarks/_originals.py`.

Without a clone there are only the lines of ours. Lines are those with code on them, of
the model and of the classes and functions of the same file that it names; no comments,
docstrings, training, data or imports. Tokens are Python's, of the same text however its
lines are broken. Flops are what XLA counts of one call, loops unrolled. Parameters are
drawn from the same keys on both sides, and `difference` is the largest between outputs
(and states), beside the largest output.
"""

import __future__

import ast
import io
import json
import subprocess
import tokenize
import zlib
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from .compose_models import flops

COMMITS = {
    "equinox": "9336d820b2ef66b360fc6cb3611b3da5cefbb14d",
    "diffrax": "5ea5fcb05058bd22548300a10ea5ef5ce7fb75bb",
}
KEY = jr.PRNGKey(5)
LATENT = jr.fold_in(KEY, zlib.crc32(b"latent"))  # from which that node draws


def noise(*shape):
    return jr.normal(jr.key(3), shape)


def over_batch(model, *inputs):
    over = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    return over(*inputs)


BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
}
TEXT = {
    "token_ids": jnp.array([3, 7, 49, 0, 19, 0, 0]),
    "segment_ids": jnp.array([0, 0, 1, 1, 1, 1, 0]),
}
VIT = {
    "embedding_dim": 16,
    "hidden_dim": 24,
    "num_heads": 4,
    "num_layers": 3,
    "dropout_rate": 0.1,
    "patch_size": 4,
    "num_patches": 4,
    "num_classes": 10,
}
UNET = ((1, 8, 8), False, [1, 2], 16, 2, 8, 0.0, 2, [4])
MIXER = ((1, 8, 8), 4, 16, 32, 24, 3, 10.0)
ODE = {"data_size": 2, "hidden_size": 8, "latent_size": 3, "width_size": 8, "depth": 2}
T, Y = jnp.array(0.3), noise(1, 8, 8)


# By the name of ours: the repository and notebook, the names there, how both are made,
# and how both are called.
CASES = {
    "mnist_cnn": (
        ("equinox", "mnist", "CNN"),
        ((KEY,), {}),
        (lambda m, x: m(x), lambda m, x: m(x), (noise(1, 28, 28),)),
    ),
    "generator": (
        ("equinox", "deep_convolutional_gan", "Generator"),
        ((6, (64, 4, 1), KEY), {}),
        (over_batch, over_batch, (noise(3, 6, 1, 1),)),
    ),
    "discriminator": (
        ("equinox", "deep_convolutional_gan", "Discriminator"),
        (((64, 4, 1), KEY), {}),
        (over_batch, over_batch, (noise(3, 1, 64, 64),)),
    ),
    "vision_transformer": (
        ("equinox", "vision_transformer", "VisionTransformer"),
        ((), {**VIT, "key": KEY}),
        (lambda m, x: m(x, False, KEY), lambda m, x: m(x), (noise(3, 8, 8),)),
    ),
    "bert": (
        ("equinox", "bert", "BertClassifier"),
        ((BERT, 2, KEY), {}),
        (lambda m, x: m(x, False), lambda m, x: m(x), (TEXT,)),
    ),
    "mixer": (
        ("equinox", "score_based_diffusion", "Mixer2d"),
        (MIXER, {"key": KEY}),
        (lambda m, t, y: m(t, y), lambda m, t, y: m({"t": t, "y": y}), (T, Y)),
    ),
    "unet": (
        ("equinox", "unet", "UNet"),
        (UNET, {"key": KEY}),
        (lambda m, t, y: m(t, y), lambda m, t, y: m({"t": t, "y": y}), (T, Y)),
    ),
    "rnn": (
        ("equinox", "train_rnn", "RNN"),
        ((2, 1, 8), {"key": KEY}),
        (lambda m, x: m(x), lambda m, x: m(x), (noise(16, 2),)),
    ),
    "stateful": (
        ("equinox", "stateful", "Model"),
        ((KEY,), {}),
        (over_batch, over_batch, (noise(5, 3),)),
    ),
    "latent_ode": (
        ("diffrax", "latent_ode", "LatentODE"),
        ((), {**ODE, "key": KEY}),
        (
            lambda m, ts, ys: m.train(ts, ys, key=LATENT),
            lambda m, ts, ys: m({"ts": ts, "ys": ys}, key=KEY),
            (jnp.linspace(0.0, 3.0, 8), noise(8, 2)),
        ),
    ),
}
# What the notebooks take from elsewhere in them.
GLOBALS = {"vision_transformer": {"channels": 3}}


def notebook(folder, repository, name):
    """The code of a notebook at its commit."""
    path = f"{COMMITS[repository]}:docs/examples/{name}.ipynb"
    done = subprocess.run(
        ["git", "-C", folder, "show", path], capture_output=True, check=True
    )
    cells = json.loads(done.stdout)["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    return "\n\n".join(code)


def defined(text):
    """The source of each class and function of a file, and what else binds names."""
    found, imports = {}, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            rows = text.splitlines()[first - 1 : node.end_lineno]
            found[node.name] = "\n".join(rows)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(ast.unparse(node))
    return found, imports


def needed(name, texts):
    """Of some definitions, one and those that it names."""
    names, todo = {}, [name]
    while todo:
        one = todo.pop()
        if one in texts and one not in names:
            names[one] = texts[one]
            tree = ast.parse(texts[one])
            todo += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [text for one, text in texts.items() if one in names]


def counted(texts):
    """The lines and the tokens of code, without comments and docstrings."""
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
        spans = (range(t.start[0], t.end[0] + 1) for t in found)
        lines += len({row for span in spans for row in span})
    return lines, tokens


def original(folder, repository, name, of):
    """A class of a notebook, and the sources that it is made of."""
    texts, imports = defined(notebook(folder, repository, name))
    names = dict(GLOBALS.get(name, {}))
    for line in imports:
        try:
            exec(line, names)
        except ImportError:  # of data and training
            pass
    sources = needed(of, texts)
    for text in sources:
        # Some annotate `jax.random.PRNGKey | None`, which fails where it is evaluated.
        exec(compile(text, name, "exec", __future__.annotations.compiler_flag), names)
    return names[of], sources


def built(make, args, kwargs):
    """A model, and its state if it has one."""
    model, state = eqx.nn.make_with_state(make)(*args, **kwargs)
    return model, ((state,) if jtu.tree_leaves(state) else ())


def difference(ours, theirs):
    """The largest, of all floating-point numbers, beside the largest of them."""
    both = zip(jtu.tree_leaves(ours), jtu.tree_leaves(theirs), strict=True)
    far = [float(jnp.max(jnp.abs(jnp.asarray(a, float) - b))) for a, b in both]
    return max(far) / max(float(jnp.max(jnp.abs(x))) for x in jtu.tree_leaves(theirs))


def main(run, *, equinox="", diffrax=""):
    folders = {"equinox": equinox, "diffrax": diffrax}
    own = defined((Path(__file__).parent / "_originals.py").read_text())[0]
    for repository, folder in folders.items():
        if not folder:
            run.note(f"left out: {repository} (--{repository} FOLDER, a clone of it)")
    for name in run.chosen(CASES):
        (repository, file, of), (args, kwargs), (call, call_ours, inputs) = CASES[name]
        size = counted(needed(name, own))
        if not folders[repository]:
            _row(run, name, size)
            continue
        theirs, sources = original(folders[repository], repository, file, of)
        from . import _originals

        extra = {"channels": 3} if name == "vision_transformer" else {}
        ours = getattr(_originals, name)
        _compare(
            run,
            name,
            (size, built(ours, args, {**kwargs, **extra})),
            (counted(sources), built(theirs, args, kwargs)),
            (call_ours, call),
            inputs,
        )


def _compare(run, name, ours, theirs, calls, inputs):
    found = []
    for (size, (model, state)), call in zip((ours, theirs), calls, strict=True):
        model = eqx.nn.inference_mode(model) if not state else model

        def called(model, *inputs, call=call):
            return call(model, *inputs)

        both = eqx.Partial(called, model)
        count, _ = flops(both, (*inputs, *state))
        found.append((size, count, eqx.filter_jit(both)(*inputs, *state)))
    (size, count, y), (their_size, their_count, z) = found
    _row(run, name, size, their_size, count, their_count, difference(y, z))


def _row(run, name, size, their_size=None, count=None, their_count=None, far=None):
    """A line of the table; what is not known without a clone is left empty."""
    their_lines, their_tokens = their_size or ("-", "-")
    run.row(
        case=name,
        lines=size[0],
        published_lines=their_lines,
        tokens=size[1],
        published_tokens=their_tokens,
        flops="-" if count is None else int(count),
        published_flops="-" if their_count is None else int(their_count),
        difference="-" if far is None else far,
    )
