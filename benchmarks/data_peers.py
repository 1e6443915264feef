"""The loops of `data_loader.py` also in datarax and Grain, side by side in one process.

    pip install datarax grain eqx_pipe && python benchmarks/data_peers.py

60,000 images of 28 x 28 bytes with labels, made float. On the device: the bare loop,
ours, and datarax. From the host, as a list of records that is moved to the device batch
by batch: ours and Grain, the latter with its default options, without reading ahead
(`plain`), and over a source whose records are whole batches (`batches`, cut out of
arrays). `ours, Grain's` is our loader over a Grain dataset. Then an epoch of training a
softmax classifier by SGD as one `scan`.

Slow sides do not get a whole epoch: every figure is the time of one batch over that of
the bare loop, whose shuffled order is a permutation made beforehand for an epoch, which
counts. Printed are the median over pairs in turn and the median absolute deviation.
Where datarax shuffles, the number of different records among those that it gave is
shown.
"""

import argparse
import itertools as it
import statistics
import time
import warnings

import grain
import jax
import jax.numpy as jnp
import numpy as np
from data_loader import (
    RATE,
    SIZE,
    by_hand,
    data,
    ours,
    scaled,
    scan_by_hand,
    scan_ours,
    weights,
)
from datarax.pipeline import Pipeline
from datarax.sources import MemorySource, MemorySourceConfig
from flax import nnx

import eqx_pipe as ep

warnings.simplefilter("ignore")

SOME = 8192  # records of a part of an epoch
FEW = 1024


class Scaled(nnx.Module):
    """The stage, as datarax takes it."""

    def __call__(self, batch):
        return scaled(batch)


def pipeline_of(arrays, batch_size, shuffle):
    source = MemorySource(
        MemorySourceConfig(shuffle=shuffle), data=arrays, rngs=nnx.Rngs(0, shuffle=1)
    )
    return Pipeline(
        source=source, stages=[Scaled()], batch_size=batch_size, rngs=nnx.Rngs(0)
    )


def in_datarax(arrays, batch_size, shuffle):
    pipeline = pipeline_of(arrays, batch_size, shuffle)
    number = (FEW if shuffle else SIZE) // batch_size

    def run(keep=None):
        pipeline._position[...] = jnp.zeros((), jnp.int32)
        last = None
        for batch in it.islice(pipeline, number):
            last = batch
            if keep is not None:
                keep.append(np.asarray(batch["label"]))
        return last

    return run, number


def different(batch_size):
    """How many records datarax gives in a part of a shuffled epoch, and how many."""
    arrays = {"image": data()["image"], "label": jnp.arange(SIZE)}
    run, number = in_datarax(arrays, batch_size, True)
    seen = []
    run(seen)
    return f"{len(np.unique(np.concatenate(seen)))} of {number * batch_size}"


def records(arrays):
    host = jax.tree.map(np.asarray, arrays)
    return [
        {"image": image, "label": label}
        for image, label in zip(host["image"], host["label"], strict=True)
    ]


def in_grain(options=None):
    def make(arrays, batch_size, shuffle):
        dataset = grain.MapDataset.source(records(arrays))
        return grain_loop(dataset, batch_size, shuffle, options)

    return make


def grain_loop(dataset, batch_size, shuffle, options, batched=False):
    fast = jax.jit(scaled)
    number = SOME // batch_size
    dataset = dataset.shuffle(seed=1) if shuffle else dataset
    dataset = dataset if batched else dataset.batch(batch_size)

    def run():
        last = None
        iterator = iter(dataset.to_iter_dataset(options))
        for batch in it.islice(iterator, number):
            last = fast(batch)
        getattr(iterator, "close", lambda: None)()
        return last

    return run, number


class Batches:
    """Whole batches out of arrays, as a source for Grain."""

    def __init__(self, arrays, batch_size, order):
        self.arrays = jax.tree.map(np.asarray, arrays)
        self.batch_size, self.order = batch_size, order

    def __len__(self):
        return SIZE // self.batch_size

    def __getitem__(self, index):
        at = slice(index * self.batch_size, (index + 1) * self.batch_size)
        at = at if self.order is None else self.order[at]
        return {name: array[at] for name, array in self.arrays.items()}


def in_grain_by_batches(arrays, batch_size, shuffle):
    order = np.random.default_rng(0).permutation(SIZE) if shuffle else None
    dataset = grain.MapDataset.source(Batches(arrays, batch_size, order))
    return grain_loop(dataset, batch_size, False, None, batched=True)


def ours_on_host(wrap):
    def make(arrays, batch_size, shuffle):
        loader = ep.Loader(
            wrap(records(arrays)), scaled, batch_size=batch_size, shuffle=shuffle
        )
        number = SOME // batch_size

        def run():
            last = None
            iterator = loader.epoch(loader.init(jax.random.key(1)))
            for batch in it.islice(iterator, number):
                last = batch
            iterator.close()
            return last

        return run, number

    return make


def whole(make):
    def made(arrays, batch_size, shuffle):
        epoch = make(arrays, batch_size, shuffle)
        return lambda: epoch(1), -(-SIZE // batch_size)

    return made


class Softmax(nnx.Module):
    def __init__(self):
        self.w, self.b = nnx.Param(jnp.zeros((784, 10))), nnx.Param(jnp.zeros(10))


def train(model, batch):
    def loss(model):
        scores = batch["image"].reshape(-1, 784) @ model.w[...] + model.b[...][None]
        picked = jnp.take_along_axis(scores, batch["label"][:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - picked)

    value, slope = nnx.value_and_grad(loss)(model)
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda w, s: w - RATE * s, state, slope))
    return value


def scan_in_datarax(arrays, batch_size, shuffle):
    pipeline = pipeline_of(arrays, batch_size, shuffle)
    model = Softmax()
    number = (FEW if shuffle else SIZE) // batch_size

    def run():
        pipeline._position[...] = jnp.zeros((), jnp.int32)
        return pipeline.scan(train, modules=(model,), length=number)

    return run, number


def scanned(make):
    def made(arrays, batch_size, shuffle):
        run, first = make(arrays, batch_size, "shuffled" if shuffle else "in order")
        start, key = weights(), jax.random.key(1)
        return lambda: run(*first, start, key), SIZE // batch_size

    return made


LOOPS = {
    "ours": whole(ours),
    "datarax": in_datarax,
    "Grain": in_grain(),
    "Grain, plain": in_grain(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)),
    "Grain, batches": in_grain_by_batches,
    "ours, host": ours_on_host(lambda source: source),
    "ours, Grain's": ours_on_host(grain.MapDataset.source),
}
SCANS = {"ours": scanned(scan_ours), "datarax": scan_in_datarax}


def seconds(side):
    """The time of one batch."""
    run, number = side
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return (time.perf_counter() - begin) / number


def compare(bare, sides, pairs):
    for side in (bare, *sides.values()):
        seconds(side), seconds(side)
    found = {name: [] for name in sides}
    for _ in range(pairs):
        for name, side in sides.items():
            found[name].append(seconds(side) / seconds(bare))
    text = []
    for name, ratios in found.items():
        ratio = statistics.median(ratios)
        spread = statistics.median(abs(r - ratio) for r in ratios)
        text.append(f"{name} {ratio:.2f} ({spread:.2f})")
    return "; ".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", choices=["loop", "scan"])
    parser.add_argument("--sides", nargs="*", default=list(LOOPS))
    parser.add_argument("--orders", nargs="*", default=["in order", "shuffled"])
    parser.add_argument("--batches", nargs="*", type=int, default=[32, 256])
    args = parser.parse_args()
    arrays = data()
    print(f"jax {jax.__version__}, grain {grain.__version__}, {args.pairs} pairs")
    for kind, makers in {"loop": LOOPS, "scan": SCANS}.items():
        if args.only not in (None, kind):
            continue
        hand = whole(by_hand) if kind == "loop" else scanned(scan_by_hand)
        for order, batch_size in it.product(args.orders, args.batches):
            case = arrays, batch_size, order == "shuffled"
            made = {n: make(*case) for n, make in makers.items() if n in args.sides}
            text = compare(hand(*case), made, args.pairs)
            if kind == "loop" and order == "shuffled" and "datarax" in made:
                text += f" [{different(batch_size)} records]"
            print(f"{kind} {order} {batch_size}: {text}", flush=True)


if __name__ == "__main__":
    main()
