"""The functions that sweeps are measured on: each of a point and a key.

`a` goes from 0.01 to 1, `b` from 0.1 to 0.9.
"""

import jax
import jax.numpy as jnp
import jax.random as jr


def closed_form(p, key):
    return jnp.exp(-p["a"] * 3) * jnp.sin(p["b"] * 5) / (1 + p["a"] ** 2)


def rk4(slope, x, h):
    """One step of the classical method of Runge and Kutta."""
    k1 = slope(x)
    k2 = slope(x + h / 2 * k1)
    k3 = slope(x + h / 2 * k2)
    k4 = slope(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def runge_kutta(p, key):
    def slope(x):
        u, v = x
        return jnp.stack([v, p["a"] * (1 - u**2) * v - u])

    def step(x, _):
        return rk4(slope, x, 0.05), None

    return jax.lax.scan(step, jnp.stack([p["b"], p["a"]]), None, 200)[0]


def divergent(p, key):
    trips = jnp.exp(p["a"] * jnp.log(1000.0)).astype(jnp.int32)
    return jax.lax.while_loop(
        lambda c: c[0] < trips,
        lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1])),
        (0, p["b"]),
    )[1]


def euler_maruyama(p, key):
    def step(x, k):
        return x - 0.01 * p["a"] * x + 0.1 * p["b"] * jr.normal(k), None

    return jax.lax.scan(step, jnp.float32(1), jr.split(key, 100))[0]


def solve(p, key):
    a = jnp.eye(24) * (2 + p["a"]) + jnp.cos(jnp.arange(576.0)).reshape(24, 24) * 0.1
    return jnp.linalg.solve(a, jnp.full(24, p["b"]))


def eigen(p, key):
    a = jnp.cos(jnp.arange(256.0).reshape(16, 16) * p["a"])
    return jnp.linalg.eigvalsh(a + a.T + p["b"])


def fourier(p, key):
    t = jnp.arange(512.0)
    return jnp.abs(jnp.fft.rfft(jnp.sin(p["a"] * t) + jnp.cos(p["b"] * t)))[:8]


def training(p, key):
    x = jnp.linspace(-1, 1, 256).reshape(32, 8)
    y = jnp.sin(x.sum(1))

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)

    def step(w, _):
        slopes = jax.grad(loss)(w)
        return jax.tree.map(lambda a, b: a - 0.1 * p["a"] * b, w, slopes), None

    start = (jr.normal(key, (8, 16)) * p["b"], jnp.zeros(16))
    return loss(jax.lax.scan(step, start, None, 50)[0])


def monte_carlo(p, key):
    return jnp.mean(jnp.exp(p["a"] * jr.normal(key, (1000,))) > p["b"])


def kuramoto(p, key):
    """Sixteen coupled oscillators."""
    rates = jnp.linspace(-1, 1, 16)

    def step(_, x):
        pull = jnp.mean(jnp.sin(x[None] - x[:, None]), axis=1)
        return x + 0.05 * (rates + 4 * p["a"] * pull)

    return jax.lax.fori_loop(0, 200, step, rates * 3 * p["b"])


def recurrent(p, key):
    """Run a recurrent network of 32 units over 100 steps."""
    w = jr.normal(jr.key(1), (32, 32)) / 6
    step = lambda h, x: (jnp.tanh(p["a"] * (w @ h) + p["b"] * x), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros(32), jnp.sin(jnp.arange(100.0)))[0]


def walk(p, key):
    """Walk at random; each step draws from a folded key."""

    def step(i, x):
        return x + p["a"] * jr.normal(jr.fold_in(key, i), (3,))

    return jax.lax.fori_loop(0, 50, step, p["b"] * jnp.ones(3))


def heat(p, key):
    """Diffusion on a ring of 128 cells."""

    def step(_, u):
        return u + 0.4 * p["a"] * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))

    start = jnp.exp(-((jnp.arange(128.0) - 64) ** 2) * p["b"] / 50)
    return jax.lax.fori_loop(0, 100, step, start)[::16]


def collatz(p, key):
    """Count the steps that a number takes to 1."""
    start = (p["a"] * 1000 + p["b"] * 100).astype(jnp.int32) + 1
    step = lambda n: jnp.where(n % 2 == 0, n // 2, 3 * n + 1)  # noqa: E731
    return jax.lax.while_loop(
        lambda c: c[0] > 1, lambda c: (step(c[0]), c[1] + 1), (start, 0)
    )[1]


def shuffled(p, step, start):
    """Run up to 1,000 steps, 250 on average; neighbours take different numbers."""
    part = jnp.mod(7919 * p["a"] + 104729 * p["b"], 1)
    trips = (1 + 1000 * part**3).astype(jnp.int32)
    return jax.lax.while_loop(
        lambda c: c[0] < trips, lambda c: (c[0] + 1, *step(*c[1:])), (0, *start)
    )[1:]


def pendulum(p, key):
    step = lambda x, v: (x + 0.01 * v, v - 0.01 * jnp.sin(x))  # noqa: E731
    return shuffled(p, step, (p["a"], p["b"]))


def powers(p, key):
    return shuffled(p, lambda x: ((1 + x) ** p["b"],), (p["a"],))


def adaptive(p, key):
    """Heun's method with steps chosen by an error estimate."""

    def slope(t, x):
        return p["a"] * jnp.cos(10 * t) - 5 * p["b"] * x**3

    def step(c):
        t, x, h = c
        first = slope(t, x)
        second = slope(t + h, x + h * first)
        error = jnp.abs(h / 2 * (second - first)) / 1e-4 + 1e-6
        keep = error < 1
        factor = jnp.clip(0.9 * error**-0.5, 0.2, 5.0)
        x = jnp.where(keep, x + h / 2 * (first + second), x)
        return jnp.where(keep, t + h, t), x, jnp.minimum(h * factor, 0.1)

    start = (jnp.float32(0), p["b"], jnp.float32(0.01))
    return jax.lax.while_loop(lambda c: c[0] < 3, step, start)[1]


def bodies(p, key):
    """Eight bodies in space that attract each other, by leapfrog."""
    start = jnp.sin(jnp.arange(24.0)).reshape(8, 3) * (1 + p["b"])

    def pull(x):
        apart = x[None] - x[:, None]
        return p["a"] * jnp.sum(
            apart / (jnp.sum(apart**2, -1, keepdims=True) + 0.1) ** 1.5, axis=1
        )

    def step(c, _):
        x, v = c
        v = v + 0.01 * pull(x)
        return (x + 0.01 * v, v), None

    return jax.lax.scan(step, (start, jnp.zeros((8, 3))), None, 50)[0][0]


def quadrature(p, key):
    """Integrate by 200 points."""
    x = jnp.linspace(0, 1, 200)
    return jnp.sum(jnp.exp(-p["a"] * x**2) * jnp.cos(20 * p["b"] * x)) / 200


def attention(p, key):
    """Softmax attention over sixteen vectors of eight."""
    x = jnp.sin(jnp.arange(128.0).reshape(16, 8) * p["a"])
    return jax.nn.softmax(x @ x.T / p["b"], axis=-1) @ x


def reactions(p, key):
    """Births and deaths one at a time (Gillespie), until time 5 or 400 events."""

    def step(c):
        t, n, k, events = c
        k, wait, which = jr.split(k, 3)
        birth, death = 5 * (0.1 + p["a"]), p["b"] * n
        t = t + jr.exponential(wait) / (birth + death)
        up = jr.uniform(which) * (birth + death) < birth
        return t, n + jnp.where(up, 1.0, -1.0), k, events + 1

    start = (jnp.float32(0), jnp.float32(5), key, 0)
    return jax.lax.while_loop(lambda c: (c[0] < 5) & (c[3] < 400), step, start)[1]


def kalman(p, key):
    """Filter two states over 100 observations, and return the log likelihood."""
    move = jnp.asarray([[1.0, 0.1], [0.0, 1.0]])
    seen = jnp.sin(0.1 * jnp.arange(100.0))

    def step(c, y):
        mean, cov = move @ c[0], move @ c[1] @ move.T + p["a"] * 0.01 * jnp.eye(2)
        spread = cov[0, 0] + p["b"]
        off = y - mean[0]
        gain = cov[:, 0] / spread
        after = mean + gain * off, cov - gain[:, None] * cov[0][None]
        return after, -0.5 * (off**2 / spread + jnp.log(spread))

    return jnp.sum(jax.lax.scan(step, (jnp.zeros(2), jnp.eye(2)), seen)[1])


POINTS = {
    closed_form: 2**23,
    runge_kutta: 2**17,
    divergent: 2**16,
    euler_maruyama: 2**16,
    solve: 2**14,
    eigen: 2**12,
    fourier: 2**14,
    training: 2**11,
    monte_carlo: 2**13,
    kuramoto: 2**10,
    recurrent: 2**13,
    walk: 2**15,
    heat: 2**13,
    collatz: 2**19,
    pendulum: 2**16,
    powers: 2**16,
    adaptive: 2**16,
    bodies: 2**12,
    quadrature: 2**16,
    attention: 2**14,
    reactions: 2**14,
    kalman: 2**14,
}
"""The number of points to sweep, about."""
