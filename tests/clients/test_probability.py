"""Chains of BlackJAX and NumPyro over seeds; distributions of NumPyro."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import eqx_pipe as ep

DATA = jnp.array([0.3, 1.1, 0.7, 0.2])
SEEDS = jax.random.split(jax.random.key(7), 3)


def log_density(mean, width):
    return jnp.sum(jax.scipy.stats.norm.logpdf(DATA, mean, width)) - mean**2 / 2


def hmc(p):
    """Return the mean of a chain of BlackJAX, and how often it moved."""
    kernel = blackjax.hmc(
        lambda x: log_density(x, p["width"]),
        step_size=0.2,
        inverse_mass_matrix=jnp.ones(1),
        num_integration_steps=5,
    )

    def step(state, key):
        state, info = kernel.step(key, state)
        return state, (state.position, info.is_accepted)

    start = kernel.init(jnp.zeros(()))
    keys = jax.random.split(p["seed"], 50)
    _, (positions, accepted) = jax.lax.scan(step, start, keys)
    return {"mean": jnp.mean(positions), "accepted": jnp.mean(accepted)}


def test_chains_of_blackjax_over_seeds_and_widths():
    space = ep.Space({"width": ep.Values([0.5, 1.0]), "seed": ep.Values(SEEDS)})
    result = ep.sweep(hmc, space)
    alone = [jax.jit(hmc)(space.point(i)) for i in range(space.size)]
    for name in ("mean", "accepted"):
        expected = [float(one[name]) for one in alone]
        np.testing.assert_allclose(result.values[name], expected, rtol=1e-3)
    assert result.to_xarray()["mean"].sizes == {"width": 2, "seed": 3}


def nuts(p):
    """Return the draws of NumPyro's own sampler."""

    def model():
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("seen", dist.Normal(mean, p["width"]), obs=DATA)

    chain = MCMC(NUTS(model), num_warmup=10, num_samples=10, progress_bar=False)
    chain.run(p["seed"])
    return chain.get_samples()["mean"]


@pytest.mark.filterwarnings("ignore:Some donated buffers")  # NumPyro gives its own
def test_chains_of_numpyro_over_seeds():
    space = ep.Space({"width": jnp.asarray(0.5), "seed": ep.Values(SEEDS)})
    draws = ep.sweep(nuts, space).values
    alone = jax.jit(
        jax.vmap(lambda seed: nuts({"width": space.tree["width"], "seed": seed}))
    )
    # A chain is chaotic: what is rounded otherwise shows more from step to step.
    np.testing.assert_allclose(draws, alone(SEEDS), rtol=1e-2)


def test_distributions_as_random_axes():
    tree = {"x": ep.Random(dist.HalfNormal(2.0), 5)}
    drawn = ep.sweep(lambda p: p["x"], ep.Space(tree, key=jax.random.key(0))).values
    assert (drawn > 0).all() and len(set(drawn.tolist())) == 5
