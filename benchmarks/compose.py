"""Does a composed pipeline cost more than the same maths written by hand in JAX?

Every case forward and backward. By hand is `tests/by_hand.py`, which the laws and the
counted costs are held by, too (`tests/test_zero_cost.py`, `tests/test_branch_cost.py`:
flops, bytes and temporary memory). Both sides are called as compiled programs of flat
arrays, so that only the programs are compared; what a call costs is asked by
`dispatch`. For an example of a batch a decision by hand is a select.
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

from ._timing import agrees

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from by_hand import by_hand  # noqa: E402

ROUNDS = 25
QUICK = {"block": 0.001, "only": ("chain", "cond", "nested forward")}
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
    """What is done to an example, or (`batched` aside) to each of a batch."""
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

    programs = {
        "by hand": program(lambda pipe, x: by_hand(pipe, x, key)),
        "ours": program(lambda pipe, x: pipe(x, key=key)),
    }
    first, second = (fn(arrays, x) for fn in programs.values())
    assert agrees(second, first), f"{name}: the two programs differ"
    return programs, (arrays, x)


def main(run, *, block=0.005):
    pipes = cases()
    directions = {"forward": False, "backward": True}
    names = {f"{name} {word}": (name, word) for name in pipes for word in directions}
    for case in run.chosen(names):
        name, word = names[case]
        programs, args = compiled(name, pipes[name], directions[word])
        sides = {who: lambda f=f, args=args: f(*args) for who, f in programs.items()}
        run.compare(case, sides, to="by hand", least=block)
