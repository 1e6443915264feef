# %% [markdown]
# # A network of brain regions
#
# How strongly are brain regions coupled, and how noisy are they? The model has 84
# regions, coupled by an average connectome of the package `tvboptim`; each is a phase
# oscillator (Kuramoto). A sweep over coupling and noise finds the values at which the
# model agrees best with measured correlations between regions.

# %%
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np

import eqx_pipe as ep

ep.use_cpu_devices()  # in a notebook, in the first cell

data = Path(importlib.util.find_spec("tvboptim").origin).parent / "data"
weights = np.load(data / "connectivity/dk_average/data.npz")["weights"]
measured = np.load(data / "functional/dk_average/data.npz")["fc"]
weights = jnp.asarray(np.log1p(weights) / np.log1p(weights).max(), "float32")
regions = len(weights)

# %% [markdown]
# ## The model
#
# The simulation is a `jax.lax.scan` of Euler-Maruyama steps over keys. The sweep gives
# each point its key.

# %%
speeds = 2 * jnp.pi * (10 + jr.normal(jr.key(0), (regions,)))  # around 10 Hz
upper = np.triu_indices(regions, 1)


def simulate(point, key, steps=600, dt=2e-3):
    def step(phase, key):
        sin, cos = jnp.sin(phase), jnp.cos(phase)
        # The sum over j of weights[i, j] * sin(phase[j] - phase[i]).
        pull = point["coupling"] * (cos * (weights @ sin) - sin * (weights @ cos))
        kick = point["noise"] * jnp.sqrt(dt) * jr.normal(key, phase.shape)
        phase = phase + dt * (speeds + pull) + kick
        return phase, phase

    first, rest = jr.split(key)
    start = jr.uniform(first, (regions,), maxval=2 * jnp.pi)
    _, phases = jax.lax.scan(step, start, jr.split(rest, steps))
    phases = phases[steps // 2 :]
    order = jnp.abs(jnp.exp(1j * phases).mean(1)).mean()
    together = jnp.corrcoef(jnp.sin(phases), rowvar=False)
    fit = jnp.corrcoef(together[upper], jnp.asarray(measured, "float32")[upper])[0, 1]
    return {"order": order, "fit": fit}


# %% [markdown]
# ## The sweep
#
# `ep.Seeds(2)` computes each point twice, with different draws. Labels and units appear
# in pictures and files.

# %%
space = {
    "coupling": ep.Geomspace(0.1, 10, 8, label="coupling", unit="1/s"),
    "noise": ep.Linspace(0, 8, 6, label="noise", unit="rad/√s"),
    "seed": ep.Seeds(2),
}
result = ep.sweep(simulate, space, key=jr.key(1))
result

# %%
mean = result.to_xarray().mean("seed")
figure, panels = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
for panel, name in zip(panels, ["order", "fit"], strict=True):
    mean[name].plot(ax=panel, x="coupling", xscale="log")

# %% [markdown]
# The order, on the left, is 1 if all regions swing in phase; it rises with the
# coupling. The fit, on the right, is the correlation between the model's correlations
# and the measured ones. This is the best point:

# %%
order, fit = mean["order"], mean["fit"]
assert order.sel(noise=0).values[-1] > 0.8 > order.sel(noise=0).values[0]
print(fit.where(fit == fit.max(), drop=True).coords)

# %% [markdown]
# The transition to order, with the range over seeds:

# %%
for noise in (0, 8):
    runs = result.to_xarray()["order"].sel(noise=noise)
    plt.plot(runs["coupling"], runs.mean("seed"), label=f"noise {noise}")
    plt.fill_between(runs["coupling"], runs.min("seed"), runs.max("seed"), alpha=0.3)
plt.xscale("log")
plt.xlabel("coupling [1/s]")
plt.ylabel("order")
legend = plt.legend()
