"""What does a `Loader` cost beside a bare jitted loop, and `scan` beside one by hand?

60,000 images of 28 x 28 bytes and labels on the device; a batch is cut out, or
gathered, and made float. In order the bare loop slices; shuffled it gathers by a
permutation that it has made beforehand, which counts.

Then a whole epoch of training a softmax classifier by SGD as one `scan`. There "in
order" leaves the last records out where they fill no batch, in both programs. "Running
over" is what the loader does by default: a batch may begin with the last records of an
epoch and go on with the first of the next; by hand it gathers by numbers modulo 60,000.
"Compile" is tracing and compiling that. Flops and bytes are held by
`tests/test_data_scan.py`. Times are those of an epoch.
"""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

RATE = 0.1
QUICK = {"size": 2_000, "batches": (256,)}


def data(size):
    rng = np.random.default_rng(0)
    return {
        "image": jnp.asarray(rng.integers(0, 256, (size, 28, 28), np.uint8)),
        "label": jnp.asarray(rng.integers(0, 10, size, np.int32)),
    }


def scaled(record):
    return record | {"image": record["image"].astype(jnp.float32) / 255}


def last(batches):
    return collections.deque(batches, maxlen=1).pop()


def by_hand(arrays, batch_size, order):
    """A function that runs one epoch in a loop, and returns the last batch."""
    size = len(arrays["label"])

    def batch(arrays, numbers, start, count):
        def one(leaf):
            if numbers is None:
                return jax.lax.dynamic_slice_in_dim(leaf, start, count)
            return leaf[jax.lax.dynamic_slice_in_dim(numbers, start, count)]

        return scaled(jax.tree.map(one, arrays))

    batch = jax.jit(batch, static_argnums=3)
    permutation = jax.jit(lambda key: jax.random.permutation(key, size))

    def epoch():
        numbers = permutation(jax.random.key(1)) if order == "shuffled" else None
        starts = range(0, size, batch_size)
        return last(
            batch(arrays, numbers, s, min(batch_size, size - s)) for s in starts
        )

    return epoch


def ours(arrays, batch_size, order):
    loader = ep.Loader(
        ep.ArraySource(arrays),
        scaled,
        batch_size=batch_size,
        shuffle=order == "shuffled",
    )
    return lambda: last(loader.epoch(loader.init(jax.random.key(1))))


def weights():
    return {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}


def loss_of(weights, batch):
    scores = batch["image"].reshape(-1, 784) @ weights["w"] + weights["b"][None]
    picked = jnp.take_along_axis(scores, batch["label"][:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - picked)


def step(weights, batch):
    value, slope = jax.value_and_grad(loss_of)(weights, batch)
    return jax.tree.map(lambda w, s: w - RATE * s, weights, slope), value


def scan_by_hand(arrays, batch_size, order):
    """A jitted epoch, and what it takes."""
    size = len(arrays["label"])

    def epoch(arrays, weights, key):
        permuted = jax.random.permutation(key, size)

        def body(weights, start):
            def one(leaf):
                if order == "in order":
                    return jax.lax.dynamic_slice_in_dim(leaf, start, batch_size)
                if order == "running over":
                    return leaf[(start + jnp.arange(batch_size)) % size]
                return leaf[jax.lax.dynamic_slice_in_dim(permuted, start, batch_size)]

            return step(weights, scaled(jax.tree.map(one, arrays)))

        return jax.lax.scan(body, weights, jnp.arange(size // batch_size) * batch_size)

    return jax.jit(epoch), (arrays, weights(), jax.random.key(1))


def scan_ours(arrays, batch_size, order):
    loader = ep.Loader(
        ep.ArraySource(arrays),
        scaled,
        batch_size=batch_size,
        shuffle=order == "shuffled",
        drop_remainder=order == "in order",
    )

    def epoch(loader, weights, key):
        return loader.scan(step, weights, loader.init(key))[:2]

    return eqx.filter_jit(epoch), (loader, weights(), jax.random.key(1))


def main(run, *, size=60_000, batches=(32, 256)):
    arrays = data(size)
    for order in ("in order", "shuffled"):
        for b in batches:
            for case in run.chosen([f"loop {order} {b}"]):
                makers = {"by hand": by_hand, "ours": ours}
                sides = {name: f(arrays, b, order) for name, f in makers.items()}
                run.compare(case, sides, to="by hand")
    makers = {"by hand": scan_by_hand, "ours": scan_ours}
    for order in ("in order", "running over", "shuffled"):
        for b in batches:
            for case in run.chosen([f"scan {order} {b}"]):
                made = [f(arrays, b, order) for f in makers.values()]
                sides = [lambda fn=fn, args=args: fn(*args) for fn, args in made]
                run.compare(case, dict(zip(makers, sides, strict=True)), to="by hand")
                if run.quick:
                    continue

                def compiled(make, order=order, b=b):
                    jax.clear_caches()
                    program, args = make(arrays, b, order)
                    program.lower(*args).compile()

                sides = {name: lambda f=f: compiled(f) for name, f in makers.items()}
                run.compare(f"{case} compile", sides, to="by hand", rounds=5)
