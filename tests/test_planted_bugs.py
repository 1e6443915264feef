"""Broken stages, axes, reducers, functions: each is caught by the law it breaks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
import eqx_pipe.testing as ept

X, KEY = jnp.array([1.0, -2.0, 3.0]), jr.key(0)


# Not pure.


class Counter:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.calls


class Remembers:
    """Gives the first input's sum for ever."""

    def __init__(self):
        self.first = None

    def __call__(self, x):
        if isinstance(x, jax.core.Tracer):
            return x
        self.last, last = x, getattr(self, "last", x)
        return x + last.sum()


def writes_into_its_input(x):
    x["a"] = x["a"] + 1
    return x["a"]


def writes_into_an_array(x):
    x[0] = 7.0
    return jnp.asarray(x) * 2


class Lists(eqx.Module):
    """Appends to a list that it holds."""

    seen: list

    def __call__(self, x, *, key=None):
        self.seen.append(1.0)
        return x


_generator = np.random.default_rng(0)


def host_noise(x):
    return x + _generator.normal()


# Under transformations.


def branches_in_python(x):
    return x if x[0] > 0 else -x


def leaves_jax(x):
    return jnp.asarray(np.asarray(x) * 2)


def other_when_traced(x):
    return x if isinstance(x, jax.core.Tracer) else x + 1


def other_dtype_when_traced(x):
    traced = isinstance(x, jax.core.Tracer)
    return x.astype(jnp.bfloat16) if traced else x


def other_shape_when_traced(x):
    return x[None] if isinstance(x, jax.core.Tracer) else x


def numpy_doubles(x):
    return np.asarray(x, np.float64) if not isinstance(x, jax.core.Tracer) else x


def other_structure_when_traced(x):
    return (x,) if isinstance(x, jax.core.Tracer) else [x]


@jax.custom_batching.custom_vmap
def mixes_lanes(x):
    return x * 2


@mixes_lanes.def_vmap
def _mixes_lanes(size, batched, x):
    return x * 2 - jnp.mean(x, axis=0), True


@jax.custom_batching.custom_vmap
def reverses_lanes(x):
    return x + 1


@reverses_lanes.def_vmap
def _reverses_lanes(size, batched, x):
    return x[::-1] + 1, True


def no_batches(x):
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# Keys.


def constant_key(x, *, key):
    return x + jr.normal(jr.key(3), x.shape)


def same_key_twice(x, *, key):
    return x + jr.normal(key, x.shape) * jr.uniform(key, x.shape)


def two_siblings_one_key(x, *, key):
    children = [eqx.nn.Dropout(0.5), eqx.nn.Dropout(0.3)]
    return sum(child(x, key=key) for child in children)


def draws_for_nothing(x, *, key):
    return x + 0 * jr.normal(key, x.shape)


def forgets_its_key(x, *, key):
    return jnp.tanh(x)


def ignores_most_of_its_key(x, *, key):
    return (
        x
        + jr.normal(jr.fold_in(jr.key(0), 1), x.shape)
        + 0 * jr.bits(key).astype(float)
    )


# Gradients.


def norm(x):
    return jnp.sqrt(jnp.sum(x**2))


def masked_log(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)


def divides_by_zero_elsewhere(x):
    return jnp.where(x == 0, 1.0, jnp.sin(x) / x)


@jax.custom_jvp
def wrong_derivative(x):
    return x**2


@wrong_derivative.defjvp
def _wrong_derivative(primals, tangents):
    return primals[0] ** 2, 3 * primals[0] * tangents[0]


@jax.custom_vjp
def nan_gradient(x):
    return x


nan_gradient.defvjp(lambda x: (x, None), lambda _, ct: (ct * jnp.nan,))


def _transposed_wrongly(x):
    def transpose(_, ct):
        return 2.0 * ct

    return jax.custom_derivatives.linear_call(lambda _, v: 3.0 * v, transpose, (), x)


class NanParameter(ep.Stage):
    """A parameter at zero under a root."""

    scale: jax.Array

    def __call__(self, x, *, key=None):
        return x * jnp.sqrt(self.scale)


# Saving.


class KeepsAKey(ep.Stage):
    """Typed keys cannot be saved."""

    own: jax.Array

    def __call__(self, x, *, key=None):
        return x + jr.normal(self.own, x.shape)


@jax.tree_util.register_pytree_node_class
class ForgetsItsShift:
    """Flattening leaves a part behind."""

    def __init__(self, scale, shift=0.0):
        self.scale, self.shift = scale, shift

    def tree_flatten(self):
        return (self.scale,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


class HoldsForgetful(ep.Stage):
    inner: ForgetsItsShift

    def __call__(self, x, *, key=None):
        return x * self.inner.scale + self.inner.shift


def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


STAGES = {
    "counts its calls": ("pure", Counter(), X),
    "remembers an input": ("pure", Remembers(), X),
    "writes into its input": ("pure", writes_into_its_input, {"a": X}),
    "writes into an array": ("pure", writes_into_an_array, np.ones(3, np.float32)),
    "appends to a field": ("pure", Lists([0.0]), X),
    "draws on the host": ("pure", host_noise, X),
    "branches in Python": ("jit", branches_in_python, X),
    "leaves JAX": ("jit", leaves_jax, X),
    "another when traced": ("jit", other_when_traced, X),
    "another dtype when traced": ("struct", other_dtype_when_traced, X),
    "another shape when traced": ("struct", other_shape_when_traced, X),
    "another structure when traced": ("struct", other_structure_when_traced, X),
    "float64 in NumPy": ("struct", numpy_doubles, X),
    "mixes lanes": ("vmap", mixes_lanes, X),
    "reverses lanes": ("vmap", reverses_lanes, X),
    "has no batching rule": ("vmap", no_batches, X),
    "a constant key": ("key", constant_key, X),
    "the same key twice": ("key", same_key_twice, X),
    "one key for two siblings": ("key", two_siblings_one_key, X),
    "draws for nothing": ("key", draws_for_nothing, X),
    "forgets its key": ("key", forgets_its_key, X),
    "ignores its key": ("key", ignores_most_of_its_key, X),
    "norm at zero": ("grad", norm, jnp.zeros(3)),
    "masked logarithm": ("grad", masked_log, jnp.array([0.0, 1.0])),
    "masked division": ("grad", divides_by_zero_elsewhere, jnp.array([0.0, 1.0])),
    "NaN gradient": ("grad", nan_gradient, X),
    "wrong transpose": ("grad", _transposed_wrongly, X),
    "parameter under a root": ("grad", NanParameter(jnp.zeros(3)), X),
    "a root in bfloat16": ("grad", jnp.sqrt, jnp.zeros(2, jnp.bfloat16)),
    "typed key in a field": ("serialise", KeepsAKey(jr.key(0)), X),
    "forgets when flattened": (
        "serialise",
        HoldsForgetful(ForgetsItsShift(jnp.ones(3), 2.0)),
        X,
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_broken_stage_is_caught(name):
    law, stage, x = STAGES[name]
    key = KEY if law == "key" else None
    with pytest.raises(AssertionError) as caught:
        getattr(ept, f"check_{law}")(stage, x, key=key)
    text = str(caught.value)
    assert f"check_{law}" in text and "difference: " in text


def test_a_wrong_derivative_is_caught_by_differences():
    ept.check_grad(wrong_derivative, X)
    with pytest.raises(AssertionError, match="central difference"):
        ept.check_grad(wrong_derivative, X, numerical=True)


def sharded_mean(x):
    return jnp.mean(x, keepdims=True)


def sharded_sum_wrongly(x):
    return jnp.sum(x, keepdims=True)


def sharded_scan_wrongly(x):
    return jnp.cumsum(x)


def sharded_position(x):
    return x + jax.lax.axis_index("d").astype(x.dtype)


SHARDED = {
    "a mean of one part": (sharded_mean, P(), lambda x: jnp.mean(x, keepdims=True)),
    "a sum of one part": (
        sharded_sum_wrongly,
        P(),
        lambda x: jnp.sum(x, keepdims=True),
    ),
    "a running sum of each part": (sharded_scan_wrongly, P("d"), jnp.cumsum),
    "a position": (sharded_position, P("d"), lambda x: x),
}


@pytest.mark.parametrize("name", SHARDED)
def test_a_broken_sharded_function_is_caught(name):
    fn, out, whole = SHARDED[name]
    stage = ep.sharded(fn, mesh(), P("d"), out, check_vma=False)
    with pytest.raises(AssertionError, match="check_sharding.*law `sharding`"):
        ept.check_sharding(stage, jnp.arange(16.0), unsharded=whole)


class OwnAxis(ep.Axis):
    """An axis that computes its values by a function."""

    fn: object = eqx.field(static=True)
    n: int = 4
    dim: str | None = None

    def __len__(self):
        return self.n

    def value(self, i, key):
        return self.fn(i, key)


_calls = iter(range(10**9))

AXES = {
    "no values": (OwnAxis(lambda i, key: i, n=0), "it has a length"),
    "an empty dim": (OwnAxis(lambda i, key: i, dim=""), "a dim"),
    "shapes that differ": (OwnAxis(lambda i, key: jnp.ones(int(i) + 1)), "in form"),
    "dtypes that differ": (
        OwnAxis(lambda i, key: i if i == 0 else i.astype(jnp.float32)),
        "in form",
    ),
    "another each time": (OwnAxis(lambda i, key: i + next(_calls)), "each time"),
    "Python branches": (OwnAxis(lambda i, key: i if i < 2 else 2 * i), "traced"),
    "a Python list": (OwnAxis(lambda i, key: jnp.int32([1, 2, 3, 4][i])), "traced"),
    "another when traced": (
        OwnAxis(lambda i, key: i + jnp.int32(isinstance(i, jax.core.Tracer))),
        "traced",
    ),
    "a key behind the back": (
        OwnAxis(lambda i, key: jr.normal(jr.fold_in(key, i))),
        "without a key",
    ),
}


@pytest.mark.parametrize("name", AXES)
def test_a_broken_axis_is_caught(name):
    axis, rule = AXES[name]
    key = KEY if name == "a key behind the back" else None
    with pytest.raises(AssertionError, match="check_axis.*of an axis") as caught:
        ept.check_axis(axis, key=key)
    assert rule in str(caught.value)


def reducer(**changes):
    """A sum, with some part of it broken."""
    parts = {
        "init": lambda struct: jnp.zeros(struct.shape, struct.dtype),
        "update": lambda state, value: state + value,
        "merge": lambda a, b: a + b,
        "finish": lambda state: state,
    }
    return ep.Reducer(**{**parts, **changes})


REDUCERS = {
    "a merge that forgets": reducer(merge=lambda a, b: a),
    "a merge that subtracts": reducer(merge=lambda a, b: a - b),
    "a merge that averages": reducer(merge=lambda a, b: (a + b) / 2),
    "an init that is not neutral": reducer(
        init=lambda s: jnp.ones(s.shape, s.dtype),
    ),
    "an update that overwrites": reducer(update=lambda state, value: value),
    "a mean of means": reducer(update=lambda state, value: (state + value) / 2),
    "a merge that branches in Python": reducer(merge=lambda a, b: b if a > 0 else a),
}


@pytest.mark.parametrize("name", REDUCERS)
def test_a_broken_reducer_is_caught(name):
    with pytest.raises(AssertionError, match="check_reducer.*of a reducer"):
        ept.check_reducer(REDUCERS[name], jnp.array([1.0, 2.0, 4.0, 8.0]))


def test_a_sound_reducer_is_not():
    ept.check_reducer(reducer(), jnp.array([1.0, 2.0, 4.0, 8.0]))


SWEPT = {
    "lanes that look at each other": lambda p: mixes_lanes(p["a"]),
    "lanes in another order": lambda p: reverses_lanes(p["a"]),
    "another each time": lambda p: p["a"] + next(_calls),
    "Python branches": lambda p: p["a"] if p["a"] > 0.5 else -p["a"],
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_broken_swept_function_is_caught(name):
    with pytest.raises(AssertionError, match="check_sweep"):
        ept.check_sweep(SWEPT[name], {"a": ep.Linspace(0.0, 1.0, 4)})


class WrongSpace(ep.Space):
    """A space whose slices begin one too late."""

    def point(self, i):
        if isinstance(i, jax.core.Tracer):
            return super().point(i + 1)
        return super().point(i)


def test_a_broken_space_is_caught():
    with pytest.raises(AssertionError, match="check_space.*can be traced"):
        ept.check_space(WrongSpace({"a": ep.Linspace(0, 1, 4)}))


def test_a_broken_parallel_function_is_caught():
    def by_shape_of_mesh(params, batch):
        traced = isinstance(batch, jax.core.Tracer)
        return ep.constrain(batch, "data") * params + jnp.float32(traced)

    with pytest.raises(AssertionError, match="check_parallelize"):
        ept.check_parallelize(
            by_shape_of_mesh,
            jnp.float32(2),
            jnp.ones(8),
            rules=ep.AxisRules({"data": "data"}),
        )


def test_the_broken_stage_inside_a_pipeline_is_named():
    pipe = ep.chain(jnp.sin, ep.parallel({"good": jnp.tanh, "bad": norm}, merge="dict"))
    with pytest.raises(AssertionError) as caught:
        ept.check_stage(pipe, jnp.zeros(4))
    text = str(caught.value)
    assert "law `grad`" in text and "`1.bad` (norm)" in text
    assert "smallest input found: zeros float32[1]" in text


def test_the_suite_is_large_enough():
    planted = [*STAGES, *SHARDED, *AXES, *REDUCERS, *SWEPT]
    assert len(planted) >= 40


class Forgetful:
    """A source that gives another record the second time."""

    def __init__(self):
        self.calls = 0

    def __len__(self):
        return 6

    def __getitem__(self, i):
        self.calls += 1
        return np.float32(self.calls)


class HostSource:
    """A source with two equal records."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return np.float32(min(i, 4))


def test_a_source_that_changes_is_caught():
    with pytest.raises(AssertionError, match="check_loader.*same batch"):
        ept.check_loader(ep.Loader(Forgetful(), batch_size=2))


def test_sound_loaders_are_not():
    ept.check_loader(ep.Loader(HostSource(), batch_size=2))

    def noisy(x, *, key):
        return x + jr.normal(key, x.shape)

    source = ep.ArraySource(jnp.arange(7.0))
    for options in ({}, {"drop_remainder": True}, {"shuffle": False}):
        ept.check_loader(ep.Loader(source, noisy, batch_size=3, **options))
