"""What a `Loader` costs beside a bare jitted loop with the same maths.

Run as `python benchmarks/data_loader.py`. 60,000 images of 28 x 28 bytes and labels on
the device; a batch is cut out, or gathered, and made float. In order the bare loop
slices; shuffled it gathers by a permutation that it has made beforehand, which counts.

Then a whole epoch of training a softmax classifier by SGD as one `scan`. There "in
order" leaves the last records out where they fill no batch, in both programs. "Running
over" is what the loader does by default: a batch may begin with the last records of an
epoch and go on with the first of the next; by hand it gathers by numbers modulo 60,000.

Every pair is timed in turn; printed are the median ratio ours / by hand, its median
absolute deviation, and the median times of an epoch.
"""

import argparse
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

SIZE = 60_000
RATE = 0.1
ORDERS = ["in order", "running over", "shuffled"]


def data():
    rng = np.random.default_rng(0)
    return {
        "image": jnp.asarray(rng.integers(0, 256, (SIZE, 28, 28), np.uint8)),
        "label": jnp.asarray(rng.integers(0, 10, SIZE, np.int32)),
    }


def scaled(record):
    return {
        "image": record["image"].astype(jnp.float32) / 255,
        "label": record["label"],
    }


def by_hand(arrays, batch_size, shuffle):
    """A function that runs one epoch in a loop, and returns the last batch."""

    def batch(arrays, order, start, count):
        def one(leaf):
            if order is None:
                return jax.lax.dynamic_slice_in_dim(leaf, start, count)
            return leaf[jax.lax.dynamic_slice_in_dim(order, start, count)]

        return scaled(jax.tree.map(one, arrays))

    batch = jax.jit(batch, static_argnums=3)
    permutation = jax.jit(lambda key: jax.random.permutation(key, SIZE))

    def epoch(number):
        order = permutation(jax.random.key(number)) if shuffle else None
        for start in range(0, SIZE, batch_size):
            count = min(batch_size, SIZE - start)
            last = batch(arrays, order, start, count)
        return last

    return epoch


def ours(arrays, batch_size, shuffle):
    loader = ep.Loader(
        ep.ArraySource(arrays), scaled, batch_size=batch_size, shuffle=shuffle
    )

    def epoch(number):
        last = None
        for batch in loader.epoch(loader.init(jax.random.key(number))):
            last = batch
        return last

    return epoch


def step(weights, batch):
    def loss(weights):
        scores = batch["image"].reshape(-1, 784) @ weights["w"] + weights["b"][None]
        picked = jnp.take_along_axis(scores, batch["label"][:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - picked)

    value, slope = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, s: w - RATE * s, weights, slope), value


def scan_by_hand(arrays, batch_size, order):
    def epoch(arrays, weights, key):
        permuted = jax.random.permutation(key, SIZE)

        def body(weights, start):
            def one(leaf):
                if order == "in order":
                    return jax.lax.dynamic_slice_in_dim(leaf, start, batch_size)
                if order == "running over":
                    return leaf[(start + jnp.arange(batch_size)) % SIZE]
                return leaf[jax.lax.dynamic_slice_in_dim(permuted, start, batch_size)]

            return step(weights, scaled(jax.tree.map(one, arrays)))

        starts = jnp.arange(SIZE // batch_size) * batch_size
        return jax.lax.scan(body, weights, starts)

    return jax.jit(epoch), (arrays,)


def scan_ours(arrays, batch_size, order):
    """In order, the last records are left out, as the program written by hand does."""
    loader = ep.Loader(
        ep.ArraySource(arrays),
        scaled,
        batch_size=batch_size,
        shuffle=order == "shuffled",
        drop_remainder=order == "in order",
    )

    def epoch(loader, weights, key):
        return loader.scan(step, weights, loader.init(key))[:2]

    return eqx.filter_jit(epoch), (loader,)


def seconds(call):
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def compare(ours, theirs, pairs):
    """The median ratio, its spread, and the median times of both."""
    for call in (ours, theirs):
        seconds(call), seconds(call)
    ratios, times = [], []
    for i in range(pairs):
        calls = (ours, theirs) if i % 2 else (theirs, ours)
        first, second = map(seconds, calls)
        pair = (first, second) if i % 2 else (second, first)
        ratios.append(pair[0] / pair[1])
        times.append(pair)
    ratio = statistics.median(ratios)
    spread = statistics.median(abs(r - ratio) for r in ratios)
    mine, bare = (1e3 * statistics.median(t[i] for t in times) for i in (0, 1))
    return f"{ratio:.3f} ({spread:.3f})", f"{mine:7.1f} {bare:7.1f}"


def compile_seconds(make, arrays, *rest):
    """How long it takes to trace and compile a program that is new each time."""
    found = []
    for _ in range(5):
        jax.clear_caches()
        program, first = make(arrays, *rest)
        begin = time.perf_counter()
        program.lower(*first, weights(), jax.random.key(0)).compile()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def weights():
    return {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}


def costs(make, arrays, *rest):
    program, first = make(arrays, *rest)
    compiled = program.lower(*first, weights(), jax.random.key(0)).compile()
    compiled = getattr(compiled, "compiled", compiled)
    found = compiled.cost_analysis()
    return np.array([found["flops"], found["bytes accessed"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--only", choices=["loop", "scan"])
    parser.add_argument("--orders", nargs="*", choices=ORDERS, default=ORDERS)
    parser.add_argument("--batches", nargs="*", type=int, default=[32, 256])
    args = parser.parse_args()
    arrays = data()
    print(f"jax {jax.__version__}, {SIZE} images, {args.pairs} pairs")
    if args.only != "scan":
        print("loop                       ours / by hand   ms ours  by hand")
        for order, batch_size in cases(args, {"in order", "shuffled"}):
            shuffle = order == "shuffled"
            a, b = (make(arrays, batch_size, shuffle) for make in (ours, by_hand))
            ratio, times = compare(lambda: a(1), lambda: b(1), args.pairs)  # noqa: B023
            print(f"{label(order, batch_size)} {ratio:>14}   {times}", flush=True)
    if args.only != "loop":
        print(
            "scan                       ours / by hand   ms ours  by hand  flops  bytes"
        )
        for order, batch_size in cases(args, {"in order", "running over", "shuffled"}):
            rest = arrays, batch_size, order
            calls = []
            for make in (scan_ours, scan_by_hand):
                run, first = make(*rest)
                start, key = weights(), jax.random.key(1)
                calls.append(lambda r=run, f=first, s=start, k=key: r(*f, s, k))
            ratio, times = compare(*calls, args.pairs)
            flops, moved = costs(scan_ours, *rest) / costs(scan_by_hand, *rest)
            mine, bare = (compile_seconds(m, *rest) for m in (scan_ours, scan_by_hand))
            print(
                f"{label(order, batch_size)} {ratio:>14}   {times}  {flops:5.3f} "
                f" {moved:5.3f}  compile {mine:.2f} / {bare:.2f} s",
                flush=True,
            )


def cases(args, orders):
    """Order and batch size of what is compared."""
    return [(o, b) for o in args.orders if o in orders for b in args.batches]


def label(order, batch_size):
    return f"{order:<12} batch {batch_size:<4}  "


if __name__ == "__main__":
    main()
