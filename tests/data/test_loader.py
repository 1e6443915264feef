"""`Loader`: the laws of an epoch, and bad input."""

import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep

SIZE = 12
KEY = jr.key(7)


def tree(size):
    x = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
    return {"x": x, "i": np.arange(size, dtype=np.int32)}


def device(size):
    return ep.data.ArraySource(tree(size))


def host(size):
    whole = tree(size)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], whole) for i in range(size)]


def noisy(record, *, key):
    """Augment a record, and return the bits of the key that it was given.

    Every program rounds it alike: it is one addition of exact numbers.
    """
    bits = jr.bits(key)
    noise = (bits >> 8).astype(jnp.float32)
    return {"x": record["x"] + noise, "i": record["i"], "key": bits}


def gathered(batches):
    """All batches of an iterator as one tree of NumPy arrays."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def same(a, b):
    return all(
        np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


batch_sizes = st.sampled_from([4, 5])
kinds = st.sampled_from([device, host])


def test_draws_belong_to_the_record_whatever_the_order():
    loaders = [
        ep.data.Loader(device(SIZE), noisy, batch_size=5, shuffle=shuffle)
        for shuffle in (True, False)
    ]
    shuffled, plain = (gathered(x.epoch(x.init(KEY))) for x in loaders)
    assert same(shuffled["key"], plain["key"][shuffled["i"]])
    assert same(shuffled["x"], plain["x"][shuffled["i"]])
    assert len(set(plain["key"].tolist())) == SIZE


@given(batch_size=batch_sizes, other=batch_sizes, data=st.data())
def test_a_resumed_epoch_goes_on_at_the_exact_record(batch_size, other, data):
    kind, other_kind = data.draw(kinds), data.draw(kinds)
    first = ep.data.Loader(kind(SIZE), noisy, batch_size=batch_size)
    second = ep.data.Loader(other_kind(SIZE), noisy, batch_size=other)
    whole = gathered(first.epoch(first.init(KEY)))
    iterator = first.epoch(first.init(KEY))
    cut = data.draw(st.integers(0, len(first) - 1))
    before = [next(iterator) for _ in range(cut)]
    after = list(second.epoch(iterator.cursor))
    assert iterator.cursor.position == min(SIZE, cut * batch_size)
    assert same(gathered([*before, *after]), whole)


def test_next_under_jit_is_next():
    loader = ep.data.Loader(device(SIZE), noisy, batch_size=5)
    fast = eqx.filter_jit(loader.next)
    cursors = [loader.init(KEY)] * 3
    on_host = ep.data.Loader(host(SIZE), noisy, batch_size=5)
    for _ in range(5):
        batches = []
        for i, step in enumerate((loader.next, fast, on_host.next)):
            batch, cursors[i] = step(cursors[i])
            batches.append(batch)
        assert same(batches[0], batches[1]) and same(batches[0], batches[2])
        assert all(eqx.tree_equal(cursors[0], other) for other in cursors[1:])


def test_next_under_vmap_over_keys():
    loader = ep.data.Loader(device(12), noisy, batch_size=4)
    keys = jr.split(KEY, 3)
    batches = jax.vmap(lambda key: loader.next(loader.init(key))[0])(keys)
    for i, key in enumerate(keys):
        one = loader.next(loader.init(key))[0]
        assert same(one["i"], batches["i"][i]) and same(one["key"], batches["key"][i])


def test_the_randomness_of_a_batch_belongs_to_epoch_and_offset():
    def marked(batch, *, key):
        return {**batch, "mark": jr.bits(key)}

    def marks(source, batch_size, cursor=None):
        loader = ep.data.Loader(source, batch_pipe=marked, batch_size=batch_size)
        cursor = loader.init(KEY) if cursor is None else cursor
        iterator = loader.epoch(cursor)
        return [int(b["mark"]) for b in iterator], iterator.cursor

    four, end = marks(device(12), 4)
    assert marks(host(12), 4)[0] == four
    assert marks(device(12), 8)[0] == four[::2]  # begins at 0 and 8
    assert len({*four, *marks(device(12), 4, end.next_epoch())[0]}) == 6


def test_what_pipe_and_batch_pipe_draw_from():
    """By the rule for named children: written out once."""

    def show(batch, *, key):
        return {**batch, "batch": jr.key_data(key)}

    def shown(record, *, key):
        return {"i": record, "record": jr.key_data(key)}

    loader = ep.data.Loader(
        jnp.arange(12, dtype=jnp.int32), shown, batch_pipe=show, batch_size=4
    )
    cursor = loader.init(KEY).next_epoch()
    _, batch = (next(it) for it in [loader.epoch(cursor)] * 2)

    def named(name):
        return jr.fold_in(KEY, np.uint32(zlib.crc32(name.encode())))

    for i, data in zip(batch["i"], batch["record"], strict=True):
        key = jr.fold_in(jr.fold_in(named("pipe"), 1), i)
        assert same(jr.key_data(key), data)
    key = jr.fold_in(jr.fold_in(named("batch_pipe"), 1), 4)
    assert same(jr.key_data(key), batch["batch"])


def test_records_of_one_bare_array_and_of_keys():
    keys = jr.split(KEY, 6)
    loader = ep.data.Loader(ep.data.ArraySource(keys), jr.bits, batch_size=4)
    found = gathered(loader.epoch(loader.init(KEY)))
    assert sorted(found.tolist()) == sorted(jax.vmap(jr.bits)(keys).tolist())


def test_a_raw_key_is_the_typed_one():
    loader = ep.data.Loader(device(12), noisy, batch_size=4)
    raw = loader.next(loader.init(jr.PRNGKey(7)))[0]
    assert same(raw, loader.next(loader.init(KEY))[0])


def test_gradients_reach_the_parameters_of_pipe():
    loader = ep.data.Loader(
        device(5), ep.at("x", eqx.nn.Linear(3, 2, key=KEY)), batch_size=5
    )

    def loss(loader):
        return loader.next(loader.init(KEY))[0]["x"].sum()

    def of_pipe(pipe):
        return loss(eqx.tree_at(lambda x: x.pipe, loader, pipe))

    slope = eqx.filter_grad(of_pipe)(loader.pipe)
    assert np.allclose(jax.tree.leaves(slope)[0], tree(5)["x"].sum(0)[None])


# Bad input.


def test_a_batch_longer_than_the_source_is_for_epoch_alone():
    for source in (device(5), list(range(5))):
        long = ep.data.Loader(source, batch_size=6)
        assert len(list(long.epoch(long.init(KEY)))) == 1
        with pytest.raises(ValueError, match="`batch_size` is 6.*use `epoch`"):
            long.next(long.init(KEY))


def test_errors_in_pipe_name_the_stage():
    pipe = ep.chain(scale=lambda r: r["x"] * 2, bad=lambda x: x @ jnp.zeros((4, 4)))
    loader = ep.data.Loader(device(5), pipe, batch_size=2)
    with pytest.raises(TypeError) as error:
        next(loader.epoch(loader.init(KEY)))
    assert "pipe.bad" in error.value.__notes__[0]
