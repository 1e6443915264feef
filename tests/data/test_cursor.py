"""`Cursor`: saving, resuming, and telling that it is another one's."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(1)


def make(size=10, **options):
    options = {"batch_size": 3, **options}
    return ep.data.Loader(
        ep.data.ArraySource(jnp.arange(size, dtype=jnp.int32)), **options
    )


def moved(loader, steps=5):
    cursor = loader.init(KEY)
    for _ in range(steps):
        _, cursor = loader.next(cursor)
    return cursor


def test_where_it_stands():
    cursor = moved(make())
    assert (cursor.epoch, cursor.position) == (1, 5)
    assert type(cursor.epoch) is int and jax.jit(lambda c: c.epochs)(cursor) == 1
    after = cursor.next_epoch()
    assert (after.epoch, after.position) == (2, 0)
    assert (jr.key_data(after.key) == jr.key_data(KEY)).all()


@pytest.mark.parametrize("how", ["leaves", "leaves into a fresh one"])
def test_it_goes_through_a_file(how, tmp_path):
    loader = make()
    cursor, path = moved(loader), tmp_path / "cursor"
    eqx.tree_serialise_leaves(path, cursor)
    like = cursor if how == "leaves" else make().init(jr.key(99))
    back = eqx.tree_deserialise_leaves(path, like)
    assert eqx.tree_equal(back, cursor)
    assert (loader.next(back)[0] == loader.next(cursor)[0]).all()


def test_places_beyond_32_bits_are_kept():
    class Huge:
        def __len__(self):
            return 2**40

        def __getitem__(self, i):
            return np.asarray([i % 2**16, i // 2**16 % 2**16, i // 2**32], np.int32)

    def whole(record):
        return record

    def bits(record, *, key):
        return {"record": record, "bits": jr.bits(key)}

    loader = ep.data.Loader(Huge(), bits, batch_size=4)
    begin = loader.init(KEY)
    cursor = dataclasses.replace(begin, record=np.asarray([5, 2], np.uint32))
    assert cursor.position == 2**33 + 5
    batch, after = loader.next(cursor)
    assert after.position == 2**33 + 9
    low, high = np.asarray(cursor.record)
    assert (low, high) == (5, 2)
    one = ep.data.Loader(Huge(), bits, batch_size=1).next(cursor)[0]
    assert (one["record"][0] == batch["record"][0]).all()
    assert one["bits"][0] == batch["bits"][0]
    assert len(set(batch["bits"].tolist())) == 4


def test_it_is_a_pytree_of_arrays():
    cursor = moved(make())
    leaves = jax.tree.leaves(cursor)
    assert all(eqx.is_array(leaf) for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) < 20


@pytest.mark.parametrize(
    "other", [make(11), make(shuffle=False)], ids=["size", "order"]
)
def test_a_cursor_of_another_source_is_refused(other):
    cursor = make().init(KEY)
    for call in (other.next, other.epoch, lambda c: other.scan(max, 0, c)):
        with pytest.raises(ValueError, match="of another source.*begin again"):
            call(cursor)


def test_a_cursor_of_records_of_another_form_is_refused():
    cursor = make().init(KEY)
    other = ep.data.Loader(ep.data.ArraySource(jnp.zeros((10, 2))), batch_size=3)
    with pytest.raises(ValueError, match="another form"):
        other.next(cursor)


def test_a_traced_cursor_where_a_value_is_needed():
    host = ep.data.Loader(list(range(10)), batch_size=3)

    @eqx.filter_jit
    def run(call, cursor):
        return call(cursor)

    cursor = jax.tree.map(jnp.asarray, make().init(KEY))
    for call in (make().epoch, lambda c: c.epoch, lambda c: c.position):
        with pytest.raises(
            TypeError, match="the cursor is traced.*use `next` or `scan`"
        ):
            run(call, cursor)
    cursor = jax.tree.map(jnp.asarray, host.init(KEY))
    with pytest.raises(TypeError, match="the cursor is traced"):
        run(host.next, cursor)


def test_a_cursor_is_shown_by_its_place():
    cursor = moved(make())
    assert repr(cursor) == "Cursor(epoch=1, position=5)"
    for odd in (jax.eval_shape(lambda c: c, cursor), jax.tree.map(id, cursor)):
        assert "epoch=?" in repr(odd)
    assert "epoch=?" in repr(jax.tree.map(lambda x: np.stack([x, x]), cursor))
