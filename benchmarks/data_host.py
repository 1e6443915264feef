"""What does a `Loader` over memory maps cost beside `device_put(array[indices])`?

60,000 images of 784 bytes with labels, on disk (and in the page cache), as a dictionary
of two memory maps. By hand a batch is read by the numbers of its
records and put on the device, one after the other; shuffled, by a permutation that
NumPy makes for each epoch, which counts. In "trained" a jitted step takes each batch,
and is waited for. Times are those of a batch.
"""

import itertools as it
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

ROUNDS = 20
WIDTH = 784
QUICK = {"size": 2_000, "batches": (256,)}


def on_disk(folder, size):
    """Memory maps of data that are written first."""
    rng = np.random.default_rng(0)
    written = {
        "image": rng.integers(0, 256, (size, WIDTH), np.uint8),
        "label": rng.integers(0, 10, size, np.int32),
    }
    for name, array in written.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in written}


def by_hand(arrays, size, batch_size, order):
    def epoch(seed):
        rng = np.random.default_rng(seed)
        numbers = rng.permutation(size) if order == "shuffled" else np.arange(size)
        for start in range(0, size, batch_size):
            at = numbers[start : start + batch_size]
            yield jax.device_put(jax.tree.map(lambda array, at=at: array[at], arrays))

    return epoch


def ours(arrays, size, batch_size, order):
    shuffle = order == "shuffled"
    loader = ep.data.Loader(arrays, batch_size=batch_size, shuffle=shuffle)
    return lambda seed: loader.epoch(loader.init(jax.random.key(seed)))


@jax.jit
def step(weights, batch):
    return weights + (batch["image"].astype(jnp.float32) / 255).mean(0)


def side(epoch, trained):
    """Run an epoch whose batches are left alone, or each taken by a step."""
    seeds = it.count()

    def once():
        weights = jnp.zeros(WIDTH)
        for batch in epoch(next(seeds)):
            if trained:
                weights = step(weights, batch).block_until_ready()
        return batch, weights

    return once


def main(run, *, size=60_000, batches=(32, 256)):
    with tempfile.TemporaryDirectory() as folder:
        maps = on_disk(pathlib.Path(folder), size)
        each = it.product((False, True), ("in order", "shuffled"), batches)
        for trained, order, num in each:
            for case in run.chosen([f"{order} {num}{', trained' * trained}"]):
                sides = {
                    name: side(make(maps, size, num, order), trained)
                    for name, make in {"by hand": by_hand, "ours": ours}.items()
                }
                per = dict.fromkeys(sides, -(-size // num))
                run.compare(case, sides, to="by hand", per=per)
