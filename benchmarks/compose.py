"""Does composing cost anything? Ours against the same maths written by hand in JAX.

    python benchmarks/compose.py [--only chain,graph] [--repeats 25]

For every case, forward and backward: flops, bytes accessed and temporary memory of the
two compiled programs as ratios, and their run times as interleaved ratios (median and
median absolute deviation over `--repeats` pairs). Both sides are called as `jax.jit` of
flat arrays, so that only the programs are compared; what `filter_jit` costs per call is
another question.
"""

import argparse
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

WIDTH, BATCH, DEPTH = 128, 64, 8
KEYS = iter(jr.split(jr.key(0), 1000))
CASES = {}


def case(make):
    """Registers a function that gives our stage and the same by hand.

    The second takes our stage (for its parameters) and the input.
    """
    CASES[make.__name__] = make
    return make


def linear():
    return eqx.nn.Linear(WIDTH, WIDTH, key=next(KEYS))


def dense(layer, x):
    return jnp.tanh(layer.weight @ x + layer.bias)


def layer():
    return ep.chain(linear(), jnp.tanh)


def batch(hand):
    return lambda pipe, x: jax.vmap(lambda x: hand(pipe.stage, x))(x)


@case
def chain():
    def by_hand(pipe, x):
        for i in range(DEPTH):
            x = dense(pipe[i][0], x)
        return x

    return ep.batched(ep.chain(*[layer() for _ in range(DEPTH)])), batch(by_hand)


@case
def batched():
    return ep.batched(layer()), batch(lambda pipe, x: dense(pipe[0], x))


@case
def batched_random():
    pipe = ep.batched(ep.chain(linear(), eqx.nn.Dropout(0.5)))
    key = jr.key(7)

    class Keyed(ep.Stage):
        pipe: eqx.Module

        def __call__(self, x, *, key=key):
            return self.pipe(x, key=key)

    def by_hand(keyed, x):
        first = keyed.pipe.stage[0]

        def one(x, i):
            inner = jr.fold_in(jr.fold_in(key, i), 1)
            kept = jr.bernoulli(inner, 0.5, x.shape)
            return jnp.where(kept, (first.weight @ x + first.bias) / 0.5, 0)

        return jax.vmap(one)(x, jnp.arange(BATCH))

    return Keyed(pipe), by_hand


@case
def repeat():
    def by_hand(pipe, x):
        stacked = pipe.stages[0]
        return jax.lax.scan(
            lambda x, p: (jnp.tanh(p[0] @ x + p[1]), None),
            x,
            (stacked.weight, stacked.bias),
        )[0]

    def make(key):
        return ep.chain(eqx.nn.Linear(WIDTH, WIDTH, key=key), jnp.tanh)

    return ep.batched(ep.repeat(make, DEPTH, key=next(KEYS))), batch(by_hand)


@case
def graph():
    nodes = {n: layer() for n in "abc"} | {"sum": lambda p, q: p + q, "d": layer()}
    edges = {"a": [], "b": "a", "c": "a", "sum": ["b", "c"], "d": "sum"}

    def by_hand(pipe, x):
        a = dense(pipe["a"][0], x)
        return dense(pipe["d"][0], dense(pipe["b"][0], a) + dense(pipe["c"][0], a))

    return ep.batched(ep.graph(nodes, edges, "d")), batch(by_hand)


def parts(pipe, x, num=3):
    return [dense(list(pipe.children().values())[i][0], x) for i in range(num)]


@case
def parallel_concat():
    pipe = ep.parallel(layer(), layer(), layer())
    return ep.batched(pipe), batch(lambda pipe, x: jnp.concatenate(parts(pipe, x)))


@case
def parallel_sum():
    pipe = ep.parallel(layer(), layer(), layer(), merge="sum")
    return ep.batched(pipe), batch(lambda pipe, x: sum(parts(pipe, x)))


@case
def parallel_max():
    pipe = ep.parallel(layer(), layer(), layer(), merge="max")

    def by_hand(pipe, x):
        a, b, c = parts(pipe, x)
        return jnp.maximum(jnp.maximum(a, b), c)

    return ep.batched(pipe), batch(by_hand)


@case
def weighted():
    pipe = ep.weighted(layer(), layer(), layer(), normalize="softmax")

    def by_hand(pipe, x):
        w = jax.nn.softmax(pipe.weights)
        a, b, c = parts(pipe, x)
        return w[0] * a + w[1] * b + w[2] * c

    return ep.batched(pipe), batch(by_hand)


def positive(x):
    return jnp.sum(x) > 0


@case
def cond_per_example():
    pipe = ep.cond(positive, layer(), layer())

    def by_hand(pipe, x):
        return jnp.where(
            positive(x), dense(pipe.then[0], x), dense(pipe.otherwise[0], x)
        )

    return ep.batched(pipe), batch(by_hand)


@case
def cond_single():
    def by_hand(pipe, x):
        return jax.lax.cond(
            positive(x),
            lambda x: dense(pipe.then[0], x),
            lambda x: dense(pipe.otherwise[0], x),
            x,
        )

    return ep.cond(positive, layer(), layer()), by_hand


@case
def switch_per_example():
    def select(x):
        return (jnp.sum(x) > 0).astype(jnp.int32) + (x[0] > 0).astype(jnp.int32)

    def by_hand(pipe, x):
        a, b, c = (dense(stage[0], x) for stage in pipe.stages)
        return jax.lax.select_n(jnp.full(a.shape, select(x)), a, b, c)

    return ep.batched(ep.switch(select, layer(), layer(), layer())), batch(by_hand)


@case
def gated_per_example():
    gates = (positive, lambda x: x[0] > 0)

    def by_hand(pipe, x):
        first, second = (pipe.children()[name] for name in "01")
        zero = jnp.zeros(WIDTH)
        return jnp.where(gates[0](x), dense(first[0], x), zero) + jnp.where(
            gates[1](x), dense(second[0], x), zero
        )

    return ep.batched(ep.gated(layer(), layer(), gates=gates)), batch(by_hand)


@case
def nested():
    mixture = ep.weighted(layer(), ep.chain(layer(), layer()))
    inner = ep.parallel(mixture, layer(), merge="sum")
    pipe = ep.graph({"a": layer(), "b": inner}, {"a": [], "b": "a"}, "b")

    def by_hand(pipe, x):
        mixture, other = pipe["b"].children().values()
        first, second = mixture.children().values()
        a = dense(pipe["a"][0], x)
        mixed = mixture.weights[0] * dense(first[0], a) + mixture.weights[1] * dense(
            second[1][0], dense(second[0][0], a)
        )
        return mixed + dense(other[0], a)

    return ep.batched(pipe), batch(by_hand)


def programs(name, backward):
    """Both compiled programs, ours first, and the arrays they take."""
    pipe, by_hand = CASES[name]()
    arrays, rest = eqx.partition(pipe, eqx.is_inexact_array)
    x = jr.normal(jr.key(1), (WIDTH,) if name.endswith("single") else (BATCH, WIDTH))

    def ours(arrays, x):
        return eqx.combine(arrays, rest)(x)

    def hand(arrays, x):
        return by_hand(eqx.combine(arrays, rest), x)

    if backward:
        ours, hand = (
            jax.grad(lambda a, x, f=f: jnp.sum(f(a, x) ** 2), argnums=(0, 1))
            for f in (ours, hand)
        )
    compiled = [jax.jit(f).lower(arrays, x).compile() for f in (ours, hand)]
    out = [c(arrays, x) for c in compiled]
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, 1e-3, 1e-4)), *out)
    ), f"{name}: the two programs differ"
    return compiled, (arrays, x)


def cost(compiled):
    analysis = compiled.cost_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    temporary = compiled.memory_analysis().temp_size_in_bytes
    return analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0), temporary


def seconds(compiled, args, count):
    start = time.perf_counter()
    for _ in range(count):
        out = compiled(*args)
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / count


def compare(compiled, args, repeats):
    """Time of ours over time by hand: median, deviation; and our time."""
    for c in compiled:
        seconds(c, args, 3)
    count = max(1, int(5e-3 / seconds(compiled[0], args, 5)))
    ratios, times = [], []
    for i in range(repeats):
        order = (0, 1) if i % 2 else (1, 0)  # neither side always goes first
        taken = {j: seconds(compiled[j], args, count) for j in order}
        ratios.append(taken[0] / taken[1])
        times.append(taken[0])
    middle = statistics.median(ratios)
    spread = statistics.median(abs(r - middle) for r in ratios)
    return middle, spread, statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cases, separated by commas")
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(CASES)
    print(
        f"jax {jax.__version__}, equinox {eqx.__version__}, {jax.devices()[0]}; "
        f"width {WIDTH}, batch {BATCH}, depth {DEPTH}"
    )
    print(
        f"{'ours / by hand':28s} flops  bytes  temporaries       time (MAD)      ours"
    )
    for name in names:
        for backward in (False, True):
            compiled, args = programs(name, backward)
            (f, b, t), (f0, b0, t0) = map(cost, compiled)
            middle, spread, own = compare(compiled, args, arguments.repeats)
            label = f"{name} {'backward' if backward else 'forward'}"
            print(
                f"{label:28s} {f / f0:5.3f}  {b / b0:5.3f}  {t:>7} / {t0:<7}  "
                f"{middle:6.3f} ({spread:.3f})  {own * 1e6:7.0f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
