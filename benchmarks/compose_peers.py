"""The same compositions by hand, ours, and in datarax, side by side in one process.

    pip install datarax eqx_pipe && python benchmarks/compose_peers.py

Images of 28x28 in batches of 256 through three elementwise operators. All three are
compiled by `jax.jit` and called on the same arrays; datarax's operators are called by
their `apply` under `jax.vmap`, without a `Batch` round them, which is their best case.
Figures are ratios to the program by hand; times are interleaved (median and median
absolute deviation).
"""

import argparse
import statistics
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
from compose import cost, seconds

import eqx_pipe as ep

warnings.simplefilter("ignore")
FUNCTIONS = (lambda x: 1.5 * x + 0.1, jnp.tanh, lambda x: x * x)
CONDITIONS = tuple(lambda x, i=i: x[i, i] > 0 for i in range(3))

WEIGHTS = jnp.array([0.2, 0.3, 0.5])


def by_hand():
    def chain(x):
        for f in FUNCTIONS:
            x = f(x)
        return x

    def mean(x):
        return sum(f(x) for f in FUNCTIONS) / 3

    def largest(x):
        a, b, c = (f(x) for f in FUNCTIONS)
        return jnp.maximum(jnp.maximum(a, b), c)

    def weighted(x):
        a, b, c = (f(x) for f in FUNCTIONS)
        return WEIGHTS[0] * a + WEIGHTS[1] * b + WEIGHTS[2] * c

    def gated(x):
        pairs = zip(FUNCTIONS, CONDITIONS, strict=True)
        return sum(jnp.where(p(x), f(x), 0) for f, p in pairs)

    return chain, mean, largest, weighted, gated


def ours():
    return (
        ep.chain(*FUNCTIONS),
        ep.parallel(*FUNCTIONS, merge="mean"),
        ep.parallel(*FUNCTIONS, merge="max"),
        ep.weighted(*FUNCTIONS, weights=WEIGHTS),
        ep.gated(*FUNCTIONS, gates=CONDITIONS),
    )


def theirs():
    from datarax.core.config import ElementOperatorConfig
    from datarax.operators.composite_operator import (
        CompositeOperatorConfig,
        CompositeOperatorModule,
        CompositionStrategy,
    )
    from datarax.operators.element_operator import ElementOperator
    from flax import nnx

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
    return (
        build("SEQUENTIAL"),
        build("ENSEMBLE_MEAN"),
        build("ENSEMBLE_MAX"),
        build("WEIGHTED_PARALLEL", weights=[0.2, 0.3, 0.5]),
        build("CONDITIONAL_PARALLEL", conditions=conditions, merge_strategy="sum"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    x = jr.normal(jr.key(0), (256, 28, 28))
    print(f"jax {jax.__version__}, {jax.devices()[0]}")
    print(f"{'over by hand':18s} {'flops':>6s} {'bytes':>6s} temporaries  time (MAD)")
    names = ("chain", "mean", "max", "weighted", "gated")
    for name, *functions in zip(names, by_hand(), ours(), theirs(), strict=True):
        compiled = [jax.jit(jax.vmap(f)).lower(x).compile() for f in functions]
        ratios = {1: [], 2: []}
        count = max(1, int(5e-3 / seconds(compiled[0], (x,), 5)))
        for i in range(repeats):
            order = (0, 1, 2) if i % 2 else (2, 1, 0)
            taken = {j: seconds(compiled[j], (x,), count) for j in order}
            for j in ratios:
                ratios[j].append(taken[j] / taken[0])
        flops, size, _ = cost(compiled[0])
        want = compiled[0](x)
        for j, who in ((1, "ours"), (2, "datarax")):
            own_flops, own_size, temporary = cost(compiled[j])
            same = "" if jnp.allclose(compiled[j](x), want, 1e-4, 1e-5) else "  differs"
            middle = statistics.median(ratios[j])
            spread = statistics.median(abs(r - middle) for r in ratios[j])
            print(
                f"{name:10s}{who:8s} {own_flops / flops:6.2f} {own_size / size:6.2f} "
                f"{temporary:>11} {middle:6.2f} ({spread:.2f}){same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
