"""What a `Loader` over memory maps costs beside `device_put(array[indices])` by hand.

Run as `python benchmarks/data_host.py`. 60,000 images of 784 bytes with labels, on
disk (and in the page cache), as a dictionary of two memory maps, or the images alone.
By hand a batch is read by the numbers of its records and put on the device, one after
the other; shuffled, by a permutation that NumPy makes for each epoch, which counts. In
"trained" a jitted step takes each batch, and is waited for.

Both run in turn; printed are the median times of a batch, and the median of the ratios
ours / by hand with its median absolute deviation.
"""

import argparse
import itertools as it
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

SIZE, WIDTH = 60_000, 784
ORDERS = ["in order", "shuffled"]


def on_disk(folder):
    """Memory maps of data that are written first."""
    rng = np.random.default_rng(0)
    written = {
        "image": rng.integers(0, 256, (SIZE, WIDTH), np.uint8),
        "label": rng.integers(0, 10, SIZE, np.int32),
    }
    for name, array in written.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in written}


def by_hand(arrays, batch_size, order):
    def epoch(seed, use):
        rng = np.random.default_rng(seed)
        numbers = rng.permutation(SIZE) if order == "shuffled" else np.arange(SIZE)
        for start in range(0, SIZE, batch_size):
            at = numbers[start : start + batch_size]
            use(jax.device_put(jax.tree.map(lambda array, at=at: array[at], arrays)))

    return epoch


def ours(arrays, batch_size, order):
    shuffle = order == "shuffled"
    loader = ep.Loader(arrays, batch_size=batch_size, shuffle=shuffle)

    def epoch(seed, use):
        for batch in loader.epoch(loader.init(jax.random.key(seed))):
            use(batch)

    return epoch


@jax.jit
def step(weights, batch):
    images = batch["image"] if isinstance(batch, dict) else batch
    return weights + (images.astype(jnp.float32) / 255).mean(0)


class Use:
    """What is done with a batch: nothing, or a step that is waited for."""

    def __init__(self, trained):
        self.trained, self.weights = trained, jnp.zeros(WIDTH)

    def __call__(self, batch):
        self.last = batch
        if self.trained:
            self.weights = step(self.weights, batch).block_until_ready()


def seconds(epoch, seed, trained):
    use = Use(trained)
    begin = time.perf_counter()
    epoch(seed, use)
    jax.block_until_ready((use.last, use.weights))
    return time.perf_counter() - begin


def compare(a, b, trained, pairs):
    """The median times of both, the median ratio and its spread."""
    times = []
    for seed in range(-1, pairs):
        both = [(0, a), (1, b)][:: 1 if seed % 2 else -1]
        found = {k: seconds(epoch, abs(seed), trained) for k, epoch in both}
        times.append((found[0], found[1]))
    times = times[1:]  # the first warms up
    ratios = [mine / hand for mine, hand in times]
    ratio = statistics.median(ratios)
    spread = statistics.median(abs(r - ratio) for r in ratios)
    mine, hand = (statistics.median(t) for t in zip(*times, strict=True))
    return mine, hand, ratio, spread


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--batches", nargs="*", type=int, default=[32, 256])
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {SIZE} records, {args.pairs} pairs")
    print("case                       batch   by hand      ours   ratio (MAD)")
    with tempfile.TemporaryDirectory() as folder:
        maps = on_disk(pathlib.Path(folder))
        cases = [("two maps", False), ("two maps", True), ("one map", False)]
        for (name, trained), order, size in it.product(cases, ORDERS, args.batches):
            arrays = maps if name == "two maps" else maps["image"]
            both = (make(arrays, size, order) for make in (ours, by_hand))
            mine, hand, ratio, spread = compare(*both, trained, args.pairs)
            what = f"{name} {order}{', trained' if trained else ''}"
            hand, mine = (f"{1e6 * t * size / SIZE:6.0f} us" for t in (hand, mine))
            line = f"{what:<27} {size:>4} {hand} {mine}   {ratio:5.3f} ({spread:.3f})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
