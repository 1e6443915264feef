"""Values, keys of dicts and axes that cannot be, and what is said of them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

ONE, TWO = ep.Values([1]), ep.Values([1, 2])


def test_numbers_too_large_for_the_dtype():
    with pytest.raises(ValueError, match=r"1e\+40, which is too large.*wider dtype"):
        ep.Values([1.0, 1e40])
    assert np.isinf(ep.Space(ep.Values([np.inf]))[0])


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda: ep.Linspace(1e6, 1e6 + 1, 101), "17 of 101"),
        (lambda: ep.Linspace(2459000.5, 2459000.6, 4), "1 of 4"),
        (lambda: ep.Geomspace(1, 1 + 1e-6, 100), "9 of 100"),
        (lambda: ep.Values([2.0, 1.0, 1 + 1e-9]), "2 of 3"),
        (lambda: ep.Values(np.array([[1.0], [1 + 1e-9]])), "1 of 2"),
    ],
)
def test_numbers_that_become_equal_are_warned_of(make, left):
    says = f"the same number in float32: {left} different.*64 bits need `jax.config"
    with pytest.warns(UserWarning, match=says):
        make()
    with jax.enable_x64(True):
        make()


def test_rounding_alone_is_not_warned_of():
    ep.Values(np.random.default_rng(0).normal(size=2**16))  # some 70 become equal
    ep.Linspace(0, 1, 2**16)
    ep.Linspace(1, 1, 5)
    ep.Values([0.1, 0.1, np.nan, np.nan, np.inf, 0.0, 1e-40])


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ([jnp.int32(1), np.int64(2**40)], ValueError, "does not fit int32"),
        ([jnp.int32(1), 2**40], ValueError, "does not fit int32"),
        ([jnp.int32(1), 2**70], ValueError, "does not fit int32"),
        ([jnp.int8(1), 1000], ValueError, "does not fit int8"),
        ([2**70], ValueError, "does not fit int32"),
        ([jnp.float32(1), 1e300], ValueError, "too large for float32.*wider dtype"),
        ([jnp.float32(1), np.float64(1e300)], ValueError, "too large for float32"),
        ([jnp.float16(1), 1e5], ValueError, "too large for float16"),
        ([jr.key(0), 1.0], TypeError, r"key<fry>\[\] and `values\[1\]` 1.0 \(float\)"),
        ([1.0, jr.key(0)], TypeError, "keys of their own kind"),
        ([jr.key(0), jr.key(0, impl="rbg")], TypeError, "keys of their own kind"),
        ([jnp.float32(1), "a"], TypeError, r"holds 'a' \(str\) at index 1"),
        ([jnp.float32(1), None], TypeError, "holds None"),
        ([1, "a"], TypeError, r"holds 'a' \(str\) at index 1"),
        ([jnp.int32(1), jnp.float32(1)], TypeError, "mixes the dtypes float32, int32"),
    ],
)
def test_values_that_do_not_fit_together_say_so(values, error, says):
    with pytest.raises(error, match=f"`eqx_pipe.Values`: .*{says}"):
        ep.Values(values)


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
    # Traced ones too, whose values nobody can look at; but numbers are looked at.
    last = jax.jit(lambda x: ep.Space(ep.Values([x, 2.0])).point(1))
    assert last(1.0) == 2
    assert jax.jit(lambda x: x * ep.Space(TWO).point(1))(3) == 6
    with pytest.raises(ValueError, match="too large for float32"):
        jax.jit(lambda x: ep.Space(ep.Values([x, 1e300])).point(0))(1.0)
    with pytest.raises(ValueError, match="too large for float16"):
        jax.jit(lambda x: ep.Space(ep.Values([x, 1e5])).point(0))(jnp.float16(1))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            {1: ONE, "1": TWO},
            r"at `\.` has keys such as 1 \(int\) and '1' \(str\)",
        ),
        (
            {"a": [ONE, {None: 1, 3: 2}]},
            r"at `a\.1` .* None \(NoneType\) and 3",
        ),
        (
            [{1j: ONE, 2j: TWO}],
            r"at `0` has keys such as 2j \(complex\)\.",
        ),
    ],
)
def test_a_dict_whose_keys_cannot_be_sorted(tree, says):
    for make in (ep.Space, lambda tree: ep.sweep(lambda p: 0, tree)):
        with pytest.raises(TypeError, match=f"{says}.*keys of one type that can be"):
            make(tree)


class Listed(ep.Axis):
    """An axis that looks its values up in a list, which no program can."""

    values: list
    dim: None = None

    def __len__(self):
        return len(self.values)

    def value(self, i, key):
        return self.values[i]


@pytest.mark.parametrize(
    "axis", [Listed([1.0, 2.0]), ep.Mapped(lambda x: [1, 2][x], ep.Values([0, 1]))]
)
def test_an_error_of_an_axis_names_it(axis):
    for run in (ep.sweep, ep.vmap_space):
        with pytest.raises(jax.errors.TracerIntegerConversionError) as caught:
            run(lambda p: p["a"]["b"], {"a": {"b": axis}})
        notes = "\n".join(caught.value.__notes__)
        assert "Raised by the axis `a.b` of the space." in notes
        assert "use JAX operations, and `jnp.asarray(values)[i]` instead" in notes


def test_errors_of_other_kinds_get_no_cure():
    broken = ep.Space({"b": ep.Mapped(lambda x: 1 / 0, ONE)})
    with pytest.raises(ZeroDivisionError) as caught:
        broken[0]
    assert caught.value.__notes__[-1] == "Raised by the axis `b` of the space."


def test_64_bits_that_were_switched_off_meanwhile():
    with jax.enable_x64(True):
        trees = {
            "x": ep.Linspace(0, 1 / 3, 4),
            "a.b": {"a": {"b": ep.Values([2**40, 1])}},
            "w": {"a": ep.Values([True]), "w": jnp.ones(2)},
        }
        spaces = {name: ep.Space(tree) for name, tree in trees.items()}
        assert ep.sweep(lambda x: x, trees["x"]).values[1] == 1 / 9
    for name in trees:
        for space in (trees[name], spaces[name]):
            for run in (ep.sweep, ep.vmap_space):
                with pytest.raises(ValueError, match=f"`{name}` .*64, made while 64 b"):
                    run(lambda p: 0, space)
    # Keys have no bits to lose, and arrays of NumPy are cut as JAX always does.
    tree = {"k": ep.Values(jr.split(jr.key(0), 2)), "w": np.ones(2)}
    assert ep.sweep(lambda p: p["w"].sum(), tree).values.tolist() == [2, 2]
