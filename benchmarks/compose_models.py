"""How many lines, tokens and flops do composed models take beside plain Equinox?

First the models of `docs/models.md`, beside `tests/support/plain_models.py`: the
same model in Equinox alone. Then, given clones of the two repositories (`--equinox
FOLDER`, `--diffrax FOLDER`; einops must be installed), three models that Equinox and
diffrax publish in notebooks, at the commits below, beside `benchmarks/_originals.py`.

Lines and tokens are those of the model and of the classes and functions of the same
file that it names, without comments, docstrings and imports. Flops are counted by XLA
for one call, loops unrolled. Parameters are drawn from the same keys on both sides, and
`difference` is the largest between outputs, relative to the largest output.
"""

import __future__

import ast
import json
import subprocess
import sys
import zlib
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr

from ._sources import definitions, flops, needed, size

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import page_models, plain_models  # noqa: E402

MODELS = {**plain_models.MODELS, **plain_models.STATEFUL}
QUICK = {"only": ("transformer_block",)}
COMMITS = {
    "equinox": "9336d820b2ef66b360fc6cb3611b3da5cefbb14d",
    "diffrax": "5ea5fcb05058bd22548300a10ea5ef5ce7fb75bb",
}
KEY = jr.PRNGKey(5)
LATENT = jr.fold_in(KEY, zlib.crc32(b"latent"))  # the key of that node of the graph
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
    "key": KEY,
}
ODE = {"data_size": 2, "hidden_size": 8, "latent_size": 3, "width_size": 8, "depth": 2}
SERIES = (jnp.linspace(0.0, 3.0, 8), jr.normal(jr.key(3), (8, 2)))

# Notebook and class, arguments of both, and how theirs and ours are called.
PUBLISHED = {
    "vision_transformer": (
        ("equinox", "vision_transformer", "VisionTransformer"),
        ((), VIT),
        (lambda m, x: m(x, False, KEY), lambda m, x: m(x)),
        (jr.normal(jr.key(3), (3, 8, 8)),),
    ),
    "bert": (
        ("equinox", "bert", "BertClassifier"),
        ((BERT, 2, KEY), {}),
        (lambda m, x: m(x, False), lambda m, x: m(x)),
        (TEXT,),
    ),
    "latent_ode": (
        ("diffrax", "latent_ode", "LatentODE"),
        ((), {**ODE, "key": KEY}),
        (
            lambda m, ts, ys: m.train(ts, ys, key=LATENT),
            lambda m, ts, ys: m({"ts": ts, "ys": ys}, key=KEY),
        ),
        SERIES,
    ),
}


def built(name, make):
    """Return a model of the page and its inputs, with the state if it has one."""
    _, inputs = MODELS[name]
    if name in plain_models.STATEFUL:
        model, state = eqx.nn.make_with_state(make)(jr.key(0))
        return model, (inputs(), state)
    return make(jr.key(0)), (inputs(),)


def original(folder, repository, notebook, name):
    """Return a class of a notebook, and the sources that it needs."""
    path = f"{COMMITS[repository]}:docs/examples/{notebook}.ipynb"
    command = ["git", "-C", folder, "show", path]
    done = subprocess.run(command, capture_output=True, check=True)
    cells = json.loads(done.stdout)["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    names = {"channels": 3}  # a global of the notebook of the vision transformer
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            try:
                exec(ast.unparse(node), names)
            except ImportError:  # packages that the training alone needs
                pass
    sources = needed(name, definitions(text))
    for source in sources:
        # Some annotate `jax.random.PRNGKey | None`, which fails if it is evaluated.
        flag = __future__.annotations.compiler_flag
        exec(compile(source, notebook, "exec", flag), names)
    return names[name], sources


def compare(run, case, ours, theirs):
    """Add a row: sources, model and inputs of either side."""
    columns, outputs = {}, []
    for prefix, (sources, model, inputs) in {"": ours, "their_": theirs}.items():
        lines, tokens = size(sources)
        count, y = flops(model, inputs)
        columns |= {f"{prefix}lines": lines, f"{prefix}tokens": tokens}
        columns |= {f"{prefix}flops": count}
        outputs.append(y[0])
    found, wanted = outputs
    far = jnp.max(jnp.abs(found - wanted)) / jnp.max(jnp.abs(wanted))
    run.row(case=case, **columns, difference=float(far))


def of_the_page(run):
    composed = page_models.sources()
    plain = definitions(Path(plain_models.__file__).read_text())
    for name in run.chosen(MODELS):
        make, _ = MODELS[name]
        ours = needed(name, composed), *built(name, page_models.definitions()[name])
        compare(run, name, ours, (needed(make.__name__, plain), *built(name, make)))


def published(run, folders):
    own = definitions(Path(__file__).with_name("_originals.py").read_text())
    for name in run.chosen(PUBLISHED):
        (repository, *place), (args, kwargs), calls, inputs = PUBLISHED[name]
        if not folders[repository]:
            run.note(f"left out: {name} (--{repository} FOLDER, a clone of it)")
            continue
        from . import _originals

        their_class, sources = original(folders[repository], repository, *place)
        extra = {"channels": 3} if name == "vision_transformer" else {}
        model = getattr(_originals, name)(*args, **kwargs, **extra)
        models = map(eqx.nn.inference_mode, (their_class(*args, **kwargs), model))
        theirs, ours = (
            eqx.Partial(lambda m, *x, call=call: call(m, *x), model)
            for call, model in zip(calls, models, strict=True)
        )
        sides = (needed(name, own), ours, inputs), (sources, theirs, inputs)
        compare(run, f"published: {name}", *sides)


def main(run, *, equinox="", diffrax=""):
    of_the_page(run)
    published(run, {"equinox": equinox, "diffrax": diffrax})
