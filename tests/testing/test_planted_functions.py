"""Broken functions: `check_function` tells each by the laws that it breaks, and stages.

The numbers are at smooth points, so that differences tell something.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import slow_unless

import eqx_pipe.testing as ept
from eqx_pipe.testing._laws.function import FUNCTION_LAWS
from eqx_pipe.testing._laws.stage import LAWS

X, Y = jnp.array([1.0, -2.0, 3.0]), jnp.array([0.5, 1.5, -1.0])


def with_jvp(fn, rule):
    made = jax.custom_jvp(fn)
    made.defjvp(rule)
    return made


def with_vjp(fn, backward):
    made = jax.custom_vjp(fn)
    made.defvjp(lambda *args: (fn(*args), args), backward)
    return made


def with_vmap(fn, rule):
    made = jax.custom_batching.custom_vmap(fn)
    made.def_vmap(rule)
    return made


# Rules with wrong values.


def _sin_rule(factor):
    return lambda x, t: (jnp.sin(x[0]), factor * jnp.cos(x[0]) * t[0])


wrong_sign = with_jvp(jnp.sin, _sin_rule(-1))
right_rule = with_jvp(jnp.sin, _sin_rule(1))


right_vjp = with_vjp(lambda x: x**2, lambda args, ct: (2 * ct * args[0],))
swapped_vjp = with_vjp(
    lambda x, y: jnp.sin(x) * y,
    lambda args, ct: (ct * jnp.sin(args[0]), ct * jnp.cos(args[0]) * args[1]),
)


@jax.custom_jvp
def wrong_twice(x):
    return x**3


@wrong_twice.defjvp
def _wrong_twice(primals, tangents):
    (x,), (t,) = primals, tangents
    return wrong_twice(x), 3 * jax.lax.stop_gradient(x) ** 2 * t


@jax.custom_vjp
def symbolic(x, y):
    return x * y


def _symbolic_forward(x, y):
    alone = not (x.perturbed and y.perturbed)
    return x.value * y.value, (x.value, y.value, 2.0 if alone else 1.0)


def _symbolic_backward(kept, ct):
    x, y, factor = kept
    return factor * ct * y, factor * ct * x


symbolic.defvjp(_symbolic_forward, _symbolic_backward, symbolic_zeros=True)


BY = np.array([2.0, 3.0, 4.0], np.float32)  # closed over by the function


@jax.custom_gradient
def wrong_gradient(x):
    return jnp.sin(x) * jnp.asarray(BY), lambda ct: (ct * jnp.cos(x),)


def in_a_loop(x):
    return jax.lax.scan(lambda c, _: (wrong_sign(c), None), x, None, length=2)[0]


# Batches.


def _scale_rule(size, batched, x, w):
    # Right for a batch of `x`, and one weight for all if the weights are a batch.
    return x * (w[:1] if batched[1] else w), True


scaled = with_vmap(lambda x, w: x * w, _scale_rule)
mixes = with_vmap(lambda x: x * 2, lambda size, batched, x: (x * 2 - x.mean(0), True))


class Scaled(eqx.Module):
    """A rule of `vmap` that is wrong for a batch of parameters alone."""

    w: jax.Array

    def __call__(self, x, *, key=None):
        return scaled(x, self.w)


# Numbers that are not finite.


def softmax_by_hand(x):
    return jnp.exp(x) / jnp.exp(x).sum()


def entropy(p):
    return -jnp.sum(p * jnp.log(p))


# Parameters.


class Stale(eqx.Module):
    """Computes with the parameter that it had when it was made."""

    w: jax.Array
    fn: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return self.fn(x)


class Static(eqx.Module):
    w: jax.Array = eqx.field(static=True)
    b: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.w + self.b


def static():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Equinox says so, too
        return Static(2 * np.ones(3, np.float32), Y)


class NoBias(eqx.Module):
    w: jax.Array
    b: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.w


# Dtypes.


TABLE = jnp.arange(3.0)


def with_a_table(x):
    return x * TABLE


def step(x):
    return jnp.where(x > 0, 1.0, 0.0)


def noise(x, *, key):
    return x + jr.normal(key, x.shape, jnp.float32)


def noise_of_the_default(x, *, key):
    return 2 * x + jr.normal(key, x.shape)[::-1]


# Programs.


def jits_at_each_call(x):
    return jax.jit(lambda v: v + 1)(x)


BIG = np.ones(2**19, np.float32)


def with_a_big_constant(x):
    return x * jnp.asarray(BIG).sum()


donates = jax.jit(lambda x: x * 2, donate_argnums=0)


# name: the laws that are broken, what breaks them, its arguments
FUNCTIONS = {
    "a wrong sign": ({"rules"}, wrong_sign, (X,)),
    "swapped cotangents": ({"rules"}, swapped_vjp, (X, Y)),
    "another second derivative": ({"rules"}, wrong_twice, (X,)),
    "wrong for symbolic zeros": ({"rules"}, symbolic, (X, Y)),
    "a wrong gradient that closes over numbers": ({"rules"}, wrong_gradient, (X,)),
    "a wrong rule in a loop": ({"rules"}, in_a_loop, (X,)),
    "mixes lanes": ({"rules", "vmap"}, mixes, (X,)),
    "batched parameters": ({"rules", "ensemble"}, Scaled(Y), (X,)),
    "an unwanted stop_gradient": (
        {"numerical"},
        lambda x, y: x * jax.lax.stop_gradient(y),
        (X, Y),
    ),
    "a softmax by hand": ({"finite"}, softmax_by_hand, (100 * X,)),
    "an entropy": ({"finite"}, entropy, (jnp.array([0.0, 1.0]),)),
    "a stale parameter": ({"params"}, Stale(Y, lambda x: x * Y), (X,)),
    "an array in a static field": ({"params"}, static(), (X,)),
    "a bias without use": ({"params"}, NoBias(X, Y), (X,)),
    "a table": ({"dtype"}, with_a_table, (X,)),
    "a weak type": ({"dtype"}, step, (X,)),
    "noise of one dtype": ({"dtype"}, noise, (X,)),
    "a function jitted at each call": ({"recompiles"}, jits_at_each_call, (X,)),
    "a big constant": ({"recompiles"}, with_a_big_constant, (X,)),
    "donates": ({"pure"}, donates, (X,)),
}


QUICK = {
    "a wrong sign",
    "batched parameters",
    "an unwanted stop_gradient",
    "an entropy",
    "a stale parameter",
    "a weak type",
    "donates",
}


def broken_by(fn, *args, **options):
    """The names of the laws that `check_function` reports."""
    with pytest.raises(AssertionError, match="check_function") as caught:
        ept.check_function(fn, *args, **options)
    lines = str(caught.value).splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("  - `")}


def names(law):
    return [name for name, (laws, *_) in FUNCTIONS.items() if law in laws]


@pytest.mark.parametrize("name", slow_unless(QUICK, FUNCTIONS))
def test_a_broken_function_is_told_by_its_law(name):
    laws, fn, args = FUNCTIONS[name]
    key = {"key": jr.key(0)} if fn is noise else {}
    # Only what is asked here: a wrong rule may well break others, too.
    skip = {*FUNCTION_LAWS} - {*laws, "pure", "jit"}
    assert broken_by(fn, *args, **key, skip=skip) == laws


@pytest.mark.parametrize("law", ["rules", "ensemble", "finite", "params", "dtype"])
def test_the_same_breaks_the_law_of_a_stage(law):
    _, stage, args = FUNCTIONS[names(law)[0]]
    with pytest.raises(AssertionError, match=f"the law `{law}` is broken"):
        ept.check_stage(stage, *args, skip={*LAWS} - {law})


def test_a_stage_that_gives_its_input_away_says_so():
    with pytest.raises(AssertionError, match="(?s)the law `pure` .* has been deleted"):
        ept.check_stage(donates, X)


_DEAR = ("sharding", "vmap")


def test_all_findings_are_in_one_report_and_the_arguments():
    def fn(first, second):
        return jnp.where(first > 0, 1.0, 0.0), jax.lax.stop_gradient(second)

    with pytest.raises(AssertionError) as caught:
        ept.check_function(fn, X, Y, skip=_DEAR)
    text = str(caught.value)
    assert "`fn` breaks 2 laws" in text
    assert "- `numerical`" in text and "leaf: `second`" in text and "- `dtype`" in text
    assert "arguments: first: [ 1., -2., 3.]" in text
    assert "skip=('numerical', 'dtype')" in text


def test_every_law_has_something_that_breaks_it():
    planted = {law for laws, *_ in FUNCTIONS.values() for law in laws}
    elsewhere = {"pure", "struct", "jit", "key", "grad"}  # of stages
    # `test_planted_sharded.py` has its own.
    others = {"sharding", "reference"}
    assert planted | elsewhere == {*LAWS, *FUNCTION_LAWS} - others


# Nothing of this is a false alarm.


def many_rules(a, b):
    rules = right_vjp(right_rule(a))
    return jax.lax.fori_loop(0, 2, lambda _, v: jnp.hypot(v, b["c"]), rules)


SOUND = {
    "a kink": (jax.nn.relu, (jnp.array([0.0, 1.0, -1.0]),)),
    "rules, a loop and several arguments": (many_rules, (X, {"c": Y})),
    "integers": (lambda x: x // 2, (jnp.arange(3),)),
}


@pytest.mark.parametrize("name", slow_unless({"a kink"}, SOUND))
def test_a_sound_function_keeps_all_laws(name):
    fn, args = SOUND[name]
    found = ept.check_function(fn, *args, skip=_DEAR[:1])
    assert all(v.startswith(("holds", "undecided")) for v in found.values())
    assert ("at kinks" in found["numerical"]) == (name == "a kink")


def test_noise_of_the_default_dtype_is_told_and_no_breach():
    skip = {*FUNCTION_LAWS} - {"dtype"}
    found = ept.check_function(noise_of_the_default, X, key=jr.key(0), skip=skip)
    assert "jax.random.normal(key, x.shape, x.dtype)" in found["dtype"]
    also_a_table = lambda x, *, key: noise_of_the_default(x * TABLE, key=key)  # noqa: E731
    laws = broken_by(also_a_table, X, key=jr.key(0), skip=skip)
    assert laws == {"dtype"}


def test_a_reference_is_compared():
    skip = {*FUNCTION_LAWS} - {"reference"}
    assert ept.check_function(jnp.hypot, X, Y, reference=np.hypot, skip=skip) == {
        "reference": "holds"
    }
    with pytest.raises(AssertionError, match="by the reference"):
        ept.check_function(jnp.hypot, X, Y, reference=np.arctan2, skip=skip)
    with pytest.raises(AssertionError, match=r"shape \[3\] found, \[\] by the ref"):
        ept.check_function(jnp.hypot, X, Y, reference=lambda x, y: 0.0, skip=skip)


def test_compilations_are_counted():
    fn = jax.jit(lambda x: x * 3 + 1)
    x = np.ones(5, np.float32)
    with ept.assert_compiles(1):
        fn(x)
    with ept.assert_compiles(0):
        fn(x)
    with pytest.raises(AssertionError, match="1 program was compiled, and 0 may be"):
        with ept.assert_compiles(0):
            fn(np.ones(6, np.float32))
    with pytest.raises(ZeroDivisionError):  # as it is, and not the count
        with ept.assert_compiles(0):
            fn(np.ones(7, np.float32))
            raise ZeroDivisionError
