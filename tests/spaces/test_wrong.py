"""Values, keys of dicts and axes that cannot be, and their errors."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda: ep.Linspace(1e6, 1e6 + 1, 101), "17 of 101"),
        (lambda: ep.Geomspace(1, 1 + 1e-6, 100), "9 of 100"),
        (lambda: ep.Values([2.0, 1.0, 1 + 1e-9]), "2 of 3"),
    ],
)
def test_numbers_that_become_equal_emit_a_warning(make, left):
    with pytest.warns(UserWarning, match=f"{left} different.*64 bits need `jax.config"):
        make()
    with jax.enable_x64(True):
        make()


def test_rounding_alone_emits_no_warning():
    ep.Values(np.random.default_rng(0).normal(size=2**16))  # some 70 become equal
    ep.Linspace(0, 1, 2**16)
    ep.Linspace(1, 1, 5)
    ep.Values([0.1, 0.1, np.nan, np.nan, np.inf, 0.0, 1e-40])


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ([1.0, 1e40], ValueError, r"1e\+40, which is too large.*wider dtype"),
        ([jnp.int32(1), np.int64(2**40)], ValueError, "does not fit int32"),
        ([jnp.int32(1), 2**40], ValueError, "does not fit int32"),
        ([2**70], ValueError, "does not fit int32"),
        ([jnp.int8(1), 1000], ValueError, "does not fit int8"),
        ([jnp.float32(1), 1e300], ValueError, "too large for float32.*wider dtype"),
        ([jnp.float16(1), 1e5], ValueError, "too large for float16"),
        ([jr.key(0), 1.0], ValueError, "differ in shape or kind"),
        ([jr.key(0), jr.key(0, impl="rbg")], ValueError, "differ in shape or kind"),
        ([jnp.float32(1), "a"], TypeError, "text, functions and other"),
        ([1, "a"], TypeError, "text, functions and other"),
    ],
)
def test_values_that_do_not_fit_together_say_so(values, error, says):
    with pytest.raises(error, match=f"`eqx_pipe.Values`: .*{says}"):
        ep.Values(values)


def test_axes_that_vary_together_have_one_length():
    axes = {"a": ep.Linspace(0, 1, 3, dim="both"), "b": ep.Values([1, 2], dim="both")}
    with pytest.raises(ValueError, match="differ in length: `a` has 3, `b` has 2"):
        ep.Space(axes)


MASKED = np.ma.masked_array([0.5, 0.25, 1.0], mask=[False, True, False])
SPACE = ep.Space({"x": ep.Linspace(0, 1, 3)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: ep.Values(MASKED),
        lambda: ep.Values([MASKED, MASKED]),
        lambda: ep.Values([jnp.float32(1), MASKED[1]]),
        lambda: ep.Static(MASKED),
        lambda: ep.Linspace(0.0, MASKED[1], 2),
        lambda: ep.Uniform(MASKED, np.ones(3)),
        lambda: ep.Space.from_table({"x": MASKED}),
        lambda: SPACE.from_unit(MASKED[:, None]),
        lambda: SPACE[MASKED > 0],
        lambda: SPACE[np.ma.masked_array([0, 1], mask=[0, 1])],
        lambda: ep.sweep(lambda p: p["x"].sum(), {"x": ep.Values([1]), "c": MASKED}),
    ],
)
def test_masked_arrays_are_refused(make):
    with pytest.raises(ValueError, match="masked.*filled"):
        make()


def test_every_byte_order_and_width_is_a_number():
    for dtype in (">f4", ">f8", ">i2", "longdouble", ">c8", "clongdouble", object):
        numbers = np.array([1, 2], dtype)
        for axis in (ep.Values(numbers), ep.Values(list(numbers))):
            assert axis.values.tolist() == [1, 2] and axis.values.dtype.isnative
        if numbers.dtype.kind in "fi":
            assert ep.Linspace(*numbers, 2).lookup.coarse.tolist() == [1, 2]
    with pytest.raises(ValueError, match="too large for float32"):
        ep.Values(np.array(["1e4000"], "longdouble"))


def test_jax_arrays_and_numbers_are_values_together():
    for values, dtype in [
        ([jnp.float32(1), 2.5, np.float64(3)], jnp.float32),
        ([jnp.float16(1), 2.5, np.inf], jnp.float16),
        ([jnp.int32(1), 2, np.int64(3)], jnp.int32),
        ([jnp.ones(2), [2.0, 3.0], np.ones(2)], jnp.float32),
    ]:
        axis = ep.Values(values)
        assert axis.values.dtype == dtype
        for got, expected in zip(ep.Space(axis), values, strict=True):
            assert np.array_equal(got, expected)
    # Traced ones too, whose values cannot be checked; but numbers are checked.
    last = jax.jit(lambda x: ep.Space(ep.Values([x, 2.0])).point(1))
    assert last(1.0) == 2
    with pytest.raises(ValueError, match="too large for float16"):
        jax.jit(lambda x: ep.Space(ep.Values([x, 1e5])).point(0))(jnp.float16(1))


def test_an_error_of_an_axis_names_it():
    axis = ep.Mapped(lambda x: [1, 2][x], ep.Values([0, 1]))
    for run in (ep.sweep, ep.vmap_space):
        with pytest.raises(jax.errors.TracerIntegerConversionError) as caught:
            run(lambda p: p["a"]["b"], {"a": {"b": axis}})
        assert "Raised by the axis `a.b` of the space." in caught.value.__notes__
