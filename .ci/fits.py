"""Largest batches that fit on devices which are not here, as `plan` recommends them.

    JAX_PLATFORMS=cpu python .ci/fits.py tpu|gpu [NAME ...]

For each of twelve models the recommended batch is compiled, and one that is a tenth
larger. The first must fit. On a GPU, the second must not; on a TPU, where the compiler
changes layouts with the size, that is only printed.
"""

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402

import eqx_pipe as ep  # noqa: E402
from eqx_pipe._compiled import bytes_of_program, free_bytes  # noqa: E402
from eqx_pipe._sweep.plan import plan_of  # noqa: E402
from eqx_pipe._sweep.request import request_of  # noqa: E402

KIND = sys.argv[1]
ONE = ep.topology({"tpu": "v5e", "gpu": "h100"}[KIND])
GRID = {"a": ep.Linspace(0, 1, 2**12), "b": ep.Linspace(1, 2, 2**14)}
VECTORS = np.random.default_rng(0).normal(size=(2**12, 512)).astype(np.float32)
WIDE = {"a": ep.Values(VECTORS), "b": ep.Linspace(1, 2, 2**14)}


def repeated(steps, step, start):
    return jax.lax.fori_loop(0, steps, lambda _, x: step(x), start)


def mats(p):
    return repeated(50, lambda m: jnp.tanh(m @ m), jnp.eye(16) * p["a"])


def cnn(p):
    image = jnp.ones((1, 28, 28)) * p["a"]

    def loss(w):
        return jax.nn.relu(jax.lax.conv(image[None], w, (1, 1), "SAME")).mean()

    start = jr.normal(jr.key(0), (16, 1, 3, 3))
    return repeated(10, lambda w: w - 0.1 * p["b"] * jax.grad(loss)(w), start)


def mlp(p):
    x = jnp.ones((256, 64))

    def step(w):
        slopes = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1]) ** 2))(w)
        return jax.tree.map(lambda a, g: a - p["a"] * g, w, slopes)

    start = (jnp.ones((64, 128)) * p["a"], jnp.ones((128, 10)) * p["b"])
    return repeated(100, step, start)[1].sum()


def attention(p):
    q = jnp.ones((64, 32)) * p["a"] + p["b"]
    return jax.nn.softmax(q @ q.T) @ q


def oscillators(p):
    def step(y):
        x, v, z = y
        return y + 0.01 * jnp.array([v - x, x * (p["b"] - z), x * v])

    return repeated(100, step, jnp.ones((3, 64)) * p["a"])


def trajectory(p):
    step = lambda y, _: (y * 0.9 + p["b"], y)  # noqa: E731
    return jax.lax.scan(step, p["a"] * jnp.ones(4), None, length=500)[1]


def rnn(p):
    w = jr.normal(jr.key(1), (128, 128)) / 12
    step = lambda h, x: (jnp.tanh(p["a"] * (w @ h) + p["b"] * x), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros(128), jnp.sin(jnp.arange(100.0)))[0]


def outer(p):
    x = jnp.sin(jnp.arange(256.0) * p["a"])
    return jnp.linalg.norm(jnp.outer(x, x) - p["b"] * jnp.eye(256), axis=0)


def chain(p):
    x = jnp.arange(256.0) * p["a"]
    return jnp.cumsum(jnp.sort(jnp.sin(x)) * p["b"])


def particles(p):
    start = jnp.stack([jnp.sin(jnp.arange(64.0)), jnp.cos(jnp.arange(64.0))], 1)

    def step(c):
        x, v = c
        apart = x[None] - x[:, None]
        pull = apart / (jnp.sum(apart**2, -1, keepdims=True) + 0.1) ** 1.5
        v = v + 0.01 * p["a"] * jnp.sum(pull, axis=1)
        return x + 0.01 * v, v

    return repeated(50, step, (start, p["b"] * jnp.zeros((64, 2))))[0]


def kalman(p):
    move = jnp.asarray([[1.0, 0.1], [0.0, 1.0]])

    def step(c, y):
        mean, cov = move @ c[0], move @ c[1] @ move.T + p["a"] * 0.01 * jnp.eye(2)
        gain = cov[:, 0] / (cov[0, 0] + p["b"])
        return (mean + gain * (y - mean[0]), cov - gain[:, None] * cov[0][None]), mean

    seen = jnp.sin(0.1 * jnp.arange(100.0))
    return jax.lax.scan(step, (jnp.zeros(2), jnp.eye(2)), seen)[1]


def vectors(p):
    return jnp.tanh(jnp.outer(p["a"], p["a"]) * p["b"]).sum(0)


MODELS = (mats, cnn, mlp, attention, oscillators, trajectory)
MODELS += (rnn, outer, chain, particles, kalman, vectors)


def check(fn):
    """Return what is wrong, and print what was found."""
    begun, space = time.perf_counter(), WIDE if fn is vectors else GRID
    with jax.disable_jit(False):
        points = plan_of(request_of("plan", fn, space, mesh=ONE)).points
        free = free_bytes(points.devices)
        largest = points.with_batch_size(points.size).largest_in(0, free)
        seconds = time.perf_counter() - begun

        def part(size):
            """Return the part of the memory that a batch needs, if it compiles."""
            try:
                made = points.with_batch_size(size).program(0, probe=True)
            except Exception as error:
                print("   ", type(error).__name__, str(error).splitlines()[0][:150])
                return None
            return bytes_of_program(made)[0] / free

        fits, more = part(largest), part(int(1.1 * largest))
    auto = points.fitted().batch_size
    text = [None if x is None else round(x, 3) for x in (fits, more)]
    print(f"{fn.__name__:<11}{largest:>12,} of memory {text}, auto {auto:,}", end=" ")
    print(f"({seconds:.0f} s)", flush=True)
    if fits is None or fits > 1:
        return True
    return KIND == "gpu" and largest < points.size and more is not None and more <= 1


if __name__ == "__main__":
    chosen = [fn for fn in MODELS if fn.__name__ in (sys.argv[2:] or fn.__name__)]
    sys.exit(min(1, sum(map(check, chosen))))
