"""What does a `Loader` cost beside loops by hand, in datarax and in Grain?

60,000 images of 28 x 28 bytes with labels, made float. On the device: a bare jitted
loop by hand, ours and datarax. By hand a batch in order is a slice, and a shuffled one
is gathered by a permutation that is made for each epoch, whose time counts. From the
host, as a list of records: ours and Grain, with its default options and without reading
ahead (`plain`).

Then an epoch of training a softmax classifier by SGD as one `scan`. "In order" drops
the last records that fill no batch, by hand too. "Running over" is the default of the
loader: a batch may hold the last records of an epoch and the first of the next; by hand
it gathers by numbers modulo 60,000. `tests/data/test_scan.py` compares flops and bytes.

Slow sides do not run whole epochs, so every time is that of one batch, and all but by
hand and ours on the device take part in every tenth round.
"""

import collections
import itertools as it
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

RATE = 0.1
QUICK = {"size": 2_000, "batches": (256,), "part": 512, "few": 512}


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
    """Return a function that runs one epoch in a loop, and returns the last batch."""
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


def loader_of(source, batch_size, order, **settings):
    shuffle = order == "shuffled"
    return ep.data.Loader(
        source, scaled, batch_size=batch_size, shuffle=shuffle, **settings
    )


def ours(arrays, batch_size, order):
    loader = loader_of(ep.data.ArraySource(arrays), batch_size, order)
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
    """Return a jitted epoch."""
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

    run, key = jax.jit(epoch), jax.random.key(1)
    return lambda: run(arrays, weights(), key)


def scan_ours(arrays, batch_size, order):
    source, drop = ep.data.ArraySource(arrays), order == "in order"
    loader = loader_of(source, batch_size, order, drop_remainder=drop)

    def epoch(loader, weights, key):
        return loader.scan(step, weights, loader.init(key))[:2]

    run, key = eqx.filter_jit(epoch), jax.random.key(1)
    return lambda: run(loader, weights(), key)


def whole(make):
    """Make a side over a whole epoch: its run, and its number of batches."""

    def made(arrays, batch_size, order):
        return make(arrays, batch_size, order), len(arrays["label"]) / batch_size

    return made


def records(arrays):
    host = jax.tree.map(np.asarray, arrays)
    pairs = zip(host["image"], host["label"], strict=True)
    return [{"image": image, "label": label} for image, label in pairs]


def ours_on_host(part):
    def make(arrays, batch_size, order):
        loader = loader_of(records(arrays), batch_size, order)

        def run():
            iterator = loader.epoch(loader.init(jax.random.key(1)))
            batch = last(it.islice(iterator, part // batch_size))
            iterator.close()
            return batch

        return run, part // batch_size

    return make


def grain_side(part, **options):
    import grain

    def make(arrays, batch_size, order):
        dataset = grain.MapDataset.source(records(arrays))
        dataset = dataset.shuffle(seed=1) if order == "shuffled" else dataset
        dataset, fast = dataset.batch(batch_size), jax.jit(scaled)
        reading = grain.ReadOptions(**options) if options else None

        def run():
            iterator = iter(dataset.to_iter_dataset(reading))
            batch = last(map(fast, it.islice(iterator, part // batch_size)))
            getattr(iterator, "close", lambda: None)()
            return batch

        return run, part // batch_size

    return make


def datarax_sides(few):
    """Its loop and its scan; shuffled, of `few` records."""
    from datarax.pipeline import Pipeline
    from datarax.sources import MemorySource, MemorySourceConfig
    from flax import nnx

    warnings.simplefilter("ignore")

    class Scaled(nnx.Module):
        def __call__(self, batch):
            return scaled(batch)

    class Softmax(nnx.Module):
        def __init__(self):
            self.w, self.b = nnx.Param(jnp.zeros((784, 10))), nnx.Param(jnp.zeros(10))

    def train(model, batch):
        def loss(model):
            return loss_of({"w": model.w[...], "b": model.b[...]}, batch)

        value, slope = nnx.value_and_grad(loss)(model)
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda w, s: w - RATE * s, state, slope))
        return value

    def pipeline_of(arrays, batch_size, order):
        config = MemorySourceConfig(shuffle=order == "shuffled")
        source = MemorySource(config, data=arrays, rngs=nnx.Rngs(0, shuffle=1))
        pipeline = Pipeline(
            source=source, stages=[Scaled()], batch_size=batch_size, rngs=nnx.Rngs(0)
        )
        size = few if order == "shuffled" else len(arrays["label"])

        def rewound():
            pipeline._position[...] = jnp.zeros((), jnp.int32)
            return pipeline

        return rewound, size // batch_size

    def loop(arrays, batch_size, order):
        rewound, number = pipeline_of(arrays, batch_size, order)
        return lambda: last(it.islice(rewound(), number)), number

    def scan(arrays, batch_size, order):
        rewound, number = pipeline_of(arrays, batch_size, order)
        model = Softmax()
        return lambda: rewound().scan(train, modules=(model,), length=number), number

    return loop, scan


def main(run, *, size=60_000, batches=(32, 256), part=8192, few=1024):
    arrays = data(size)
    loops = {"by hand": whole(by_hand), "ours": whole(ours)}
    scans = {"by hand": whole(scan_by_hand), "ours": whole(scan_ours)}
    if run.has("datarax"):
        loops["datarax"], scans["datarax"] = datarax_sides(few)
    loops["ours, host"] = ours_on_host(part)
    if run.has("grain"):
        loops["Grain"] = grain_side(part)
        ahead = {"num_threads": 0, "prefetch_buffer_size": 0}
        loops["Grain, plain"] = grain_side(part, **ahead)
    kinds = {
        "loop in order": loops,
        "loop shuffled": loops,
        "scan in order": scans,
        "scan running over": {k: v for k, v in scans.items() if k != "datarax"},
        "scan shuffled": scans,
    }
    for (kind, makers), batch_size in it.product(kinds.items(), batches):
        order = kind.split(" ", 1)[1]
        for case in run.chosen([f"{kind} {batch_size}"]):
            made = {n: make(arrays, batch_size, order) for n, make in makers.items()}
            sides = {name: side for name, (side, _) in made.items()}
            per = {name: number for name, (_, number) in made.items()}
            slow = [n for n in sides if n not in ("by hand", "ours")]
            run.compare(case, sides, to="by hand", per=per, seldom=slow)
