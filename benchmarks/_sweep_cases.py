"""The sweeps by which libraries are compared."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ._models import closed_form, euler_maruyama, runge_kutta
from ._sides import Case


def cheap():
    """Sweep a formula."""
    axes = {"a": (0.01, 1.0, 4096), "b": (0.1, 0.9, 4096)}
    return Case("cheap", lambda p: closed_form(p, None), axes)


def small():
    """Sweep the same formula at a hundred points, for the cost of a call."""
    axes = {"a": (0.01, 1.0, 10), "b": (0.1, 0.9, 10)}
    return cheap()._replace(name="small", axes=axes)


def oscillator():
    """Runge-Kutta, 200 steps."""
    axes = {"a": (0.01, 1.0, 4096), "b": (0.1, 0.9, 1024)}
    return Case("oscillator", lambda p: runge_kutta(p, None), axes)


def divergent():
    """Loops of 1 to 1,000 steps, in the order of the grid."""

    def fn(p):
        return jax.lax.while_loop(
            lambda c: c[0] < p["trips"],
            lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1])),
            (0, p["start"]),
        )[1]

    trips = np.geomspace(1, 1000, 256).astype(np.int32)
    return Case("divergent", fn, {"start": (0.1, 0.9, 8192), "trips": trips})


def noise():
    """Euler-Maruyama, 100 steps: an amplitude and a seed."""

    def fn(p):
        return euler_maruyama({"a": 0.5, "b": p["amplitude"]}, jr.key(p["seed"]))

    axes = {"amplitude": (0.1, 0.9, 4096), "seed": np.arange(128, dtype=np.int32)}
    return Case("noise", fn, axes)


def brain():
    """Simulate 68 brain regions for 500 ms, with noise, by tvboptim's solver."""
    from tvboptim.experimental.network_dynamics import Network, prepare
    from tvboptim.experimental.network_dynamics.coupling import LinearCoupling
    from tvboptim.experimental.network_dynamics.dynamics.tvb import ReducedWongWang
    from tvboptim.experimental.network_dynamics.graph import DenseGraph
    from tvboptim.experimental.network_dynamics.noise import AdditiveNoise
    from tvboptim.experimental.network_dynamics.solvers import Heun

    weights = np.random.default_rng(0).lognormal(0, 1, (68, 68)).astype(np.float32)
    weights /= weights.sum(1, keepdims=True)
    network = Network(
        ReducedWongWang(),
        {"instant": LinearCoupling(incoming_states="S", G=1.0)},
        DenseGraph(jnp.asarray(weights)),
        noise=AdditiveNoise(sigma=0.01, key=jr.key(0)),
    )
    run, config = prepare(network, Heun(), t0=0.0, t1=500.0, dt=1.0)

    def place(leaves):
        state = jax.tree.map(lambda leaf: leaf, config)
        state.coupling.instant.G = leaves["coupling"]
        state.dynamics.w = leaves["weight"]
        return state

    axes = {"coupling": (0.1, 2.0, 64), "weight": (0.3, 0.9, 64)}
    return Case("brain", lambda p: run(p).ys.mean(0), axes, place)


CASES = {
    case.__name__: case for case in (cheap, small, oscillator, divergent, noise, brain)
}
