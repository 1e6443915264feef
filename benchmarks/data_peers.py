"""The loops of `data_loader.py` also in datarax and Grain, side by side in one process.

    pip install datarax grain eqx_pipe && python benchmarks/data_peers.py

60,000 images of 28 x 28 bytes with labels, made float: on the device for the bare loop,
ours and datarax; on the host for Grain and, in the last column, for ours (a list of
records that is read by threads). Grain reads with its default options. Figures are the
ratios to the bare loop, whose shuffled order is a permutation made beforehand, which
counts: median and median absolute deviation. Where datarax shuffles, the number of
different records that it gave in an epoch is shown.
"""

import argparse
import statistics
import time
import warnings

import grain
import jax
import jax.numpy as jnp
import numpy as np
from data_loader import SIZE, by_hand, data, ours, scaled
from datarax.pipeline import Pipeline
from datarax.sources import MemorySource, MemorySourceConfig
from flax import nnx

import eqx_pipe as ep

warnings.simplefilter("ignore")


class Scaled(nnx.Module):
    """The stage, as datarax takes it."""

    def __call__(self, batch):
        return scaled(batch)


def in_datarax(arrays, batch_size, shuffle):
    source = MemorySource(
        MemorySourceConfig(shuffle=shuffle), data=arrays, rngs=nnx.Rngs(0, shuffle=1)
    )
    pipeline = Pipeline(
        source=source, stages=[Scaled()], batch_size=batch_size, rngs=nnx.Rngs(0)
    )

    def epoch(number, keep=None):
        pipeline._position[...] = jnp.zeros((), jnp.int32)
        last = None
        for batch in pipeline:
            last = batch
            if keep is not None:
                keep.append(np.asarray(batch["label"]))
        return last

    return epoch


def records(arrays):
    host = jax.tree.map(np.asarray, arrays)
    return [
        {"image": image, "label": label}
        for image, label in zip(host["image"], host["label"], strict=True)
    ]


def in_grain(arrays, batch_size, shuffle):
    dataset = grain.MapDataset.source(records(arrays))
    fast = jax.jit(scaled)

    def epoch(number):
        ordered = dataset.shuffle(seed=number) if shuffle else dataset
        last = None
        for batch in ordered.to_iter_dataset().batch(batch_size):
            last = fast(batch)
        return last

    return epoch


def ours_on_host(arrays, batch_size, shuffle):
    loader = ep.Loader(records(arrays), scaled, batch_size=batch_size, shuffle=shuffle)

    def epoch(number):
        last = None
        for batch in loader.epoch(loader.init(jax.random.key(number))):
            last = batch
        return last

    return epoch


def seconds(epoch):
    begin = time.perf_counter()
    jax.block_until_ready(epoch(1))
    return time.perf_counter() - begin


def different(make, batch_size):
    """How many different records datarax gives in a shuffled epoch."""
    arrays = {"image": data()["image"], "label": jnp.arange(SIZE)}
    seen = []
    make(arrays, batch_size, True)(1, seen)
    return len(np.unique(np.concatenate(seen)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--sides", nargs="*", default=["datarax", "ours", "grain"])
    parser.add_argument("--shuffled", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--batches", nargs="*", type=int, default=[32, 256])
    args = parser.parse_args()
    sides = {"ours": ours, "datarax": in_datarax, "Grain": in_grain}
    sides["ours, host"] = ours_on_host
    arrays = data()
    print(f"jax {jax.__version__}, grain {grain.__version__}, {args.pairs} pairs")
    orders = {"yes": [True], "no": [False], "both": [False, True]}[args.shuffled]
    for shuffle in orders:
        for batch_size in args.batches:
            bare = by_hand(arrays, batch_size, shuffle)
            runs = {}
            for name, make in sides.items():
                if any(side.lower() in name.lower() for side in args.sides):
                    runs[name] = make(arrays, batch_size, shuffle)
            for run in (bare, *runs.values()):
                seconds(run)
            found = {name: [] for name in runs}
            for _ in range(args.pairs):
                for name, run in runs.items():
                    found[name].append(seconds(run) / seconds(bare))
            text = []
            for name, ratios in found.items():
                ratio = statistics.median(ratios)
                spread = statistics.median(abs(r - ratio) for r in ratios)
                text.append(f"{name} {ratio:.2f} ({spread:.2f})")
            order = "shuffled" if shuffle else "in order"
            note = ""
            if shuffle and "datarax" in runs:
                note = f"  (datarax: {different(in_datarax, batch_size)} records)"
            print(f"{order} batch {batch_size:<4} {', '.join(text)}{note}", flush=True)


if __name__ == "__main__":
    main()
