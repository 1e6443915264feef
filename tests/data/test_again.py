"""A second epoch, iterator or loader compiles and moves nothing again."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(4)
SIZE = 200


@contextlib.contextmanager
def nothing_again(monkeypatch):
    """Nothing is compiled, and no more is moved to the device than a few numbers."""
    moved, put = [], jax.device_put

    def counting(tree, *args, **kwargs):
        leaves = jax.tree.leaves(tree)
        moved.append(sum(np.asarray(x).nbytes for x in leaves if not _there(x)))
        return put(tree, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_put", counting)
        with ept.assert_compiles(0):
            yield
    assert sum(moved) < 200


def _there(x):
    return isinstance(x, jax.Array)


def data(seed=0):
    images = np.random.default_rng(seed).normal(size=(SIZE, 28)).astype(np.float32)
    return {"x": images, "y": np.arange(SIZE, dtype=np.int32)}


def noisy(record, *, key):
    return {"x": record["x"] + jr.normal(key, (28,)), "y": record["y"]}


def run_epoch(loader, cursor):
    iterator = loader.epoch(cursor)
    for batch in iterator:
        jax.block_until_ready(batch)
    return iterator.cursor.next_epoch()


def run_next(loader, cursor):
    for _ in range(len(loader) + 1):
        batch, cursor = loader.next(cursor)
        jax.block_until_ready(batch)
    return cursor


def step(total, batch):
    return total + batch["x"].sum(), batch["y"][0]


def run_scan(loader, cursor):
    start = run_scan.start
    return jax.block_until_ready(loader.scan(step, start, cursor))[2]


@pytest.mark.parametrize(
    ("run", "shuffle"), [(run_epoch, True), (run_next, False), (run_scan, True)]
)
def test_a_second_epoch_iterator_or_loader(run, shuffle, monkeypatch):
    run_scan.start = jnp.zeros(())
    source = ep.data.ArraySource(data())
    options = {"batch_size": 48, "shuffle": shuffle}  # does not divide
    loader = ep.data.Loader(source, noisy, **options)
    cursor, other_key = run(loader, loader.init(KEY)), jr.key(5)
    with nothing_again(monkeypatch):
        cursor = run(loader, cursor)  # from where the first one ended
        run(loader, loader.init(other_key))
        twin = ep.data.Loader(source, noisy, **options)
        run(twin, twin.init(KEY))
    other = ep.data.ArraySource(data(1))
    with nothing_again(monkeypatch):  # other data of the same form
        third = ep.data.Loader(other, noisy, **options)
        run(third, third.init(KEY))


def test_the_arrays_of_a_source_are_the_ones_that_are_read():
    source = ep.data.ArraySource(data())
    pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(source)]
    loader = ep.data.Loader(source, batch_size=32)
    run_epoch(loader, loader.init(KEY))
    held = jax.tree.leaves(loader.source)
    assert [x.unsafe_buffer_pointer() for x in held] == pointers


def test_a_second_epoch_of_a_host_source_compiles_nothing(monkeypatch):
    loader = ep.data.Loader(data()["x"], lambda x: x + 1, batch_size=48)
    cursor = run_epoch(loader, loader.init(KEY))
    other = loader.init(jr.key(6))
    with ept.assert_compiles(0):
        run_epoch(loader, cursor), run_epoch(loader, other)


def bytes_of_scan(drop, shuffle=False):
    source = ep.data.ArraySource({"x": jnp.zeros((2000, 28, 28), jnp.uint8)})
    loader = ep.data.Loader(
        source,
        lambda record: {"x": record["x"].astype(jnp.float32)},
        batch_size=48,
        shuffle=shuffle,
        drop_remainder=drop,
    )
    summed = lambda total, batch: (total + batch["x"].sum(), None)  # noqa: E731

    @eqx.filter_jit
    def run(loader, total, key):
        return loader.scan(summed, total, loader.init(key), length=100)[0]

    compiled = run.lower(loader, jnp.zeros(()), KEY).compile()
    return compiled.compiled.cost_analysis()["bytes accessed"]


def test_batches_that_run_over_move_no_more_than_shuffled_ones():
    """A choice between a stretch and a gather once moved the whole source each time."""
    assert bytes_of_scan(drop=False) < 1.2 * bytes_of_scan(drop=True, shuffle=True)
