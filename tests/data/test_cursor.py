"""`Cursor`: saving, resuming, and telling that it is another one's."""

import dataclasses
import json

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


@pytest.mark.parametrize("how", ["json", "leaves", "leaves into a fresh one"])
def test_it_goes_through_a_file(how, tmp_path):
    loader = make()
    cursor = moved(loader)
    if how == "json":
        text = cursor.to_json()
        assert len(text) < 300 and json.loads(text)["position"] == 5
        back = ep.data.Cursor.from_json(text)
    else:
        path = tmp_path / "cursor"
        eqx.tree_serialise_leaves(path, cursor)
        like = cursor if how == "leaves" else make().init(jr.key(99))
        back = eqx.tree_deserialise_leaves(path, like)
    assert back.to_json() == cursor.to_json()
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
    cursor = ep.data.Cursor.from_json(cursor.to_json())
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
    for call in (make().epoch, lambda c: c.epoch, lambda c: c.to_json()):
        with pytest.raises(
            TypeError, match="the cursor is traced.*use `next` or `scan`"
        ):
            run(call, cursor)
    cursor = jax.tree.map(jnp.asarray, host.init(KEY))
    with pytest.raises(TypeError, match="the cursor is traced"):
        run(host.next, cursor)


WRONG = {
    "epoch changed": {"epoch": 1},
    "position changed": {"position": 6},
    "key changed": {"key": [0, 2]},
    "checksum changed": {"checksum": 1},
    "not JSON": "nonsense",
    "a list": "[1, 2]",
    "nested": "[" * 100_000,
    "no text": None,
    "a field missing": '{"eqx_pipe.Cursor": 1, "key": [0, 1]}',
    "format": {"eqx_pipe.Cursor": 2},
    "unknown field": {"epochs": 1},
    "epoch too large": {"epoch": 2**32},
    "epoch of text": {"epoch": "1"},
    "epoch of a bool": {"epoch": True},
    "position of a float": {"position": 1.5},
    "position after the end": {"position": 11},
    "position negative": {"position": -1},
    "records of text": {"records": "10"},
    "kind unknown": {"kind": "unheard"},
    "kind of rbg": {"kind": "rbg", "key": [0] * 4},
    "kind of a number": {"kind": 3},
    "key too long": {"key": [1, 2, 3]},
    "key of a number": {"key": 5},
    "key of negative words": {"key": [1, -2]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_text_with_something_wrong_in_it(name, unchecked):
    text = WRONG[name]
    if isinstance(text, dict):
        text = json.dumps(json.loads(make().init(KEY).to_json()) | text)
    with pytest.raises(ValueError, match="not a cursor: .*Give what `to_json`"):
        ep.data.Cursor.from_json(text)


def test_every_changed_digit_and_repeated_field_is_refused():
    text = moved(make()).to_json()
    other = [text[:i] + "7" + text[i + 1 :] for i, c in enumerate(text) if c in "01234"]
    twice = [text[:-1] + f', "{name}": 1}}' for name in json.loads(text)]
    for wrong in other + twice:
        with pytest.raises(ValueError, match="not a cursor: "):
            ep.data.Cursor.from_json(wrong)


@pytest.mark.parametrize("source", [list(range(4)), ep.data.ArraySource(np.arange(4))])
def test_there_is_no_epoch_after_the_last(source):
    loader = ep.data.Loader(source, batch_size=3)
    cursor = loader.init(KEY)
    cursor = dataclasses.replace(cursor, epochs=np.asarray(2**32 - 1, np.uint32))
    _, middle = loader.next(cursor)
    assert (middle.epoch, middle.position) == (2**32 - 1, 3)
    middle = ep.data.Cursor.from_json(middle.to_json())
    assert len(list(loader.epoch(middle))) == 1
    calls = {
        "next": loader.next,
        "next_epoch": lambda c: c.next_epoch(),
        "scan": lambda c: loader.scan(lambda n, b: (n, b), 0, c, 1),
        "epoch": lambda c: loader.epoch(
            dataclasses.replace(c, record=np.asarray([4, 0], np.uint32))
        ),
    }
    for name, call in calls.items():
        if name == "scan" and not loader.on_device:
            continue
        with pytest.raises(ValueError, match="the last is 2.32 - 1.*another key"):
            call(middle)


def test_a_cursor_is_shown_by_its_place():
    cursor = moved(make())
    assert repr(cursor) == "Cursor(epoch=1, position=5)"
    for odd in (jax.eval_shape(lambda c: c, cursor), jax.tree.map(id, cursor)):
        assert "epoch=?" in repr(odd)
    assert "epoch=?" in repr(jax.tree.map(lambda x: np.stack([x, x]), cursor))
