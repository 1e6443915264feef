"""`reduce_batches`: statistics of the batches of a loader."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(3)


def data(size=23):
    rng = np.random.default_rng(0)
    return (1000 + rng.normal(size=(size, 3))).astype(np.float32)


@pytest.mark.parametrize(("kind", "batch_size"), [("device", 5), ("host", 23)])
def test_statistics_are_those_of_the_data(kind, batch_size):
    x = data()
    source = ep.data.ArraySource(x) if kind == "device" else x
    loader = ep.data.Loader(source, batch_size=batch_size)
    reducers = {
        "mean": ep.reduce.Mean(),
        "var": ep.reduce.Var(),
        "top": ep.reduce.TopK(2, by=lambda x: x[0]),
    }
    found = ep.reduce.reduce_batches(loader.epoch(loader.init(KEY)), reducers)
    wide = x.astype(np.float64)
    assert np.allclose(found["mean"], wide.mean(0), rtol=1e-6)
    assert np.allclose(found["var"], wide.var(0), rtol=1e-4)
    assert np.allclose(np.sort(found["top"].value), np.sort(x[:, 0])[-2:])


def test_statistics_of_another_epoch_compile_nothing():
    loader = ep.data.Loader(ep.data.ArraySource(data()), batch_size=5)
    cursor, by = loader.init(KEY), lambda x: x[0]

    def reduced(cursor, k=2):
        reducers = {"top": ep.reduce.TopK(k, by=by), "mean": ep.reduce.Mean()}
        return ep.reduce.reduce_batches(loader.epoch(cursor), reducers)["mean"]

    found = [reduced(cursor)]
    with ept.assert_compiles(0):
        for _ in range(2):
            cursor = cursor.next_epoch()
            found.append(reduced(cursor))
    assert np.allclose(found, data().mean(0))
    with pytest.raises(AssertionError, match="compiled"), ept.assert_compiles(0):
        reduced(loader.init(KEY), k=3)


def test_only_the_rest_of_an_epoch_counts():
    loader = ep.data.Loader(
        ep.data.ArraySource(np.arange(10)), batch_size=4, shuffle=False
    )
    _, cursor = loader.next(loader.init(KEY))
    assert ep.reduce.reduce_batches(loader.epoch(cursor), ep.reduce.Sum()) == sum(
        range(4, 10)
    )
    _, cursor = loader.next(cursor)
    iterator = loader.epoch(cursor)
    list(iterator)
    assert ep.reduce.reduce_batches(
        loader.epoch(iterator.cursor), ep.reduce.Sum()
    ) == sum(range(10))


def test_bad_statistics(unchecked):
    loader = ep.data.Loader(ep.data.ArraySource(data()), batch_size=5)
    with pytest.raises(TypeError, match="not a reducer"):
        ep.reduce.reduce_batches(loader.epoch(loader.init(KEY)), jnp.mean)
    with pytest.raises(TypeError, match="Give an iterable of batches"):
        ep.reduce.reduce_batches(loader, ep.reduce.Mean())
    scalar = ep.data.Loader(loader.source, batch_pipe=jnp.sum, batch_size=5)
    with pytest.raises(ep.StructureError, match="Let `batch_pipe` return one entry"):
        ep.reduce.reduce_batches(scalar.epoch(scalar.init(KEY)), ep.reduce.Mean())
    assert jax.tree.leaves(loader)
