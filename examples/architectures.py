# %% [markdown]
# # Learning rates and architectures
#
# Which width, activation and learning rate suit a small network? All rates run in one
# program. A width or an activation changes the program, so it is an `ep.Static` axis of
# Python values, with a program for each combination. The result is one labelled array.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import eqx_pipe as ep

ep.use_cpu_devices()  # in a notebook, in the first cell

x, y = load_breast_cancer(return_X_y=True)
x = jnp.asarray(StandardScaler().fit_transform(x), "float32")
y = jnp.asarray(y, "float32")
train, test = (x[:300], y[:300]), (x[300:], y[300:])

# %% [markdown]
# ## A training is a function of a point


# %%
def network(width, activation, key):
    first, second = jr.split(key)
    return ep.chain(
        first=eqx.nn.Linear(30, width, key=first),
        activation=activation,
        second=eqx.nn.Linear(width, "scalar", key=second),
    )


def loss_of(model, data):
    scores = jax.vmap(model)(data[0])
    return optax.sigmoid_binary_cross_entropy(scores, data[1]).mean()


def fit(point, key):
    model = network(point["width"], point["activation"], key)
    optimizer = optax.adam(point["rate"])
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, _):
        params, state = carry
        loss, slope = jax.value_and_grad(
            lambda params: loss_of(eqx.combine(params, rest), train)
        )(params)
        updates, state = optimizer.update(slope, state)
        return (optax.apply_updates(params, updates), state), loss

    carry = params, optimizer.init(params)
    (params, _), losses = jax.lax.scan(step, carry, length=50)
    model = eqx.combine(params, rest)
    right = (jax.vmap(model)(test[0]) > 0) == (test[1] > 0.5)
    return {"losses": losses, "accuracy": right.mean(), "loss": loss_of(model, test)}


# %% [markdown]
# ## The sweep
#
# Two widths and two activations take four programs; each computes three rates with
# three seeds.

# %%
space = ep.Space(
    {
        "width": ep.Static([4, 64]),
        "activation": ep.Static([jnp.tanh, jax.nn.relu]),
        "rate": ep.Geomspace(1e-3, 0.1, 3, label="learning rate"),
        "seed": ep.Seeds(3),
    }
)
result = ep.sweep(fit, space, key=jr.key(0))
result

# %% [markdown]
# The seeds are *common*: seed 1 begins with the same weights at each rate, so the rates
# are compared under the same random numbers.

# %%
data = result.to_xarray()
print(data["accuracy"].mean("seed").to_series().unstack("rate").round(3))

# %%
ax = result.plot("accuracy", x="rate", hue="activation", col="width", sel={"seed": 0})

# %% [markdown]
# ## Loss curves
#
# The losses of all steps are one more dim of the dataset.

# %%
curves = data["losses"].sel(width=64, activation="relu").mean("seed")
lines = curves.plot.line(x="losses.0", yscale="log")

# %%
best = result.best("loss")
assert best.output["accuracy"] > 0.95
best
