"""Large batches of linear algebra, for which some versions of JAX hang."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxlib.version
import pytest

import eqx_pipe as ep

SQUARE = jnp.eye(16)
SPLIT = 200_000  # operations
MOST = (SPLIT - 1) // (10 * 16**3)


def size(fn, devices=2):
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    return ep.plan(fn, ep.Linspace(1, 2, 10**6), mesh=mesh).batch_size


def set_version(monkeypatch, version):
    numbers = tuple(map(int, version.split(".")))
    monkeypatch.setattr("jaxlib.version.__version__", version)
    monkeypatch.setattr("jaxlib.version.__version_info__", numbers)


@pytest.fixture
def may_hang(monkeypatch):
    monkeypatch.setenv("NPROC", "2")
    set_version(monkeypatch, "0.10.2")
    monkeypatch.setattr("eqx_pipe._errors._logged", {"idle cores"})


def cholesky(a):
    return jnp.linalg.cholesky(a * SQUARE)


def complex_cholesky(a):
    return jnp.linalg.cholesky((a * SQUARE).astype(jnp.complex64))


LIMITS = [
    (jnp.sin, 1024),
    (lambda a: a * SQUARE, 16),
    # Computed once, since it is the same for all points.
    (lambda a: a * jnp.linalg.inv(SQUARE), 16),
    (cholesky, MOST),
    (lambda a: jnp.linalg.inv(a * SQUARE), MOST),
    (lambda a: jnp.linalg.svd(a * SQUARE)[1], MOST),
    (jax.jit(cholesky), MOST),
    (lambda a: jax.lax.cond(a > 0, cholesky, lambda a: SQUARE, a), MOST),
    (lambda a: jax.lax.scan(lambda c, _: (cholesky(c)[0, 0], 0), a, None, 3)[0], MOST),
    # Several matrices in a point, complex ones: fewer points.
    (lambda a: jnp.linalg.cholesky(a * jnp.stack([SQUARE] * 2)), MOST // 2),
    (complex_cholesky, MOST // 3),
    # One large matrix is never split.
    (lambda a: jnp.linalg.cholesky(a * jnp.eye(99)), 1),
]


@pytest.mark.parametrize("which", range(len(LIMITS)))
def test_the_batch_is_small_enough(may_hang, which):
    fn, expected = LIMITS[which]
    assert size(fn) == expected


@pytest.mark.parametrize(
    ("version", "threads", "devices", "expected"),
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
def test_when_it_may_hang(monkeypatch, version, threads, devices, expected):
    set_version(monkeypatch, version)
    monkeypatch.setenv("NPROC", str(threads))
    assert size(cholesky, devices) == (MOST if expected else 16)


def test_a_larger_batch_warns_once(may_hang, caplog):
    space = ep.Linspace(1, 2, 60)
    with caplog.at_level("WARNING", "eqx_pipe"):
        ep.sweep(cholesky, space, batch_size=4)
        assert not caplog.records
        mesh = jax.make_mesh((1,), ("x",))
        for _ in range(2):
            ep.sweep(cholesky, space, batch_size=5, mesh=mesh)
    (record,) = caplog.records
    text = record.getMessage()
    assert "0.10.2, batches of 5 points of linear algebra on 1 CPU device may" in text
    assert "Use a `batch_size` of at most 4, or" in text
    assert "NPROC to at least 8 before" in text


@pytest.mark.skipif(
    jaxlib.version.__version_info__ >= (0, 11, 1),
    reason="this jaxlib does not hang",
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
