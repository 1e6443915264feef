"""What do compositions of elementwise operators cost in ours, and in datarax?

Images of 28 x 28 in batches of 256 through three elementwise operators. All sides are
compiled by `jax.jit` and called on the same arrays; datarax's operators are called by
their `apply` under `jax.vmap`, without a `Batch` round them, which is their best case.
Bytes and flops are those that XLA counts, over those by hand.
"""

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

from ._timing import agrees

ROUNDS = 25
QUICK = {"batch": 8, "block": 0.001}
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


def ours():
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


def main(run, *, batch=256, block=0.005):
    run.needs("datarax")
    x = jr.normal(jr.key(0), (batch, 28, 28))
    makers = {"by hand": BY_HAND, "ours": ours(), "datarax": in_datarax()}
    for case in run.chosen(BY_HAND):
        compiled = {
            who: jax.jit(jax.vmap(functions[case])).lower(x).compile()
            for who, functions in makers.items()
        }
        wanted = compiled["by hand"](x)
        costs = {who: program.cost_analysis() for who, program in compiled.items()}

        def counted(who, _, compiled=compiled, wanted=wanted, costs=costs):
            names = {"flops": "flops", "bytes": "bytes accessed"}
            found = {k: costs[who][v] / costs["by hand"][v] for k, v in names.items()}
            return found | {"right": str(agrees(compiled[who](x), wanted))}

        sides = {who: lambda fn=fn: fn(x) for who, fn in compiled.items()}
        run.compare(case, sides, to="by hand", least=block, columns=counted)
