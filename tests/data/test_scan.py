"""`Loader.scan`: a loop over batches as one program."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqx_pipe as ep

KEY = jr.key(3)


def source(size=12):
    x = jnp.arange(2.0 * size).reshape(size, 2) / size
    return ep.data.ArraySource({"x": x, "i": jnp.arange(size, dtype=jnp.int32)})


def noisy(record, *, key):
    bits = jr.bits(key)
    noise = (bits >> 8).astype(jnp.float32) / 2**24
    return {"x": record["x"] + noise, "i": record["i"], "key": bits}


def total(carry, batch):
    return carry + batch["x"].sum(), {"i": batch["i"], "key": batch["key"]}


@pytest.mark.parametrize(
    ("shuffle", "drop", "traced", "size"),
    [(True, False, True, 12), (False, True, False, 12), (False, False, False, 42)],
)
def test_scan_is_the_loop(shuffle, drop, traced, size):
    """Bit for bit in records and keys, values to rounding, across epochs."""
    loader = ep.data.Loader(
        source(size), noisy, batch_size=5, shuffle=shuffle, drop_remainder=drop
    )
    _, cursor = loader.next(loader.init(KEY))
    scan = eqx.filter_jit(ep.data.Loader.scan) if traced else ep.data.Loader.scan
    length = 4 if size == 12 else 2 * size // 5 + 1
    carry, outputs, after = scan(loader, total, jnp.zeros(()), cursor, length=length)
    expected, found = jnp.zeros(()), []
    for _ in range(length):
        batch, cursor = loader.next(cursor)
        expected, output = total(expected, batch)
        found.append(output)
    found = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    assert np.allclose(carry, expected)
    assert (outputs["i"] == found["i"]).all() and (outputs["key"] == found["key"]).all()
    assert eqx.tree_equal(after, cursor)


def test_by_default_it_takes_the_full_batches_of_an_epoch():
    loader = ep.data.Loader(source(13), noisy, batch_size=4)
    _, outputs, cursor = loader.scan(total, jnp.zeros(()), loader.init(KEY))
    assert outputs["i"].shape == (3, 4) and cursor.position == 12
    (last,) = loader.epoch(cursor)
    records = [*outputs["i"].ravel().tolist(), *last["i"].tolist()]
    assert sorted(records) == list(range(13))


class Net(eqx.Module):
    """A model with leaves that are no arrays: a function, and a dropout's rate."""

    layer: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    activation: object

    def __init__(self, key):
        self.layer = eqx.nn.Linear(2, 1, key=key)
        self.dropout = eqx.nn.Dropout(0.25)
        self.activation = jnp.tanh

    def __call__(self, x, *, key):
        return self.activation(self.dropout(self.layer(x), key=key))[0]


optimizer = optax.adam(1e-2)


@pytest.fixture
def not_strict():
    """Optax mixes dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def train_step(carry, batch):
    """As one writes it without a thought to what is an array."""
    model, state, best = carry

    def loss(model):
        keys = jax.vmap(jr.key)(batch["key"])
        return jnp.mean(jax.vmap(lambda x, k: model(x, key=k))(batch["x"], keys) ** 2)

    value, slope = eqx.filter_value_and_grad(loss)(model)
    updates, state = optimizer.update(slope, state, eqx.filter(model, eqx.is_array))
    return (eqx.apply_updates(model, updates), state, jnp.minimum(best, value)), value


def start():
    model = Net(KEY)
    # `inf` is a Python number, and becomes an array in the step.
    return model, optimizer.init(eqx.filter(model, eqx.is_array)), float("inf")


def test_a_model_and_an_optimizer_state_as_the_carry(not_strict):
    loader = ep.data.Loader(source(), noisy, batch_size=4)
    carry, losses, _ = loader.scan(train_step, start(), loader.init(KEY))
    cursor, expected, one = loader.init(KEY), start(), eqx.filter_jit(train_step)
    for loss in losses:
        batch, cursor = loader.next(cursor)
        expected, value = one(expected, batch)
        assert np.allclose(loss, value, atol=1e-6)
    model, state, best = carry
    assert np.allclose(model.layer.weight, expected[0].layer.weight, atol=1e-6)
    assert model.dropout.p == 0.25 and model.activation is jnp.tanh
    assert np.allclose(best, losses.min()) and isinstance(best, jax.Array)


def test_a_resumed_training_is_an_uninterrupted_one(tmp_path, not_strict):
    loader = ep.data.Loader(source(), noisy, batch_size=4)
    whole, losses, _ = loader.scan(train_step, start(), loader.init(KEY), length=5)
    carry, first, cursor = loader.scan(train_step, start(), loader.init(KEY), length=2)
    path = tmp_path / "checkpoint.eqx"
    eqx.tree_serialise_leaves(path, (carry, cursor))
    like = (*start()[:2], jnp.zeros(())), loader.init(KEY)
    carry, cursor = eqx.tree_deserialise_leaves(path, like)
    carry, second, _ = loader.scan(train_step, carry, cursor, length=3)
    # Scans of another length are other programs, which may round otherwise.
    close = ft.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    close(jnp.concatenate([first, second]), losses)
    close(carry[0].layer.weight, whole[0].layer.weight)


def test_gradients_flow_through_scan_to_pipe():
    def loss(scale):
        pipe = ep.at("x", lambda x: x * scale)
        loader = ep.data.Loader(source(), pipe, batch_size=4)
        step = lambda sum_, batch: (sum_ + batch["x"].sum(), None)  # noqa: E731
        return loader.scan(step, 0.0, loader.init(KEY))[0]

    expected = source().tree["x"].sum()
    assert np.allclose(jax.jit(jax.grad(loss))(2.0), expected)


def test_scan_under_vmap_over_keys():
    loader = ep.data.Loader(source(), noisy, batch_size=4)

    def run(key):
        return loader.scan(total, jnp.zeros(()), loader.init(key))[1]["i"]

    keys = jr.split(KEY, 3)
    together = jax.jit(jax.vmap(run))(keys)
    assert all((run(k) == i).all() for k, i in zip(keys, together, strict=True))


def test_one_program_for_every_epoch():
    steps = []

    def step(carry, batch):
        steps.append(1)
        return carry + batch["i"].sum(), None

    for size in (12, 13):  # so that batches run over into the next epoch, too
        steps.clear()
        loader = ep.data.Loader(source(size), batch_size=4)
        cursor, carry = loader.init(KEY), jnp.asarray(0, jnp.int32)
        for _ in range(4):
            carry, _, cursor = loader.scan(step, carry, cursor)
        _, _, cursor = loader.scan(step, carry, cursor.next_epoch())
        assert len(steps) == 1
        assert size == 13 or carry == 4 * 66
    loader = ep.data.Loader(source(), batch_size=4)
    loader.scan(step, carry, loader.init(KEY))
    traces = len(steps)
    other = ep.data.Loader(source(), batch_size=4)  # other arrays, the same program
    other.scan(step, carry, other.init(jr.key(9)))
    assert len(steps) == traces


def test_python_numbers_in_the_carry_are_arrays_except_in_modules():
    traces = []

    def step(carry, batch):
        traces.append(1)
        count, total, drop = carry
        assert isinstance(drop.p, float)
        return (count + 1, total + batch["x"].sum(), drop), None

    loader = ep.data.Loader(source(), batch_size=4)
    carry, cursor = (0, 0.0, eqx.nn.Dropout(0.5)), loader.init(KEY)
    for _ in range(3):
        carry, _, cursor = loader.scan(step, carry, cursor)
    assert carry[0] == 9 and carry[0].dtype == jnp.int32 and carry[2].p == 0.5
    assert np.allclose(carry[1], 3 * source().tree["x"].sum())
    carry, _, _ = loader.scan(step, (2, 0.0, carry[2]), loader.init(KEY))
    assert carry[0] == 5 and len(traces) == 1


def costs(function, *args):
    """Return what one program costs, and what it returns."""
    compiled = eqx.filter_jit(function).lower(*args).compile()
    found = getattr(compiled, "compiled", compiled).cost_analysis()
    return np.asarray([found["flops"], found["bytes accessed"]]), compiled(*args)


def epochs_by(batch_of, size, **options):
    """Return the costs of an epoch in batches of 16, as a part of those by hand."""
    x, w = jnp.ones((size, 128)), jnp.zeros((128, 10))

    def step(w, batch):
        slope = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
        return w - 0.1 * slope, None

    def by_hand(x, w):
        def body(w, start):
            return step(w, batch_of(x, start))

        return jax.lax.scan(body, w, jnp.arange(size // 16) * 16)[0]

    loader = ep.data.Loader(
        ep.data.ArraySource(x), batch_size=16, shuffle=False, **options
    )

    def ours(loader, w):
        return loader.scan(step, w, loader.init(jr.key(0)))[0]

    (mine, found), (theirs, expected) = costs(ours, loader, w), costs(by_hand, x, w)
    assert np.allclose(found, expected)
    return mine / theirs


@pytest.mark.parametrize("size, drop", [(64, False), (70, True)])
def test_in_order_it_costs_what_the_loop_by_hand_costs(size, drop):
    """A few operations on the place in the epoch are all that may come on top."""
    slices = ft.partial(jax.lax.dynamic_slice_in_dim, slice_size=16)
    flops, moved = epochs_by(slices, size, drop_remainder=drop)
    # XLA counts an operation for bits that are read as a number, beside 40 of the step.
    assert flops - 1 / 40 < 1.01 and moved < 1.01


def test_running_over_costs_no_more_than_a_gather_by_hand():
    gathers = lambda x, start: x[(start + jnp.arange(16)) % len(x)]  # noqa: E731
    flops, moved = epochs_by(gathers, 1000)
    assert flops < 1.05 and moved < 1.01


def test_inside_a_program_the_source_is_not_copied():
    loader = ep.data.Loader(source(4096), batch_size=8)

    def run(cursor):
        return loader.scan(lambda s, b: (s + b["x"].sum(), None), 0.0, cursor, 3)[0]

    program = jax.jit(run).lower(loader.init(KEY)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4096
