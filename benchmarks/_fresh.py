"""Functions that no rule and no order of sizes was chosen with: of a point and a key.

The first two are written out, the others mostly code of other packages. `a` goes from
0.01 to 1, `b` from 0.1 to 0.9.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optimistix as optx


def separation(p, key):
    """Two liquids that part on 16 x 16 cells (Cahn-Hilliard), by Fourier transforms."""
    waves = jnp.fft.fftfreq(16, 1 / 16)
    square = (waves[:, None] ** 2 + waves[None, :] ** 2) * 0.2

    def step(_, hat):
        u = jnp.fft.ifft2(hat).real
        bend = square * jnp.fft.fft2(u**3 - u)
        return (hat - 0.01 * bend) / (1 + 0.01 * (0.1 + p["a"]) * square**2)

    start = p["b"] * jr.normal(key, (16, 16))
    return jnp.var(jnp.fft.ifft2(jax.lax.fori_loop(0, 30, step, jnp.fft.fft2(start))))


def particles(p, key):
    """A particle filter: 64 particles, drawn anew at each of 30 readings."""
    seen = jnp.sin(0.3 * jnp.arange(30.0))

    def step(x, given):
        key, y = given
        move, draw = jr.split(key)
        x = x + p["a"] * jr.normal(move, (64,))
        weights = jax.nn.softmax(-0.5 * ((y - x) / p["b"]) ** 2)
        places = (jnp.arange(64) + jr.uniform(draw)) / 64
        chosen = jnp.searchsorted(jnp.cumsum(weights), places)
        return x[jnp.clip(chosen, 0, 63)], jnp.sum(weights * x)

    return jax.lax.scan(step, jnp.zeros(64), (jr.split(key, 30), seen))[1][-1]


def gated_unit(p, key):
    """A recurrent unit of Equinox of 24 numbers, over 60 times."""
    cell = eqx.nn.GRUCell(2, 24, key=jr.key(0))

    def step(h, t):
        return cell(jnp.stack([p["a"] * jnp.sin(t), p["b"]]), h), None

    return jax.lax.scan(step, jnp.zeros(24), 0.1 * jnp.arange(60.0))[0][:4]


def brusselator(p, key):
    """Two reactants on a ring of 16 cells, by an explicit solver of diffrax."""
    place = 2 * jnp.pi * jnp.arange(16) / 16

    def slope(t, y, args):
        u, v = y
        near = jnp.roll(y, 1, 1) - 2 * y + jnp.roll(y, -1, 1)
        turn = u**2 * v - (1 + 3 * p["b"]) * u
        return jnp.stack([1 + turn, 3 * p["b"] * u - u**2 * v]) + p["a"] * near

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Bosh3(),
        0.0,
        5.0,
        0.01,
        jnp.stack([1 + 0.1 * jnp.sin(place), jnp.full(16, 3 * p["b"])]),
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
    )
    return jax.tree.leaves(solution.ys)[0][0, 0, ::4]


def kepler(p, key):
    """Kepler's equation at 20 times, by bisection of optimistix."""
    times = jnp.linspace(0.1, 3, 20)

    def angle(time):
        off = lambda e, _: e - 0.9 * p["b"] * jnp.sin(e) - time - p["a"]  # noqa: E731
        solver = optx.Bisection(rtol=1e-5, atol=1e-5)
        bounds = {"lower": 0.0, "upper": 7.0}
        return optx.root_find(off, solver, time, options=bounds, throw=False).value

    return jax.vmap(angle)(times)[::5]


POINTS = {
    separation: 2**13,
    particles: 2**12,
    gated_unit: 2**13,
    brusselator: 2**12,
    kepler: 2**15,
}
"""How many points of each to sweep, about."""
