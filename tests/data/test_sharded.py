"""Loaders that give sharded batches."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

KEY = jr.key(2)


def tree(size=24):
    return {"x": np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)}


def records(size=24):
    return [{"x": x} for x in tree(size)["x"]]


def noisy(record, *, key):
    return {"x": record["x"], "bits": jr.bits(key)}


KINDS = {
    "automatic": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Explicit, AxisType.Auto),
}


def mesh_of(axes="automatic"):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=KINDS[axes])


@pytest.mark.parametrize(
    ("kind", "mesh"),
    [("device", mesh_of()), ("host", mesh_of("mixed"))],
    ids=["device, automatic", "host, mixed"],
)
def test_batches_come_sharded_and_with_the_same_values(kind, mesh):
    """The last batch of six does not divide by four."""
    source = ep.data.ArraySource(tree(22)) if kind == "device" else records(22)
    sharding = NamedSharding(mesh, P("data", "model"))
    plain = ep.data.Loader(ep.data.ArraySource(tree(22)), noisy, batch_size=8)
    loader = ep.data.Loader(source, noisy, batch_size=8, sharding=sharding)
    cursor = loader.init(KEY)
    batches, expected = list(loader.epoch(cursor)), plain.epoch(plain.init(KEY))
    for batch, whole in zip(batches, expected, strict=True):
        assert (np.asarray(batch["x"]) == whole["x"]).all()
        assert (np.asarray(batch["bits"]) == whole["bits"]).all()
    first, _, last = batches
    for batch in (first, loader.next(cursor)[0]):
        assert batch["x"].sharding == sharding
        assert batch["bits"].sharding == NamedSharding(mesh, P("data"))
    assert last["x"].shape == (6, 2)
    assert last["x"].sharding == NamedSharding(mesh, P(None, "model"))


def test_the_source_is_moved_to_the_mesh_once():
    sharding = NamedSharding(mesh_of(), P("data"))
    loader = ep.data.Loader(
        ep.data.ArraySource(tree()), batch_size=8, sharding=sharding
    )
    x = loader.source.tree["x"]
    assert x.sharding.device_set == sharding.device_set
    again = ep.data.Loader(loader.source, batch_size=8, sharding=sharding)
    assert jax.tree.leaves(again.source)[0] is jax.tree.leaves(loader.source)[0]
    split = ep.data.ArraySource(jax.device_put(tree(), sharding))
    kept = ep.data.Loader(split, batch_size=8, sharding=sharding)
    assert kept.source.tree["x"].sharding.spec == P("data")
    a, b = (next(x.epoch(x.init(KEY)))["x"] for x in (loader, kept))
    assert (a == b).all()


@pytest.mark.parametrize(
    ("mesh", "axis"),
    [(mesh_of(), "model"), (mesh_of("mixed"), "data")],
    ids=["automatic", "mixed"],
)
def test_scan_over_sharded_batches(mesh, axis):
    sharding = NamedSharding(mesh, P(axis))
    loader = ep.data.Loader(
        ep.data.ArraySource(tree()), batch_size=8, sharding=sharding
    )
    step = lambda total, batch: (total + batch["x"].sum(), None)  # noqa: E731
    total, _, _ = loader.scan(step, 0.0, loader.init(KEY))
    assert np.allclose(total, tree()["x"].sum())


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_mesh_of_one_device(kind):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    source = ep.data.ArraySource(tree()) if kind == "device" else records()
    loader = ep.data.Loader(source, batch_size=8, sharding=sharding)
    cursor = loader.init(KEY)
    for batch in (next(loader.epoch(cursor)), loader.next(cursor)[0]):
        assert batch["x"].sharding.spec == P("data")


@pytest.mark.parametrize(
    ("kind", "early", "axes"),
    [
        ("device", True, "explicit"),
        pytest.param("host", False, "mixed", marks=pytest.mark.slow),
    ],
)
def test_loaders_under_the_users_explicit_mesh(kind, early, axes):
    mesh = mesh_of(axes)
    sharding = NamedSharding(mesh, P("data"))

    def build():
        source = ep.data.ArraySource(tree(22)) if kind == "device" else records(22)
        pipe = lambda record: record["x"]  # noqa: E731
        return ep.data.Loader(source, pipe, batch_size=8, sharding=sharding)

    loader = build() if early else None
    weight = jax.device_put(jnp.ones(()), NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        loader = loader or build()
        cursor = loader.init(KEY)
        first, *_ = batches = list(loader.epoch(cursor))
        assert first.sharding == sharding
        assert (first * weight).sharding.is_equivalent_to(sharding, 2)
        assert np.allclose(sum(np.asarray(b).sum(0) for b in batches), total(22))
        assert (loader.next(cursor)[0] == first).all()
        if kind == "device":
            step = lambda w, b: (w + b.sum(), None)  # noqa: E731
            carry, _, _ = loader.scan(step, weight, cursor)
            assert np.allclose(carry, 1 + batches[0].sum() + batches[1].sum())
            jitted = jax.jit(lambda cursor: loader.next(cursor)[0])(cursor)
            assert (np.asarray(jitted) == np.asarray(first)).all()
    if kind == "device":  # and outside of it
        plain, _, _ = loader.scan(step, jnp.zeros(()), cursor)
        typed, _, _ = loader.scan(step, weight, cursor)
        assert np.allclose(np.asarray(plain) + 1, np.asarray(typed))


def total(size):
    return tree(size)["x"].sum(0)


def test_a_mesh_without_devices_is_refused(unchecked):
    abstract = jax.sharding.AbstractMesh((4,), ("data",))
    with pytest.raises(TypeError, match="AbstractMesh.*mesh of devices"):
        sharding = NamedSharding(abstract, P("data"))
        ep.data.Loader(records(), batch_size=4, sharding=sharding)
