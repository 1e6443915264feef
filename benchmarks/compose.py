"""What does a composed pipeline cost beside the same maths by hand, and in datarax?

First layers, forward and backward. By hand is `tests/support/by_hand.py`, with which
`tests/compose/test_programs.py` compares programs and costs. For an example of a batch
a decision by hand is a bare select.

Then "images": 28 x 28 in batches of 256 through three elementwise operators, which
datarax has as well; its operators are called by their `apply` under `jax.vmap`, without
a `Batch` round them, which is their best case. Bytes and flops are those that XLA
counts, over those by hand.

All sides are called as compiled programs of flat arrays, so that only the programs are
compared, and not what a call costs.
"""

import sys
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

from ._timing import agrees

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.branches import selected  # noqa: E402
from support.by_hand import by_hand  # noqa: E402

ROUNDS = 25
QUICK = {"block": 0.001, "only": ("chain", "cond", "images")}
WIDTH, BATCH, DEPTH = 128, 64, 8


def linear(key):
    return eqx.nn.Linear(WIDTH, WIDTH, key=key)


def layer(key):
    return ep.chain(linear(key), jnp.tanh)


def positive(x):
    return jnp.sum(x) > 0


def first_positive(x):
    return x[0] > 0


def num_positive(x):
    return positive(x).astype(jnp.int32) + first_positive(x).astype(jnp.int32)


def cases():
    """Return the stages of an example, or (`batched` aside) of each of a batch."""
    a, b, c, *more = layers = [layer(key) for key in jr.split(jr.key(0), DEPTH)]
    add = {"a": [], "b": "a", "c": "a", "sum": ["b", "c"], "d": "sum"}
    graph = {"a": a, "b": b, "c": c, "sum": lambda p, q: p + q, "d": more[0]}
    mixture = ep.weighted(b, ep.chain(c, more[0]))
    inner = ep.parallel(mixture, more[1], merge="sum")
    batched = {
        "chain": ep.chain(*layers),
        "batched": a,
        "random": ep.chain(linear(jr.key(0)), eqx.nn.Dropout(0.5)),
        "repeat": ep.repeat(layer, DEPTH, key=jr.key(0)),
        "graph": ep.graph(graph, add, "d"),
        "parallel_concat": ep.parallel(a, b, c),
        "parallel_sum": ep.parallel(a, b, c, merge="sum"),
        "parallel_max": ep.parallel(a, b, c, merge="max"),
        "weighted": ep.weighted(a, b, c, normalize="softmax"),
        "cond_per_example": ep.cond(positive, a, b),
        "switch_per_example": ep.switch(num_positive, a, b, c),
        "gated_per_example": ep.gated(a, b, gates=(positive, first_positive)),
        "nested": ep.graph({"a": a, "b": inner}, {"a": [], "b": "a"}, "b"),
    }
    found = {name: ep.batched(stage) for name, stage in batched.items()}
    return found | {"cond_single": ep.cond(positive, a, b)}


def selects(pipe, xs, key):
    """Choose for each example: `lax.cond`, batched, would copy the weights."""
    return jax.vmap(lambda x: selected(pipe.stage, x))(xs)


def compiled(name, pipe, backward):
    """Both programs, and the arrays they take."""
    arrays, rest = eqx.partition(pipe, eqx.is_inexact_array)
    x = jr.normal(jr.key(1), (WIDTH,) if name == "cond_single" else (BATCH, WIDTH))
    key = jr.key(2) if name == "random" else None

    def program(call):
        def forward(arrays, x):
            return call(eqx.combine(arrays, rest), x)

        def total(arrays, x):
            return jnp.sum(forward(arrays, x) ** 2)

        fn = jax.grad(total, argnums=(0, 1)) if backward else forward
        return jax.jit(fn).lower(arrays, x).compile()

    hand = selects if name.endswith("_per_example") else by_hand
    programs = {
        "by hand": program(lambda pipe, x: hand(pipe, x, key)),
        "ours": program(lambda pipe, x: pipe(x, key=key)),
    }
    first, second = (fn(arrays, x) for fn in programs.values())
    assert agrees(second, first), f"{name}: the two programs differ"
    return programs, (arrays, x)


def layers_by_hand(run, block):
    pipes = cases()
    directions = {"forward": False, "backward": True}
    names = {f"{name} {word}": (name, word) for name in pipes for word in directions}
    for case in run.chosen(names):
        name, word = names[case]
        programs, args = compiled(name, pipes[name], directions[word])
        sides = {who: lambda f=f, args=args: f(*args) for who, f in programs.items()}
        run.compare(case, sides, to="by hand", least=block)


FUNCTIONS = (lambda x: 1.5 * x + 0.1, jnp.tanh, lambda x: x * x)
CONDITIONS = tuple(lambda x, i=i: x[i, i] > 0 for i in range(3))
WEIGHTS = (0.2, 0.3, 0.5)


def each(x):
    return [f(x) for f in FUNCTIONS]


def in_turn(x):
    for f in FUNCTIONS:
        x = f(x)
    return x


def largest(x):
    a, b, c = each(x)
    return jnp.maximum(jnp.maximum(a, b), c)


BY_HAND = {
    "chain": in_turn,
    "mean": lambda x: sum(each(x)) / 3,
    "max": largest,
    "weighted": lambda x: sum(w * y for w, y in zip(WEIGHTS, each(x), strict=True)),
    "gated": lambda x: sum(
        jnp.where(p(x), y, 0) for p, y in zip(CONDITIONS, each(x), strict=True)
    ),
}


def in_ours():
    return {
        "chain": ep.chain(*FUNCTIONS),
        "mean": ep.parallel(*FUNCTIONS, merge="mean"),
        "max": ep.parallel(*FUNCTIONS, merge="max"),
        "weighted": ep.weighted(*FUNCTIONS, weights=jnp.array(WEIGHTS)),
        "gated": ep.gated(*FUNCTIONS, gates=CONDITIONS),
    }


def in_datarax():
    from datarax.core.config import ElementOperatorConfig
    from datarax.operators.composite_operator import (
        CompositeOperatorConfig,
        CompositeOperatorModule,
        CompositionStrategy,
    )
    from datarax.operators.element_operator import ElementOperator
    from flax import nnx

    warnings.simplefilter("ignore")

    def operator(f):
        def apply(element, key):
            return element.replace(data={"x": f(element.data["x"])})

        config = ElementOperatorConfig(stochastic=False)
        return ElementOperator(config, fn=apply, rngs=nnx.Rngs(0))

    def build(strategy, **settings):
        config = CompositeOperatorConfig(
            strategy=CompositionStrategy[strategy],
            operators=[operator(f) for f in FUNCTIONS],
            **settings,
        )
        module = CompositeOperatorModule(config, rngs=nnx.Rngs(0))
        return lambda x: module.apply({"x": x}, {}, None)[0]["x"]

    conditions = [lambda data, p=p: p(data["x"]) for p in CONDITIONS]
    return {
        "chain": build("SEQUENTIAL"),
        "mean": build("ENSEMBLE_MEAN"),
        "max": build("ENSEMBLE_MAX"),
        "weighted": build("WEIGHTED_PARALLEL", weights=list(WEIGHTS), mix_fields=["x"]),
        "gated": build(
            "CONDITIONAL_PARALLEL", conditions=conditions, merge_strategy="sum"
        ),
    }


def images(run, batch, block):
    names = {f"images: {name}": name for name in BY_HAND}
    if not run.chosen(names):
        return
    x = jr.normal(jr.key(0), (batch, 28, 28))
    makers = {"by hand": BY_HAND, "ours": in_ours()}
    if run.has("datarax"):
        makers["datarax"] = in_datarax()
    for case in run.chosen(names):
        programs = {
            who: jax.jit(jax.vmap(functions[names[case]])).lower(x).compile()
            for who, functions in makers.items()
        }
        wanted = programs["by hand"](x)
        costs = {who: program.cost_analysis() for who, program in programs.items()}

        def counted(who, _, programs=programs, wanted=wanted, costs=costs):
            names = {"flops": "flops", "bytes": "bytes accessed"}
            found = {k: costs[who][v] / costs["by hand"][v] for k, v in names.items()}
            return found | {"right": str(agrees(programs[who](x), wanted))}

        sides = {who: lambda fn=fn: fn(x) for who, fn in programs.items()}
        run.compare(case, sides, to="by hand", least=block, columns=counted)


def main(run, *, batch=256, block=0.005):
    layers_by_hand(run, block)
    images(run, batch, block)
