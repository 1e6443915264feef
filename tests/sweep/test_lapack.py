"""Linear algebra in large batches, which some versions of JAX never finish."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import eqx_pipe as ep
from eqx_pipe import _errors
from eqx_pipe._vmap import analyze, choose_batch_size, lapack

SQUARE = jnp.eye(16)
SPLIT = 200_000  # operations
MOST = (SPLIT - 1) // (10 * 16**3)


def limit(fn, point=1.0):
    return analyze(jax.make_jaxpr(fn)(point), [True]).linalg_limit


def test_for_how_many_points_it_is_not_split():
    assert limit(lambda a: a * SQUARE) is None
    for name in ("inv", "det", "cholesky", "svd"):
        fn = getattr(jnp.linalg, name)
        assert limit(lambda a, fn=fn: jax.tree.leaves(fn(a * SQUARE))[0]) == MOST
    # Several matrices in a point, complex ones: fewer points.
    stack = jnp.stack([SQUARE] * 4)
    assert limit(lambda a: jnp.linalg.cholesky(a * stack)) == MOST // 4
    whole = lambda a: (a * SQUARE).astype(jnp.complex64)  # noqa: E731
    assert limit(lambda a: jnp.linalg.cholesky(whole(a))) == MOST // 3
    solve = jax.lax.linalg.tridiagonal_solve
    band, right = jnp.ones(100), jnp.ones((100, 1))
    assert limit(lambda a: solve(band, a * band, band, right)) == (SPLIT - 1) // 1000
    # One large matrix is never split; several are, whatever the batch.
    assert limit(lambda a: jnp.linalg.cholesky(a * jnp.eye(99))) == 1
    assert limit(lambda a: jnp.linalg.cholesky(a * jnp.ones((2, 99, 99)))) == 0


def test_it_is_found_wherever_it_stands():
    inside = lambda a: jnp.linalg.solve(a * SQUARE, SQUARE[0])  # noqa: E731
    expected = limit(inside)
    for fn in (
        jax.jit(inside),
        lambda a: jax.lax.cond(a > 0, inside, lambda a: SQUARE[0], a),
        lambda a: jax.lax.scan(lambda c, _: (c + inside(c)[0], 0), a, None, 3)[0],
        lambda a: jax.lax.while_loop(lambda c: c < 3, lambda c: c + inside(c)[0], a),
    ):
        assert limit(fn) == expected == MOST
    # What is the same for all points is computed once.
    assert limit(lambda a: a * jnp.linalg.inv(SQUARE)) is None


@pytest.mark.parametrize(
    ("jaxlib", "threads", "devices", "expected"),
    [
        ("0.10.2", 2, 2, True),
        ("0.10.0", 15, 2, True),
        ("0.11.0", 2, 1, True),
        ("0.10.2", 16, 2, False),  # enough of them
        ("0.10.2", 1, 1, False),  # one thread splits nothing
        ("0.9.2", 2, 2, False),
        ("0.11.1", 2, 2, False),
        ("0.12.0.1", 2, 2, False),
    ],
)
def test_when_it_may_hang(monkeypatch, jaxlib, threads, devices, expected):
    monkeypatch.setattr(lapack, "JAXLIB", jaxlib)
    monkeypatch.setenv("NPROC", str(threads))
    assert lapack.may_hang(jax.devices("cpu")[:devices]) is expected


def test_the_batch_is_then_small_enough(monkeypatch):
    monkeypatch.setenv("NPROC", "2")

    def sizes(fn):
        """Return the batch size where it cannot hang, and where it may."""
        found = analyze(jax.make_jaxpr(fn)(1.0), [True])
        for version in ("0.12.0", "0.10.2"):
            monkeypatch.setattr(lapack, "JAXLIB", version)
            yield choose_batch_size(found, 10**6, jax.devices("cpu")[:2])

    free, bound = sizes(lambda a: jnp.linalg.svd(a * SQUARE)[1])
    assert free > bound == MOST
    _, bound = sizes(lambda a: jnp.linalg.inv(a * jnp.eye(99)))
    assert bound == 1
    free, bound = sizes(jnp.sin)
    assert free == bound


def test_a_larger_batch_is_warned_of_once(monkeypatch, caplog):
    monkeypatch.setattr(lapack, "JAXLIB", "0.10.2")
    monkeypatch.setattr(_errors, "_logged", {"idle cores"})
    monkeypatch.setenv("NPROC", "2")
    fn = lambda a: jnp.linalg.cholesky(a * SQUARE)  # noqa: E731
    space = ep.Linspace(1, 2, 60)
    with caplog.at_level("WARNING", "eqx_pipe"):
        ep.sweep(fn, space, batch_size=4)
        assert not caplog.records
        mesh = jax.make_mesh((1,), ("x",))
        for _ in range(2):
            ep.sweep(fn, space, batch_size=5, mesh=mesh)
    (record,) = caplog.records
    text = record.getMessage()
    assert "0.10.2, batches of 5 points of linear algebra on 1 CPU device may" in text
    assert "Use a `batch_size` of at most 4, or" in text
    assert "NPROC to at least 8 before" in text


@pytest.mark.skipif(
    not lapack.may_hang(jax.devices("cpu")), reason="this jaxlib does not hang"
)
def test_on_as_many_devices_as_threads_no_sweep_hangs():
    code = """
import eqx_pipe as ep, jax.numpy as jnp
ep.use_cpu_devices()
eye, space = jnp.eye(16), ep.Linspace(1, 2, 2048)
for _ in range(2):
    for fn in (jnp.linalg.inv, jnp.linalg.cholesky, jnp.linalg.det):
        values = ep.sweep(lambda a: jnp.sum(fn(a * eye)), space).values
        assert jnp.isfinite(values).all()
print("done")
"""
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**env, "JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout == "done\n", done.stderr
