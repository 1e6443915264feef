"""Records are data: gradients and optimisers leave them alone, and train the pipes."""

import functools as ft
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

KEY = jr.key(5)


@pytest.fixture
def not_strict():
    """Optax mixes dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def tree(size=12):
    x = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1), "i": np.arange(size, dtype=np.int32)}


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def sharded():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return {"sharding": NamedSharding(mesh, P("data"))}


SOURCES = {
    "arrays": lambda: ep.data.ArraySource(tree()),
    "JAX arrays": lambda: ep.data.ArraySource(jax.tree.map(jnp.asarray, tree())),
    "host": lambda: [jax.tree.map(lambda leaf: leaf[0], tree())] * 12,
}


def loss_by_next(loader, cursor):
    batch, after = loader.next(cursor)
    return jnp.mean((batch["x"][:, 0] - batch["y"]) ** 2), after


def loss_by_scan(loader, cursor):
    def step(total, batch):
        return total + jnp.mean((batch["x"][:, 0] - batch["y"]) ** 2), None

    total, _, after = loader.scan(step, jnp.zeros(()), cursor, length=2)
    return total, after


def train(loader, loss, steps, jit):
    optimizer = optax.adamw(1e-2, weight_decay=0.1)
    update = eqx.filter_jit(optimizer.update)  # one program where `step` is none
    state = optimizer.init(eqx.filter(loader, eqx.is_inexact_array))

    def step(loader, state, cursor):
        slope, cursor = eqx.filter_grad(loss, has_aux=True)(loader, cursor)
        given = eqx.filter(loader, eqx.is_inexact_array)
        updates, state = update(slope, state, given)
        return eqx.apply_updates(loader, updates), state, cursor

    step, cursor = jit(step), loader.init(KEY)
    for _ in range(steps):
        loader, state, cursor = step(loader, state, cursor)
    return loader


def learned(source, **options):
    layer = eqx.nn.Linear(3, 1, key=KEY)
    return ep.data.Loader(source, ep.at("x", layer), batch_size=4, **options)


@pytest.mark.parametrize(
    ("name", "loss", "jit", "options"),
    [
        ("arrays", loss_by_next, eqx.filter_jit, sharded),
        ("JAX arrays", loss_by_scan, eqx.filter_jit, dict),
        ("host", loss_by_next, lambda step: step, dict),
    ],
)
def test_a_training_of_the_loader_trains_its_pipe_alone(
    name, loss, jit, options, not_strict
):
    loader = learned(SOURCES[name](), **options())
    plain = ep.data.Loader(loader.source, batch_size=4, shuffle=False)
    before = [bits(batch) for batch in plain.epoch(plain.init(KEY))]
    after = train(loader, loss, 2, jit)
    plain = ep.data.Loader(after.source, batch_size=4, shuffle=False)
    assert [bits(batch) for batch in plain.epoch(plain.init(KEY))] == before
    old, new = loader.pipe.stage, after.pipe.stage
    assert (old.weight != new.weight).all() and (old.bias != new.bias).all()


def test_no_leaf_of_a_source_is_a_parameter():
    source = SOURCES["JAX arrays"]()
    loader = learned(SOURCES["arrays"]())
    assert jax.tree.leaves(eqx.filter(source, eqx.is_inexact_array)) == []
    slope, _ = eqx.filter_grad(loss_by_next, has_aux=True)(loader, loader.init(KEY))
    assert jax.tree.leaves(slope.source) == [] and "None" in repr(slope.source)
    assert len(jax.tree.leaves(slope)) == 2
    assert len(jax.tree.leaves(loader.init(KEY), is_leaf=eqx.is_inexact_array)) == 4


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", np.asarray),
        ("bfloat16", jnp.asarray),
        ("float4_e2m1fn", np.asarray),
        ("complex64", jnp.asarray),
    ],
)
def test_every_bit_of_a_number_is_kept(dtype, kind):
    rng = np.random.default_rng(1)
    size = np.dtype(dtype).itemsize
    random = rng.integers(0, 256, (8, 3 * size), dtype=np.uint8)
    if dtype == "float4_e2m1fn":  # of which NumPy keeps one in a byte
        random %= 16
    x = kind(random.view(dtype))  # NaN of many kinds, infinities, subnormal numbers
    source = ep.data.ArraySource({"x": x})
    assert source.tree["x"].dtype == x.dtype and source[2]["x"].shape == (3,)
    assert bits(source.tree) == bits(x) and bits(source[2]) == bits(x[2])
    loader = ep.data.Loader(source, batch_size=8, shuffle=False)
    batch, _ = loader.next(loader.init(KEY))
    assert bits(batch) == bits(x) and batch["x"].dtype == x.dtype


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_numbers_of_64_bits(dtype):
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(4, 2)).astype(dtype) * (1 + 1e-12)
        source = ep.data.ArraySource(x)
        assert bits(source.tree) == bits(x) and source.tree.dtype == dtype
        assert jax.tree.leaves(eqx.filter(source, eqx.is_inexact_array)) == []


def test_what_is_no_number_for_derivatives_stays_as_it_is():
    given = {"i": jnp.arange(3), "b": jnp.zeros((3, 2), bool), "k": jr.split(KEY, 3)}
    held = jax.tree.leaves(ep.data.ArraySource(given))
    assert all(a is b for a, b in zip(held, jax.tree.leaves(given), strict=True))


def test_a_source_is_an_argument_of_a_program():
    traces = []

    @eqx.filter_jit
    def run(loader, cursor):
        traces.append(1)
        return loader.next(cursor)[0]["x"], loader

    found = []
    for scale in (1.0, 2.0):
        scaled = {k: (scale * v).astype(v.dtype) for k, v in tree(400).items()}
        loader = ep.data.Loader(ep.data.ArraySource(scaled), batch_size=4)
        batch, back = run(loader, loader.init(KEY))
        found.append(batch)
        assert bits(back.source.tree) == bits(scaled)
    assert len(traces) == 1 and (2 * found[0] == found[1]).all()
    jaxpr = jax.make_jaxpr(ft.partial(_first, loader.init(KEY)))(loader)
    assert all(np.size(constant) < 100 for constant in jaxpr.consts)


def _first(cursor, loader):
    return loader.next(cursor)[0]


def test_a_source_can_be_saved_replaced_and_mapped_over(tmp_path):
    source = ep.data.ArraySource(
        {"x": jnp.ones((4, 2)), "z": jnp.ones(4, jnp.complex64)}
    )
    other = jax.tree.map(jnp.zeros_like, source)
    assert bits(other.tree) == bits(jax.tree.map(jnp.zeros_like, source.tree))
    path = tmp_path / "source.eqx"
    eqx.tree_serialise_leaves(path, source)
    back = eqx.tree_deserialise_leaves(path, other)
    assert eqx.tree_equal(back, source) and not eqx.tree_equal(back, other)
    loader = ep.data.Loader(source, batch_size=2)
    changed = eqx.tree_at(lambda x: x.source, loader, other)
    assert bits(changed.source.tree) == bits(other.tree)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), source, other)
    index = jnp.asarray([1, 3], jnp.uint32)

    def run(source):
        loader = eqx.tree_at(
            lambda x: x.source, ep.data.Loader(other, batch_size=2), source
        )
        return loader.next(loader.init(KEY))[0]

    batches = eqx.filter_vmap(run)(both)
    assert batches["z"].shape == (2, 2) and batches["x"].sum() == 2 * len(index)


def test_a_sharded_source_stays_where_it_is():
    placed = sharded()["sharding"]
    x = jax.device_put(jnp.ones((8, 2)), placed)
    source = ep.data.ArraySource(x)
    (leaf,) = jax.tree.leaves(source)
    assert leaf.sharding == placed and source.tree.sharding == placed


def test_a_source_made_of_what_is_differentiated_has_its_derivative():
    def run(scale, x):
        loader = ep.data.Loader(
            ep.data.ArraySource(x), lambda r: scale * r, batch_size=4
        )
        return loader.next(loader.init(KEY))[0].sum()

    for call in (run, jax.jit(run)):
        by_scale, by_records = jax.grad(call, (0, 1))(2.0, jnp.ones((4, 2)))
        assert by_scale == 8 and (by_records == 2).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex64, bool])
def test_rows_of_a_tpu_hold_the_same_records(dtype, monkeypatch):
    """A TPU reads records as whole rows; batches are the same as elsewhere."""
    numbers = np.random.default_rng(0).integers(0, 9, size=(20, 9, 11))
    x = {"x": numbers.astype(dtype), "y": np.arange(20, dtype=np.int32)}
    elsewhere = ep.data.ArraySource(x)
    device = types.SimpleNamespace(platform="tpu")
    monkeypatch.setattr("eqx_pipe._data.source.default_devices", lambda: [device])
    source = ep.data.ArraySource(x)
    held = jax.tree.leaves(source)[0]
    assert held.shape == (20, -(-99 * (2 if dtype == np.complex64 else 1) // 128) * 128)
    assert bits(source.tree) == bits(elsewhere.tree) == bits(x)
    assert source.struct() == elsewhere.struct()
    assert bits(source[7]) == bits(elsewhere[7])
    for shuffle in (True, False):
        mine, theirs = (
            ep.data.Loader(s, batch_size=6, shuffle=shuffle)
            for s in (source, elsewhere)
        )
        pairs = zip(
            mine.epoch(mine.init(KEY)), theirs.epoch(theirs.init(KEY)), strict=True
        )
        assert all(bits(a) == bits(b) for a, b in pairs)
