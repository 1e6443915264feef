"""Functions that no rule and no list of sizes was chosen with: of a point and a key.

The first six are written out, the others mostly code of other packages. `a` goes from
0.01 to 1, `b` from 0.1 to 0.9.
"""

import blackjax
import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import optax
import optimistix as optx
from numpyro.infer.util import log_density


def escape(p, key):
    """How many steps a point of the plane takes to leave the Mandelbrot set."""
    c = jax.lax.complex(2.5 * p["a"] - 2, 1.5 * p["b"])
    return jax.lax.while_loop(
        lambda s: (s[0] < 300) & (jnp.abs(s[1]) < 2),
        lambda s: (s[0] + 1, s[1] ** 2 + c),
        (0, jnp.zeros_like(c)),
    )[0]


def excitable(p, key):
    """A ring of 32 FitzHugh-Nagumo cells, by Euler's method."""

    def step(_, s):
        v, w = s
        near = jnp.roll(v, 1) - 2 * v + jnp.roll(v, -1)
        dv = v - v**3 / 3 - w + p["a"] + near
        return v + 0.05 * dv, w + 0.05 * 0.08 * (v + 0.7 - p["b"] * w)

    start = jnp.cos(jnp.arange(32.0)), jnp.zeros(32)
    return jax.lax.fori_loop(0, 300, step, start)[0][::8]


def ising(p, key):
    """Magnets on a square of 12 x 12, each in its turn by Metropolis' rule."""
    black = (jnp.indices((12, 12)).sum(0) % 2).astype(bool)

    def half(spins, key, turn):
        near = sum(jnp.roll(spins, k, axis) for k in (-1, 1) for axis in (0, 1))
        accept = jr.uniform(key, (12, 12)) < jnp.exp(-2 * spins * near * p["a"])
        return jnp.where(turn & accept, -spins, spins)

    def step(spins, key):
        one, two = jr.split(key)
        return half(half(spins, one, black), two, ~black), None

    start = jnp.where(jr.uniform(key, (12, 12)) < p["b"], 1.0, -1.0)
    return jax.lax.scan(step, start, jr.split(key, 40))[0].mean()


def spectral(p, key):
    """Burgers' equation on 64 points, slopes by Fourier transforms."""
    waves = 1j * jnp.fft.rfftfreq(64, 1 / 64)

    def step(_, u):
        hat = jnp.fft.rfft(u)
        slope = jnp.fft.irfft(waves * hat, 64)
        bend = jnp.fft.irfft(waves**2 * hat, 64)
        return u + 1e-3 * (0.2 * p["a"] * bend - u * slope)

    x = jnp.linspace(0, 2 * jnp.pi, 64, endpoint=False)
    return jax.lax.fori_loop(0, 50, step, p["b"] * jnp.sin(x))[::16]


def bootstrap(p, key):
    """The scatter of a quantile over 20 resamplings of 100 numbers."""
    data = jnp.sin(jnp.arange(100.0)) * p["a"]
    drawn = jr.choice(key, data, (20, 100))
    return jnp.std(jnp.quantile(drawn, p["b"], axis=1))


def kalman(p, key):
    """A Kalman filter of four states and two readings over 60 times."""
    move = jnp.eye(4) + 0.1 * jnp.eye(4, k=2)
    look = jnp.eye(2, 4)
    noise, blur = 0.01 * p["a"] * jnp.eye(4), p["b"] * jnp.eye(2)

    def step(carry, seen):
        mean, cov = carry
        mean, cov = move @ mean, move @ cov @ move.T + noise
        gain = jnp.linalg.solve(look @ cov @ look.T + blur, look @ cov).T
        mean = mean + gain @ (seen - look @ mean)
        return (mean, cov - gain @ look @ cov), None

    seen = jnp.stack([jnp.sin(jnp.arange(60) / 5), jnp.cos(jnp.arange(60) / 7)], 1)
    return jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), seen)[0][0]


def hamiltonian(p, key):
    """Ten draws of blackjax's Hamiltonian Monte Carlo from a bent density."""

    def log_prob(x):
        return (
            -0.5 * (x[0] / 2) ** 2 - 0.5 * ((x[1] - p["a"] * x[0] ** 2) / p["b"]) ** 2
        )

    kernel = blackjax.hmc(log_prob, 0.1, jnp.ones(2), 10)
    step = lambda state, key: (kernel.step(key, state)[0], None)  # noqa: E731
    return jax.lax.scan(step, kernel.init(jnp.ones(2)), jr.split(key, 10))[0].position


def schools(p, key):
    """Twenty steps up the log density of eight schools, as numpyro traces it."""
    effects = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def model():
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        scale = numpyro.sample("scale", dist.HalfCauchy(5 * p["b"]))
        with numpyro.plate("schools", 8):
            school = numpyro.sample("school", dist.Normal(mean, scale))
            numpyro.sample("effect", dist.Normal(school, errors), obs=effects)

    slope = jax.grad(lambda values: log_density(model, (), {}, values)[0])

    def step(_, values):
        return jax.tree.map(lambda x, d: x + 0.1 * p["a"] * d, values, slope(values))

    start = {"mean": jnp.float32(0), "scale": jnp.float32(5), "school": jnp.zeros(8)}
    return jax.lax.fori_loop(0, 20, step, start)["mean"]


def stiff(p, key):
    """Van der Pol's oscillator by an implicit solver of diffrax."""
    slope = lambda t, y, mu: jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])  # noqa: E731
    return diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Kvaerno5(),
        0.0,
        5.0,
        0.01,
        jnp.stack([1 + p["b"], jnp.zeros_like(p["b"])]),
        args=0.5 + 20 * p["a"],
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
    ).ys[0]


def orbit(p, key):
    """Forty places on an orbit, dense output of diffrax's eighth-order solver."""

    def slope(t, y, args):
        return jnp.concatenate([y[2:], -y[:2] / jnp.sum(y[:2] ** 2) ** 1.5])

    return diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Dopri8(),
        0.0,
        6.0,
        0.05,
        jnp.stack([0.5 + p["b"], 0.0 * p["a"], 0.0 * p["a"], 0.6 + 0.5 * p["a"]]),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 6.0, 40)),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    ).ys


def decay(p, key):
    """A sum of two exponentials fitted to 30 readings, by optimistix."""
    t = jnp.linspace(0, 3, 30)
    seen = jnp.exp(-p["a"] * t) + p["b"] * jnp.exp(-4 * t)
    residual = lambda y, _: y[0] * jnp.exp(-y[1] * t) + y[2] * jnp.exp(-y[3] * t) - seen  # noqa: E731
    solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
    start = jnp.array([0.7, 0.2, 0.7, 2.0])
    return optx.least_squares(residual, solver, start, max_steps=50, throw=False).value


def logistic(p, key):
    """Logistic regression of 40 points on 5 numbers: ten steps of optax's L-BFGS."""
    x = jr.normal(jr.key(1), (40, 5))
    y = jr.uniform(key, (40,)) < jax.nn.sigmoid(3 * p["b"] * x[:, 0])

    def loss(w):
        return jnp.mean(optax.sigmoid_binary_cross_entropy(x @ w, y)) + p["a"] * w @ w

    optimizer = optax.lbfgs(memory_size=4)

    def step(carry, _):
        w, state = carry
        value, slope = optax.value_and_grad_from_state(loss)(w, state=state)
        updates, state = optimizer.update(
            slope, state, w, value=value, grad=slope, value_fn=loss
        )
        return (optax.apply_updates(w, updates), state), value

    start = jnp.zeros(5)
    return jax.lax.scan(step, (start, optimizer.init(start)), length=10)[0][0]


POINTS = {
    escape: 2**20,
    excitable: 2**16,
    ising: 2**11,
    spectral: 2**16,
    bootstrap: 2**13,
    kalman: 2**14,
    hamiltonian: 2**18,
    schools: 2**19,
    stiff: 2**11,
    orbit: 2**13,
    decay: 2**14,
    logistic: 2**13,
}
"""How many points of each to sweep, about."""
