"""The values of kernels: those of JAX, at the edges and for random programs."""

import platform
import re

import equinox.internal as eqxi
import hypothesis
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives
from support.random_programs import random_points, random_program

import eqx_pipe as ep
from eqx_pipe._kernel import call, ffi

pytest.importorskip("llvmlite")

FLOATS, SIGNED = ["float32", "float64"], ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = SIGNED + UNSIGNED


def specials(dtype):
    """Return the values of a dtype at which operations have their edges."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        half = [0, 1, 0.5, 1.5, 2, 2.5, 3, np.inf, info.max, info.tiny, info.eps]
        half += [1 + info.eps, 1 - info.epsneg, 127, 256, 2**31, 2**32, 2.0**63, 1e-5]
        half += [0.7, 89, 104, 745, np.pi, 1e6, 1e20]
        return np.array([*half, *(-x for x in half), np.nan], dtype)
    info = np.iinfo(dtype)
    values = [0, 1, 2, 3, 7, 8, 15, 31, 32, 33, 63, 64, info.max, info.max - 1]
    values += [info.min, info.min + 1, -1, -2, -7, -31, -32]
    return np.array([x for x in values if info.min <= x <= info.max]).astype(dtype)


def combinations(dtype, count):
    """Return all combinations of the special values."""
    grids = np.meshgrid(*[specials(dtype)] * count, indexing="ij")
    return [x.ravel() for x in grids]


def units(got, want):
    """Return the distance of floats in units in the last place."""
    word = f"i{got.dtype.itemsize}"
    ordered = [
        np.where(x.view(word) < 0, np.iinfo(word).min - x.view(word), x.view(word))
        for x in (np.asarray(got), np.asarray(want))
    ]
    low, high = np.minimum(*ordered), np.maximum(*ordered)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0, (high - low).view(word.replace("i", "u")))


def flushed(x):
    """Return floats with the smallest as zeros, as XLA has them in most places."""
    return np.where(np.abs(x) <= np.finfo(x.dtype).tiny, np.copysign(0, x), x)


def assert_alike(got, want, tolerance, *name):
    """Compare values: the same bits, or floats within some units."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        got, want = flushed(got), flushed(want)
        off = units(got, want) > tolerance
        off |= (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    else:
        off = got != want
    assert not off.any(), (*name, np.flatnonzero(off)[:5], got[off][:5], want[off][:5])


def check(fn, *args, tolerance=0):
    """Compare a kernel with JAX."""
    got, want = (jax.jit(jax.vmap(f))(*args) for f in (ep.kernel(fn), fn))
    assert_alike(got, want, tolerance, *args)


def check_all(names, *args, tolerance=0):
    """Compare functions of `jax.lax` in one kernel, which compiles once."""
    functions = [getattr(lax, name, None) or _of(name) for name in names]
    fn = lambda *x: [function(*x) for function in functions]  # noqa: E731
    got, want = (jax.jit(jax.vmap(f))(*args) for f in (ep.kernel(fn), fn))
    for name, g, w in zip(names, got, want, strict=True):
        assert_alike(g, w, tolerance, name)


def _of(name):
    """Return the function of a primitive that `jax.lax` does not export."""
    return getattr(primitives, f"{name}_p").bind


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


EXACT = {
    "neg sign floor ceil abs sqrt is_finite square": (1, FLOATS),
    "add sub mul div rem max min nextafter eq ne lt le gt ge": (2, FLOATS),
    "eq_to lt_to le_to": (2, FLOATS),
    "clamp": (3, ["float32"]),
    "neg sign abs": (1, SIGNED),
    "bitwise_not population_count clz square": (1, INTEGERS),
    "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor": (2, INTEGERS),
    "eq ne lt le gt ge": (2, INTEGERS),
    "shift_left shift_right_logical shift_right_arithmetic": (2, INTEGERS),
    "bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge max min": (2, ["bool"]),
    "bitwise_not": (1, ["bool"]),
}
EXACT_CASES = [
    (dtype, count, names)
    for names, (count, dtypes) in EXACT.items()
    for dtype in dtypes
]


@pytest.mark.parametrize("dtype, count, names", EXACT_CASES)
def test_edges(dtype, count, names):
    check_all(names.split(), *combinations(dtype, count))


NEAR = (
    "exp expm1 log log1p sqrt rsqrt cbrt sin cos tan asin acos atan tanh asinh acosh "
    "atanh logistic erf"
).split()


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_at_their_edges(dtype):
    check_all(NEAR, specials(dtype), tolerance=5)  # XLA's are off by up to 5


@pytest.mark.parametrize("dtype", FLOATS)
def test_logarithms_of_base_two(dtype):
    check(jnp.log2, specials(dtype), tolerance=5)  # of JAX 0.12, a function of its own


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_functions_of_two_numbers_at_their_edges(name, dtype):
    check(getattr(lax, name), *combinations(dtype, 2), tolerance=4)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_conversions(dtype):
    others = [d for d in (*FLOATS, *INTEGERS, "bool") if d != dtype]
    fn = lambda x: [lax.convert_element_type(x, d) for d in others]  # noqa: E731
    got, want = (jax.jit(jax.vmap(f))(specials(dtype)) for f in (ep.kernel(fn), fn))
    for name, g, w in zip(others, got, want, strict=True):
        assert_alike(g, w, 0, dtype, name)


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 5, 7])
def test_integer_powers(power):
    for dtype in FLOATS if power < 0 else [*FLOATS, "int32", "uint8"]:
        check(lambda x: lax.integer_pow(x, power), specials(dtype), tolerance=1)


@pytest.mark.parametrize("method", list(lax.RoundingMethod))
def test_rounding(method):
    for dtype in FLOATS:
        check(lambda x: lax.round(x, method), specials(dtype))


def test_three_cases():
    which = np.array([0, 1, 2], np.int32)
    check(lambda k: lax.select_n(k, *map(jnp.float32, (1, 2, 3))), which)
    out_of_range = np.array([-5, -1, 0, 1, 2, 3, 9], np.int32)
    check(lambda k: lax.switch(k, [lambda: 1, lambda: 2, lambda: 3]), out_of_range)


def test_extremes_of_rows_with_nan_and_zeros():
    numbers = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf]
    rows = np.stack(np.meshgrid(*[np.float32(numbers)] * 3, indexing="ij"), -1)
    rows = rows.reshape(-1, 3)
    for fn, of_numpy in (
        (jnp.argmax, np.argmax),
        (jnp.argmin, np.argmin),
        # XLA drops NaN in some batches, so compare with NumPy.
        (jnp.max, np.max),
        (jnp.min, np.min),
    ):
        got = jax.jit(jax.vmap(ep.kernel(fn)))(rows)
        np.testing.assert_array_equal(got, of_numpy(rows, axis=1))


def test_indices_out_of_range():
    table = jnp.arange(5.0)
    places = np.arange(-8, 9, dtype=np.int32)
    for mode in ("fill", "clip"):
        at = lambda k, mode=mode: table.at[k].get(mode=mode)  # noqa: E731
        check(at, places)
        check(lambda k, mode=mode: table.at[k].set(9.0, mode=mode), places)
        check(lambda k, mode=mode: table.at[k].add(k.astype(float), mode=mode), places)
    check(lambda k: lax.dynamic_slice(table, (k,), (2,)), places)
    check(lambda k: lax.dynamic_update_slice(table, table[:2], (k,)), places)
    check(lambda k: table.reshape(5, 1)[k, 0] + jnp.take(table, k), places)


def test_functions_of_the_elements_at_some_places():
    rows = np.arange(12.0).reshape(3, 4) - 5
    for fn in (
        lambda x: x.at[x[3].astype(int)].apply(lambda z: 2 * z + 1),
        lambda x: x.at[np.array([0, 2, 2])].apply(jnp.square),
        lambda x: x.astype("int8").at[1].apply(lambda z: z // 2 + x.size),
        lambda x: lax.fori_loop(0, 5, lambda k, x: x.at[k % 4].apply(jnp.negative), x),
        lambda x: x.at[np.array([1, 1, 9])].add(x[:3]),
    ):
        check(fn, rows)


def test_the_root_of_a_function():
    def newton(fn, x):
        return lax.fori_loop(0, 30, lambda _, x: x - fn(x) / (3 * x * x + 1), x)

    def fn(y):
        cubic = lambda x: x**3 + x - y  # noqa: E731
        return lax.custom_root(cubic, 0.0, newton, lambda g, y: y / g(1.0))

    check(fn, np.arange(5.0), tolerance=2)


def test_a_loop_of_equinox_with_a_buffer():
    def fn(x):
        step = lambda c: (c[0] + 1, c[1].at[c[2]].set(c[0]), c[2] + 1)  # noqa: E731
        kinds = dict(kind="checkpointed", max_steps=9, buffers=lambda c: c[1])
        start = x, jnp.zeros(9), 0
        return eqxi.while_loop(lambda c: c[0] < 5, step, start, **kinds)[1]

    check(fn, np.arange(7.0))


SAMPLES = {
    "exp": (-87, 88),
    "expm1": (-5, 80),
    "log": (1e-30, 1e30),
    "log1p": (-0.99, 5),
    "tanh": (-10, 10),
    "sinh": (-80, 80),
    "cosh": (-80, 80),
    "sin": (-1e5, 1e5),
    "cos": (-40, 40),
    "tan": (-20, 20),
    "logistic": (-80, 20),
    "rsqrt": (1e-30, 1e30),
    "erf_inv": (-0.9999, 0.9999),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_accuracy(name):
    low, high = SAMPLES[name]
    x = np.random.default_rng(0).uniform(low, high, 20_000).astype(np.float32)
    fn = getattr(lax, name)
    exact = np.asarray(jax.jit(jax.vmap(fn))(x.astype(np.float64)))
    with jax.enable_x64(False):
        got, of_xla = (np.asarray(jax.jit(jax.vmap(f))(x)) for f in (ep.kernel(fn), fn))
    size = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    error, error_of_xla = (np.max(np.abs(y - exact) / size) for y in (got, of_xla))
    assert error <= max(0.51, min(4, error_of_xla))


def _solve(x, k):
    """Arithmetic, whose products and sums a processor could round together."""

    def step(c):
        x, y, n = c
        return x * y + 0.1 * x - y * y * 0.3, (y * 1.1 + x) / (x * x + 2.0), n + 1

    return lax.while_loop(lambda c: c[2] < k, step, (x, x * 0.5 + 1, jnp.int32(0)))[:2]


def test_strict_rounds_each_operation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200).astype(np.float32)
    k = rng.integers(0, 9, 200).astype(np.int32)
    got = jax.jit(jax.vmap(ep.kernel(_solve, strict=True)))(x, k)
    x, y, n = x, x * np.float32(0.5) + np.float32(1), np.zeros(200)
    f = np.float32
    for _ in range(9):
        on = n < k
        new = x * y + f(0.1) * x - y * y * f(0.3), (y * f(1.1) + x) / (x * x + f(2))
        x, y, n = (
            np.where(on, a, b) for a, b in ((new[0], x), (new[1], y), (n + 1, n))
        )
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], y)


def test_bits_of_a_lane_do_not_depend_on_others():
    x = jr.normal(jr.key(0), (333,), jnp.float32)
    k = jr.randint(jr.key(1), (333,), 0, 40, jnp.int32)
    run = jax.jit(jax.vmap(ep.kernel(_solve)))
    whole = np.stack(run(x, k))
    for part in (slice(0, 1), slice(5, 38), slice(40, 300)):
        np.testing.assert_array_equal(np.stack(run(x[part], k[part])), whole[:, part])
    order = np.random.default_rng(0).permutation(333)
    np.testing.assert_array_equal(np.stack(run(x[order], k[order])), whole[:, order])


def _compare_random(seeds):
    for seed in seeds:
        fn, points = random_program(seed), random_points(seed, 70)
        with jax.enable_x64(False):
            want = jax.jit(jax.vmap(fn))(*points)
            got = jax.jit(jax.vmap(ep.kernel(fn, strict=bool(seed % 2))))(*points)
        for name in want:
            assert_alike = np.testing.assert_array_equal
            if name == "f":
                assert_alike = _close
            assert_alike(
                np.asarray(got[name]), np.asarray(want[name]), f"{seed} {name}"
            )


def _close(got, want, text):
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=text)


# XLA of JAX 0.10 computes integers of some of these programs unlike that of 0.12, whose
# values kernels have with both.
newer = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="values of older XLA")


IS_THOROUGH = hypothesis.settings().max_examples >= 250


@newer
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_programs(first):
    _compare_random(range(first, first + 8))


@newer
@pytest.mark.slow
@pytest.mark.parametrize("first", range(24, 1000 if IS_THOROUGH else 216, 16))
def test_more_random_programs(first):
    """Try 200 programs before a merge, and 1,000 each week."""
    _compare_random(range(first, min(first + 16, 1000)))


# Each instruction with undefined results, and what its last operand must be.
_GUARDED = re.compile(r"= (sdiv|udiv|srem|urem|shl|lshr|ashr) [^,]+, (.+)")
_FORBIDDEN = re.compile(
    r"\b(nsw|nuw|exact|inbounds|disjoint|nneg|fast|nnan|ninf|nsz|arcp|reassoc|afn|"
    r"fptosi|fptoui|undef|unreachable|frem)\b(?!\.sat)"
)


@pytest.fixture
def texts(monkeypatch):
    """Return the code of the kernels that a test compiles."""
    texts = []
    registered = ffi.registered

    def record(text, *counts):
        texts.append(text)
        return registered(text, *counts)

    monkeypatch.setattr(call, "registered", record)
    return texts


def test_many_divisions_are_one_function(texts):
    """In one function, LLVM would take minutes for some hundreds of them."""

    def fn(x, y):
        for k in range(80):
            x = lax.div(x, y + k) + lax.rem(x, y - k)
        return lax.div(x, jnp.int32(3))  # a multiplication, which needs no function

    x, y = np.arange(-40, 40, dtype=np.int32), np.arange(80, dtype=np.int32) // 9
    got, want = (jax.jit(jax.vmap(f))(x, y) for f in (ep.kernel(fn), fn))
    np.testing.assert_array_equal(got, want)
    assert len(re.findall(r"= [su]div ", texts[0])) == 2


def test_no_instruction_has_an_undefined_result(texts):
    unary = [lax.sign, lax.abs, lax.clz, lax.population_count, lax.bitwise_not]
    binary = [lax.div, lax.rem, lax.shift_left, lax.shift_right_logical]
    binary += [lax.shift_right_arithmetic, lax.max, lax.pow]

    def fn(i, u, f, key):
        whole = [op(x) for op in unary for x in (i, u) if op is not lax.abs or x is i]
        pairs = [op(x, x + 1) for op in binary[:-1] for x in (i, u)]
        floats = [getattr(lax, n)(f) for n in NEAR] + [lax.rem(f, f + 1), lax.pow(f, f)]
        casts = [f.astype(d) for d in ("int32", "uint32", "int8")]
        return whole, pairs, floats, casts, jr.normal(key), lax.nextafter(f, f + 1)

    points = (
        jnp.arange(5),
        jnp.arange(5, dtype="uint32"),
        jnp.ones(5),
        jr.split(jr.key(0), 5),
    )
    jax.jit(jax.vmap(ep.kernel(fn)))(*points)
    for seed in range(3):
        jax.jit(jax.vmap(ep.kernel(random_program(seed)))).lower(
            *random_points(seed, 9)
        )
    assert len(texts) == 4
    for line in "\n".join(texts).splitlines():
        assert not _FORBIDDEN.search(line.partition("@")[0]), line
        # Loads assume the alignment of their type.
        assert "alloca" not in line or "align" not in line, line
        if "poison" in line:
            assert re.search(r"(insertelement|insertvalue|shufflevector)", line), line
        found = _GUARDED.search(line)
        if found:
            operand = re.sub(r"splat \(\w+ (.+)\)", r"\1", found[2])
            assert operand.startswith("%safe") or 0 < int(operand) < 64, line
    assert "ctlz" in "\n".join(texts) and "i1 true)" not in re.sub(
        r"splat \(i1 true\)", "", "\n".join(re.findall(r".*ctlz.*", "\n".join(texts)))
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_with_exponents_of_several_dtypes(dtype):
    def fn(x, n):
        exponents = x, n, n.astype("uint8"), n.astype("int8")
        return [lax.pow(x, y) for y in exponents]

    x, n = np.linspace(0.9, 1.1, 40).astype(dtype), np.arange(40) * 6 - 20
    got, want = (jax.jit(jax.vmap(f))(x, n) for f in (ep.kernel(fn), fn))
    for g, w in zip(got, want, strict=True):
        assert_alike(g, w, 4)


def test_bools_are_multiplied_as_bools():
    fn = lambda x: lax.dot(jnp.stack([x, True]), jnp.array([True, True]))  # noqa: E731
    check(fn, np.array([True, False]))


def test_arrays_without_numbers():
    x = np.arange(5.0)
    check(lambda x: jnp.zeros((2, 0)) @ (jnp.zeros((0, 3)) * x) + x, x)
    add = lambda total, row: (total + row, {"y": total, "z": row})  # noqa: E731
    fn = lambda x: lax.scan(add, x, jnp.zeros(0))  # noqa: E731
    got, want = (jax.jit(jax.vmap(f))(x) for f in (ep.kernel(fn), fn))
    assert jax.tree.all(jax.tree.map(np.array_equal, got, want))
    none = jnp.zeros((0, 3))
    fn = lambda x: jnp.argmax(none * x, axis=1)  # noqa: E731
    assert jax.jit(jax.vmap(ep.kernel(fn)))(x).shape == (5, 0)
    fold = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(0), n))
    fn = lambda x: fold(none[:, 0].astype(int) + x.astype(int))  # noqa: E731
    assert jax.jit(jax.vmap(ep.kernel(fn)))(x).shape == (5, 0)
    with pytest.raises(ValueError, match=r"`reduce_max` .*reduces no numbers"):
        jax.vmap(ep.kernel(lambda x: jnp.max(jnp.zeros(0) * x, initial=0.0)))(x)


def test_indices_beyond_the_largest_signed_integer():
    fn = lambda n: (jnp.arange(5) + n.astype(int))[n.astype("uint64")]  # noqa: E731
    check(fn, np.arange(-2, 8))


def test_bits_of_another_size_are_refused():
    fn = ep.kernel(lambda x: lax.bitcast_convert_type(x, "uint8"))
    with pytest.raises(ValueError, match=r"bitcast_convert_type.* another size, uint8"):
        jax.vmap(fn)(jnp.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_tables(dtype):
    """Look up places in a table; JAX 0.12 has primitives for it that it lowers."""
    table, values = jnp.array([-2, 0, 0, 1, 5], dtype), jnp.float32([3, 1, 4, 1, 5])
    x = specials(dtype)
    check(lambda x: jnp.searchsorted(table, x), x)
    check(lambda x: jnp.searchsorted(table, x, side="right", method="compare_all"), x)
    check(lambda x: jnp.digitize(x, table), x)
    if dtype == "float32":
        x = np.linspace(-3, 6, 50, dtype=np.float32)
        check(lambda x: jnp.interp(x, table, values), x, tolerance=2)
        check(lambda x: jnp.interp(x, table, x * values, left=9.0), x, tolerance=2)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
def test_strict_bits_do_not_depend_on_the_processor(monkeypatch):
    def fn(x, k):
        return *_solve(x, k), lax.pow(jnp.sin(x), k), jnp.exp(x), jr.normal(jr.key(k))

    rng = np.random.default_rng(1)
    x = rng.normal(size=150).astype(np.float32)
    k = rng.integers(0, 30, 150).astype(np.int32)
    here = ffi.this_machine()
    machines = [here, here._replace(cpu="x86-64-v2", features="+sse4.2")]
    if "+avx2" in here.features and "+fma" in here.features:
        machines.append(here._replace(cpu="haswell", features="+avx2,+fma"))
    found = []
    for machine in machines:
        for module in (call, ffi):
            monkeypatch.setattr(module, "this_machine", lambda m=machine: m)
        found.append(jax.jit(jax.vmap(ep.kernel(fn, strict=True)))(x, k))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, found[0])
