"""A changed value builds nothing and is never stale; what rounds otherwise is named."""

import os
import pickle
import platform
import re
import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.sweeps import make_mesh

import eqx_pipe as ep
import eqx_pipe.testing as ept

pytest.importorskip("llvmlite")

X = jnp.linspace(0, 1, 40)
RATE = 2.0
RATES = {"rate": 3.0}


def names_in(fn, *args):
    """Return the names of the kernels that a program calls."""
    text = jax.jit(fn).lower(*args).as_text()
    return sorted(set(re.findall(r"eqx_pipe_kernel_\w+", text)))


def scaled(by):
    return lambda x: lax.fori_loop(0, 3, lambda _, y: y * by, x)


def test_an_array_that_changes_a_thousand_times_builds_one_kernel():
    def of_weights(w):
        return jax.vmap(ep.kernel(scaled(w)))(X)

    run = jax.jit(of_weights)  # a tracer that it closes over
    for k in range(1000):
        np.testing.assert_allclose(run(jnp.float32(k)), k**3 * X, rtol=1e-5)
    arrays = [jnp.float32(2), jnp.float32(3), np.full(40, 4.0, np.float32)[3]]
    mapped = [jax.vmap(ep.kernel(scaled(jnp.asarray(w)))) for w in arrays]
    names = {name for fn in mapped for name in names_in(fn, X)}
    assert names == {*names_in(mapped[0], X)} and len(names) == 1
    for fn, w in zip(mapped, arrays, strict=True):
        np.testing.assert_allclose(fn(X), w**3 * X, rtol=1e-6)


def test_a_sweep_with_other_arrays_compiles_nothing():
    def fn(w):
        return ep.kernel(lambda p: scaled(w)(p["x"]) + w)

    space, results = {"x": ep.Values(X)}, []
    ep.sweep(fn(jnp.float32(1)), space)
    ep.sweep(fn(jnp.float32(2)), space)  # from now on it is an argument
    with ept.assert_compiles(0):
        for k in range(3, 20):
            results.append(ep.sweep(fn(jnp.float32(k)), space).values)
    for k, values in enumerate(results, 3):
        np.testing.assert_allclose(values, k**3 * X + k, rtol=1e-5)
    with ept.assert_compiles(0):
        run = ep.sweeper(fn(jnp.float32(2)), space)
        run(space)


def test_outside_of_jit_a_second_call_compiles_nothing(monkeypatch):
    def total(weights):
        def fn(x, key):
            draw = jax.random.uniform(key) * RATE
            y = eqx.error_if(scaled(weights)(x), x > 2, "more than 2")
            return jnp.stack([y, 2 * y])[positions].sum() + draw

        return jax.vmap(ep.kernel(fn))

    positions, keys = np.array([0, 1]), jax.random.split(jax.random.key(0), 40)
    draws = jax.vmap(jax.random.uniform)(keys)
    total(jnp.float32(1))(X, keys)
    with ept.assert_compiles(0):
        found = [total(jnp.float32(k))(X, keys) for k in range(2, 5)]
    for k, got in enumerate(found, 2):
        np.testing.assert_allclose(got, 3 * k**3 * X + 2 * draws, rtol=1e-5)
    positions[1] = 0
    got = total(jnp.float32(2))(X, keys)
    np.testing.assert_allclose(got, 16 * X + 2 * draws, rtol=1e-5)
    monkeypatch.setitem(globals(), "RATE", 5.0)
    got = total(jnp.float32(2))(X, keys)
    np.testing.assert_allclose(got, 16 * X + 5 * draws, rtol=1e-5)
    with pytest.raises(Exception, match="more than 2"):
        jax.block_until_ready(total(jnp.float32(2))(X + 2, keys))


def test_globals_dicts_and_arrays_in_place_are_never_stale(monkeypatch):
    by_global = ep.kernel(lambda x: x * RATE)
    by_dict = ep.kernel(lambda x: x * RATES["rate"])
    array = np.ones(3, np.float32)
    by_array = ep.kernel(lambda x: x * array.sum() + jnp.asarray(array)[1])
    positions = np.array([0, 1])
    by_position = ep.kernel(lambda x: jnp.stack([x, 2 * x, 3 * x])[positions])

    def check(rate, other, number, first):
        for run in (
            lambda f: jax.vmap(f)(X),
            lambda f: ep.sweep(f, ep.Values(X)).values,
        ):
            np.testing.assert_allclose(run(by_global), rate * X, rtol=1e-6)
            np.testing.assert_allclose(run(by_dict), other * X, rtol=1e-6)
            np.testing.assert_allclose(
                run(by_array), 3 * number * X + number, rtol=1e-6
            )
            got = np.asarray(run(by_position))[:, 0]
            np.testing.assert_allclose(got, (first + 1) * X, rtol=1e-6)

    check(2, 3, 1, 0)
    monkeypatch.setitem(globals(), "RATE", 5.0)
    monkeypatch.setitem(RATES, "rate", 7.0)
    array[:], positions[0] = 2, 2
    check(5, 7, 2, 2)


def test_x64_changed_after_the_build():
    fn = ep.kernel(lambda x: lax.fori_loop(0, 3, lambda _, y: y + 0.1, x.astype(float)))
    x = np.arange(40)
    assert jax.vmap(fn)(x).dtype == jnp.float32
    with jax.enable_x64(True):
        got = jax.vmap(fn)(x.astype(float))
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, x + 0.3, rtol=1e-14)
    assert jax.vmap(fn)(x).dtype == jnp.float32


def test_strict_is_another_kernel():
    fn = scaled(0.3)
    loose, strict = (
        names_in(jax.vmap(ep.kernel(fn, strict=s)), X) for s in (0 > 1, True)
    )
    assert loose != strict and names_in(jax.vmap(ep.kernel(fn)), X) == loose
    # The number of lanes is not part of a kernel.
    assert names_in(jax.vmap(ep.kernel(fn)), X[:35]) == loose


def test_threads_build_a_kernel_once():
    found, errors = [], []

    def build(k):
        try:
            fn = jax.jit(jax.vmap(ep.kernel(scaled(0.01 * (k % 4)))))
            for _ in range(5):
                found.append((k % 4, np.asarray(fn(X))))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=build, args=[k]) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(found) == 40
    for k, got in found:
        np.testing.assert_allclose(got, (0.01 * k) ** 3 * X, rtol=1e-5)


def test_a_pickled_kernel_holds_its_function_only():
    cloudpickle = pytest.importorskip("cloudpickle")
    fn = ep.kernel(scaled(0.5))
    jax.vmap(fn)(X)
    data = cloudpickle.dumps(fn)
    assert len(data) < 4000 and b"llvm" not in data
    np.testing.assert_array_equal(jax.vmap(pickle.loads(data))(X), jax.vmap(fn)(X))


ORDER = """
import sys
import jax, jax.numpy as jnp
import eqx_pipe as ep

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
x, kernels = jnp.linspace(0, 1, 40), {
    "double": ep.kernel(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: 2 * y, x)),
    "triple": ep.kernel(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: 3 * y, x)),
}
for name in sys.argv[2:]:
    if name == "bare":
        ep.kernel(lambda x: x)
    else:
        print(name, round(float(jax.jit(jax.vmap(kernels[name]))(x)[-1])), flush=True)
"""


def test_the_persistent_cache_in_any_order(tmp_path):
    script = tmp_path / "order.py"
    script.write_text(ORDER)
    for order in (["double", "triple"], ["triple", "double"], ["bare", "triple"]):
        command = [sys.executable, str(script), str(tmp_path / "cache"), *order]
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        want = {"double": "double 8\n", "triple": "triple 27\n", "bare": ""}
        assert run.stdout == "".join(map(want.get, order)), run.stderr
    assert list((tmp_path / "cache").glob("*-cache"))


def in_store(x):
    return lax.fori_loop(0, 3, lambda _, y: 1.1 * y, x["x"])


SPACE = {"x": ep.Values(X)}


def test_a_store_belongs_to_the_kernel_and_the_machine(tmp_path, monkeypatch):
    pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    path = tmp_path / "runs.zarr"
    first = ep.sweep(ep.kernel(in_store), SPACE, store=path, mesh=make_mesh(1))
    with ept.assert_compiles(0):
        again = ep.sweep(ep.kernel(in_store), SPACE, store=path, mesh=make_mesh(1))
    np.testing.assert_array_equal(first.values, again.values)
    with pytest.raises(ep.StructureError, match="kernels by llvmlite.*now no kernels"):
        ep.sweep(in_store, SPACE, store=path)
    with pytest.raises(ep.StructureError, match="`strict` is False in the store"):
        ep.sweep(ep.kernel(in_store, strict=True), SPACE, store=path)
    import llvmlite

    for module, name, value, words in (
        (platform, "libc_ver", lambda: ("glibc", "2.1"), r"now .* with glibc 2\.1\b"),
        (llvmlite, "__version__", "0.1", r"now kernels by llvmlite 0\.1 for"),
    ):
        monkeypatch.setattr(module, name, value)
        with pytest.raises(ep.StructureError, match=words):
            ep.sweep(ep.kernel(in_store), SPACE, store=path)
    ep.sweep(ep.kernel(in_store), SPACE, store=path, resume="force")


def test_an_unknown_version_of_the_interface_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "xla" / "ffi" / "api"
    folder.mkdir(parents=True)
    text = "#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n"
    (folder / "c_api.h").write_text(text)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    fn = jax.vmap(ep.kernel(scaled(0.123)))
    with pytest.raises(RuntimeError, match="has the version 1.0, and 0.3 to 0.5 are"):
        fn(X)
