# %% [markdown]
# # Handwritten digits: a first sweep
#
# Which learning rate and weight decay suit a small classifier of 1,797 images? One call
# runs 80 trainings on all cores. As a script, `python examples/digits.py` takes about
# half a minute on two cores.

# %%
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits

import eqx_pipe as ep

ep.use_cpu_devices()  # one JAX device per core; call it before any computation

# %% [markdown]
# ## Data
#
# The training set fits the models, the validation set selects a setting, and the test
# set is used once, at the end.

# %%
digits = load_digits()  # 8 x 8 pixels from 0 to 16
data = {"image": jnp.array(digits.images / 16), "label": jnp.array(digits.target)}
parts = jnp.split(jr.permutation(jr.key(0), 1797), [1077, 1437])
training, validation, test = ({k: x[part] for k, x in data.items()} for part in parts)
print("Images: 1,077 for training, 360 for validation, 360 for testing.")

# %% [markdown]
# ## A pipeline
#
# A pipeline is a chain of functions and Equinox layers, and is itself an Equinox layer.
# The first stage mixes three views of the image. Its three weights are trained together
# with the classifier.


# %%
def blur(image):
    image = jnp.pad(image, 1, mode="edge")
    image = (image[:-2] + image[1:-1] + image[2:]) / 3
    return (image[:, :-2] + image[:, 1:-1] + image[:, 2:]) / 3


def edges(image):
    down, right = jnp.gradient(image)
    return jnp.sqrt(down**2 + right**2 + 1e-6)  # sqrt has no derivative at 0


def make_pipeline(key):
    return ep.chain(
        views=ep.weighted(blur, edges, eqx.nn.Identity()),
        flatten=jnp.ravel,
        classifier=eqx.nn.MLP(64, 10, width_size=64, depth=1, key=key),
    )


make_pipeline(jr.key(0))

# %% [markdown]
# ## One training
#
# The key gives the initial parameters and the order of the images. `loader.scan` runs
# the loop over batches inside the compiled program.

# %%
STEPS = 400  # batches in one training


def loss_of(pipeline, batch):
    scores = jax.vmap(pipeline)(batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"])
    return losses.mean()


def accuracy_of(pipeline, batch):
    scores = jax.vmap(pipeline)(batch["image"])
    return jnp.mean(scores.argmax(axis=-1) == batch["label"])


def train(setting, key):
    pipeline_key, data_key = jr.split(key)
    schedule = optax.cosine_decay_schedule(setting["learning_rate"], STEPS)
    optimizer = optax.adamw(schedule, weight_decay=setting["weight_decay"])
    loader = ep.data.Loader(ep.data.ArraySource(training), batch_size=64)

    def step(carry, batch):
        pipeline, state = carry
        grads = eqx.filter_grad(loss_of)(pipeline, batch)
        params = eqx.filter(pipeline, eqx.is_inexact_array)
        updates, state = optimizer.update(grads, state, params)
        return (eqx.apply_updates(pipeline, updates), state), None

    pipeline = make_pipeline(pipeline_key)
    carry = pipeline, optimizer.init(eqx.filter(pipeline, eqx.is_inexact_array))
    carry, _, _ = loader.scan(step, carry, loader.init(data_key), length=STEPS)
    return carry[0]


# %% [markdown]
# ## The sweep
#
# A space has an axis for each number that varies. `sweep` evaluates the function at
# every combination: it compiles one program, and runs batches of points on all devices.
# `ep.Seeds(4)` repeats each setting with four keys, the same for every setting.


# %%
def evaluate(setting, key):
    return {"accuracy": accuracy_of(train(setting, key), validation)}


space = {
    "learning_rate": ep.Geomspace(1e-3, 1e-1, 5, label="learning rate"),
    "weight_decay": ep.Geomspace(1e-3, 1.0, 4, label="weight decay"),
    "seed": ep.Seeds(4),
}
print(f"Training 5 x 4 settings with 4 seeds each, on {jax.device_count()} device(s):")
result = ep.sweep(evaluate, space, key=jr.key(1), progress=True)

# %% [markdown]
# ## The best setting
#
# The dimensions of the result have names, so the mean over seeds is one call. The
# pipeline is trained once more at the best setting, and tested.

# %%
accuracy = result.to_xarray()["accuracy"].mean("seed")
best = accuracy[accuracy.argmax(["learning_rate", "weight_decay"])]
rate, decay = best["learning_rate"].values, best["weight_decay"].values
setting = {"learning_rate": rate, "weight_decay": decay}
pipeline = eqx.filter_jit(train)(setting, jr.key(2))
test_accuracy = accuracy_of(pipeline, test)
print(f"Best setting: learning rate {rate:.2g}, weight decay {decay:.2g}.")
print(f"Validation accuracy there: {best:.1%} (mean over 4 seeds).")
print(f"Test accuracy there: {test_accuracy:.1%} (trained once more, with a new key).")
assert test_accuracy > 0.95

# %%
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
percent = (100 * accuracy).assign_attrs(long_name="validation accuracy", units="%")
percent.plot(x="learning_rate", xscale="log", yscale="log", ax=axes)
axes.scatter(rate, decay, s=300, marker="*", color="white", edgecolor="black")
title = axes.set_title("Mean over 4 seeds; the star marks the best setting")

# %% [markdown]
# ## Save
#
# To load the result, call `ep.SweepResult.load(path)` or `xarray.open_zarr(path)`; to
# load the pipeline, `eqx.tree_deserialise_leaves(path, make_pipeline(jr.key(0)))`.

# %%
out = Path("digits-out")
result.save(out / "sweep.zarr", overwrite=True)
eqx.tree_serialise_leaves(out / "pipeline.eqx", pipeline)
figure.savefig(out / "accuracy.png", dpi=150)
print(f"Wrote accuracy.png, sweep.zarr and pipeline.eqx to the folder {out}.")
