"""Laws of axes, reducers and loaders that the planted bugs do not break, and twins."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.broken import ForgetsItsShift, mixes_lanes
from support.helpers import slow_unless
from testing.planted.others import Own, Records, reducer

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY, VALUES = jr.key(0), jnp.array([1.0, 2.0, 4.0, 8.0])
_calls = iter(range(10**9))


class ForgetfulAxis(ep.Axis):
    """An axis with a part that flattening loses."""

    inner: ForgetsItsShift
    dim: str | None = None

    def __len__(self):
        return 4

    def value(self, i, key):
        return i * self.inner.scale.astype(jnp.int32) + int(self.inner.shift)


AXES = {
    "no values": (Own(lambda i, key: i, n=0), "it has a length"),
    "shapes that differ": (
        Own(lambda i, key: jnp.ones(int(i) + 1)),
        "structure, shapes and dtypes",
    ),
    "another each time": (Own(lambda i, key: i + next(_calls)), "each time"),
    "another when traced": (
        Own(lambda i, key: i + jnp.int32(isinstance(i, jax.core.Tracer))),
        "traced",
    ),
    "forgets when flattened": (
        ForgetfulAxis(ForgetsItsShift(jnp.ones(()), 2.0)),
        "also after flattening",
    ),
    "a hidden key": (
        Own(lambda i, key: jr.normal(jr.fold_in(key, i))),
        "without a key, as `needs_key` is False",
    ),
}


@pytest.mark.parametrize("name", AXES)
def test_a_broken_axis_is_reported(name):
    axis, rule = AXES[name]
    key = KEY if name == "a hidden key" else None
    with pytest.raises(AssertionError, match=f"check_axis.*of an axis(?s:.*){rule}"):
        ept.check_axis(axis, key=key)


def test_sound_axes_are_not():
    coin = Own(lambda i, key: jr.bernoulli(jr.fold_in(key, i), 0.1), n=2, draws=True)
    ept.check_axis(coin, key=KEY)
    ept.check_axis(ep.Linspace(0, 1, 4), reference=np.linspace(0, 1, 4).__getitem__)


def traced(x):
    return jnp.float32(isinstance(x, jax.core.Tracer))


REDUCERS = {
    "another merge when traced": {"merge": lambda a, b: a + b + traced(a)},
    "another update when traced": {"update": lambda state, v: state + v + traced(v)},
    "a merge that rounds": {"merge": lambda a, b: 4 * jnp.round((a + b) / 4)},
    "no state for no points": {"init": lambda struct: jnp.zeros(struct.count)},
}


@pytest.mark.parametrize("name", REDUCERS)
def test_a_broken_reducer_is_reported(name):
    with pytest.raises(AssertionError, match="check_reducer.*of a reducer"):
        ept.check_reducer(reducer(**REDUCERS[name]), VALUES)


def test_a_sound_reducer_is_not():
    ept.check_reducer(reducer(), VALUES, reference=np.sum)


def loader(source=None, **options):
    source = ep.data.ArraySource(jnp.arange(7.0)) if source is None else source
    return ep.data.Loader(source, **{"batch_size": 2, "shuffle": True, **options})


def blocks():
    """Return a source that keeps a block of records, and forgets the place inside."""
    block = None

    def read(i, calls):
        nonlocal block
        block, known = i // 3, block == i // 3
        return 3 * block if known else i

    return Records(read)


def counts_its_traces(x):
    return x + jnp.float32(next(_calls))


LOADERS = {
    "reads on": (
        lambda: loader(Records(lambda i, calls: (calls - 1) % 6), batch_size=4),
        "same batch",
    ),
    "forgets the place in a block": (lambda: loader(blocks(), batch_size=1), "once"),
    "mixes records": (lambda: loader(pipe=mixes_lanes), "batch size"),
    "counts its traces": (lambda: loader(pipe=counts_its_traces), ""),
}


@pytest.mark.parametrize(
    "name", slow_unless({*LOADERS} - {"counts its traces"}, LOADERS)
)
def test_a_broken_loader_is_reported(name):
    make, rule = LOADERS[name]
    with pytest.raises(AssertionError, match=f"check_loader.*of a loader.*{rule}"):
        ept.check_loader(make())


def test_a_wrong_merge_is_blamed_on_the_merge():
    for merge in (lambda a, b: a, lambda a, b: a - b, lambda a, b: 2 * (a + b)):
        with pytest.raises(AssertionError, match="the law `merge`"):
            ept.check_reducer(reducer(merge=merge), VALUES)


def test_draws_that_records_share_on_purpose_can_be_skipped():
    shared = loader(batch_pipe=lambda x, *, key: x + jr.normal(key), batch_size=3)
    with pytest.raises(AssertionError, match="`batch_pipe` makes the same draw"):
        ept.check_loader(shared)
    ept.check_loader(shared, skip=("draws",))


def test_a_reference_without_an_end_says_nothing_about_the_length():
    source = ep.data.ArraySource(jnp.arange(7.0))
    ept.check_loader(loader(source), reference=lambda i: np.float32(i))
    ept.check_loader(loader(source), reference=jnp.arange(7.0).__getitem__)
    with pytest.raises(AssertionError, match="7 records, the reference has one more"):
        ept.check_loader(loader(source), reference=jnp.arange(8.0).__getitem__)


def test_a_source_with_equal_records_is_sound():
    alike = Records(lambda i, calls: min(i, 4))
    ept.check_loader(loader(alike), reference=lambda i: np.float32(min(i, 4)))
