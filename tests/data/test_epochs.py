"""Loops over epochs, as people write them: each epoch once, none skipped."""

import io
import itertools as it

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep

pytestmark = pytest.mark.gpu

KEY = jr.key(11)


def make(size=12, batch_size=5, kind="device", **options):
    numbers = np.arange(size, dtype=np.int32)
    source = ep.data.ArraySource(numbers) if kind == "device" else numbers
    return ep.data.Loader(source, batch_size=batch_size, **options)


def through_a_file(cursor):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, cursor)
    file.seek(0)
    return eqx.tree_deserialise_leaves(file, cursor)


def kept(_, batch):
    return None, batch


settings = st.fixed_dictionaries(
    {
        "size": st.sampled_from([5, 12]),
        "batch_size": st.sampled_from([4, 5]),
        "kind": st.sampled_from(["device", "host"]),
        "drop_remainder": st.booleans(),
        "shuffle": st.booleans(),
    }
)


class Model:
    """The batches of a loader, by the order of each epoch."""

    def __init__(self, loader):
        self.loader, self.at, self.orders = loader, (0, 0), []
        self.whole = ep.data.Loader(
            loader.source, batch_size=100, shuffle=loader.shuffle
        )
        self.cursor = self.whole.init(KEY)

    def order(self, epoch):
        while len(self.orders) <= epoch:
            (order,) = self.whole.epoch(self.cursor)
            self.orders.append(order.tolist())
            self.cursor = self.cursor.next_epoch()
        return self.orders[epoch]

    def take(self, count):
        """Return the next records of the one long stream."""
        found, (epoch, start) = [], self.at
        while len(found) < count:
            if start == len(self.order(epoch)):
                epoch, start = epoch + 1, 0
            found.append(self.order(epoch)[start])
            start += 1
        self.at = epoch, start
        return found

    def left(self):
        return len(self.loader.source) - self.at[1]

    def skip(self, count):
        """Go on to the next epoch, unless `count` records are left of this one."""
        if self.left() < count:
            self.at = self.at[0] + 1, 0

    def next(self):
        size = self.loader.batch_size
        if self.loader.drop_remainder:
            self.skip(size)
        return self.take(size)

    def epoch(self, most):
        """Return the batches of an epoch, `most` of them at most."""
        size, drop = self.loader.batch_size, self.loader.drop_remainder
        self.skip(size if drop else 1)
        found = []
        while len(found) < most and self.left() >= (size if drop else 1):
            found.append(self.take(min(size, self.left())))
        return found


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("size", [6, 7])
def test_the_length_is_the_number_of_batches_of_an_epoch(size, drop):
    loader = ep.data.Loader(np.arange(size), batch_size=3, drop_remainder=drop)
    batches = list(loader.epoch(loader.init(KEY)))
    assert len(loader) == len(batches) == 2 + (size == 7 and not drop)


steps = st.one_of(
    st.tuples(st.sampled_from(["next", "next_epoch", "file"]), st.just(0)),
    st.tuples(st.sampled_from(["epoch", "scan"]), st.sampled_from([0, 1, 2, 3])),
)


@given(settings=settings, steps=st.lists(steps, max_size=8))
def test_any_calls_go_on_where_it_stands(settings, steps):
    loader = make(**settings)
    model, cursor = Model(loader), loader.init(KEY)
    for step, count in steps:
        if step == "next":
            batch, cursor = loader.next(cursor)
            assert batch.tolist() == model.next()
        elif step == "next_epoch":
            cursor = cursor.next_epoch()
            model.at = model.at[0] + 1, 0
        elif step == "file":
            cursor = through_a_file(cursor)
        elif step == "epoch":
            iterator = loader.epoch(cursor)
            most = count or len(iterator)
            found = [batch.tolist() for batch in it.islice(iterator, most)]
            assert found == model.epoch(most)
            cursor = iterator.cursor
        elif settings["kind"] == "device":
            _, found, cursor = loader.scan(kept, None, cursor, length=count)
            assert found.tolist() == [model.next() for _ in range(count)]
        assert (cursor.epoch, cursor.position) == model.at


def test_so_many_epochs_from_wherever_a_run_was_stopped():
    """The loop of the docs."""

    def run(loader, cursor, stop):
        while (iterator := loader.epoch(cursor)).cursor.epoch < 3:
            for batch in iterator:
                seen.extend(batch.tolist())
                cursor = iterator.cursor
                if len(seen) == stop:
                    return cursor

    loader, wholes = make(batch_size=4), []
    for stop in (None, 4, 8, 12, 16, 36):
        seen = []
        left = run(loader, loader.init(KEY), stop)
        if left is not None:
            run(loader, through_a_file(left), None)
        wholes.append(seen)
    assert len(wholes[0]) == 36 and all(seen == wholes[0] for seen in wholes)
