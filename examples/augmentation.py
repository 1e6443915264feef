# %% [markdown]
# # An augmentation that learns
#
# How strongly should augmentation turn, stretch or shift a digit? Here these strengths
# are parameters of the pipeline, learned by gradient descent: the loss on held-out
# digits is differentiated *through the training and through the data*.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

import eqx_pipe as ep

digits = load_digits()
images = jnp.asarray(digits.images, "float32") / 16
labels = jnp.asarray(digits.target)
few = ep.data.ArraySource({"image": images[:200], "label": labels[:200]})
held_out = {"image": images[200:700], "label": labels[200:700]}

# %% [markdown]
# ## A stage that draws
#
# The stage reads an image at randomly moved coordinates. Each of three movements is a
# normal draw times a width, which is a parameter. The product and the interpolation
# between pixels are differentiable, so the width has a gradient.


# %%
class Move(ep.Stage):
    log_width: jax.Array  # of shift [pixels], turn [radians], stretch

    def __call__(self, image, *, key):
        shift, turn, stretch = jr.normal(key, (3,)) * jnp.exp(self.log_width)
        rows, columns = jnp.mgrid[:8, :8] - 3.5
        cos, sin = jnp.cos(turn), jnp.sin(turn)
        rows, columns = cos * rows - sin * columns, sin * rows + cos * columns
        places = jnp.stack([rows, columns]) * jnp.exp(stretch) + 3.5 + shift
        return jax.scipy.ndimage.map_coordinates(image, places, 1)


widths = ("shift", "turn", "stretch")
start = Move(jnp.log(jnp.array([0.1, 0.1, 0.1])))

# %%
wide = Move(jnp.log(jnp.array([0.7, 0.4, 0.2])))
figure, panels = plt.subplots(2, 8, figsize=(8, 2.2))
for row, stage in zip(panels, [start, wide], strict=True):
    moved = eqx.filter_jit(ep.batched(stage))(images[:8], key=jr.key(0))
    for panel, image in zip(row, np.asarray(moved), strict=True):
        panel.imshow(image, cmap="gray_r")
        panel.axis("off")

# %% [markdown]
# Above are the initial widths, below larger ones.
#
# ## A short training, and its derivative
#
# `loader.scan` is the training: a pure function of the model and the stage. So the loss
# after forty steps has a gradient with respect to the widths.


# %%
def loss_of(model, image, label):
    scores = jax.vmap(model)(image.reshape(-1, 64))
    return optax.softmax_cross_entropy_with_integer_labels(scores, label).mean()


def after_training(move, key):
    loader = ep.data.Loader(few, ep.at("image", move), batch_size=25)
    inner = optax.sgd(0.3, momentum=0.9)

    def step(carry, batch):
        model, state = carry
        slope = jax.grad(loss_of)(model, batch["image"], batch["label"])
        updates, state = inner.update(slope, state)
        return (optax.apply_updates(model, updates), state), None

    model = eqx.nn.Linear(64, 10, key=jr.key(1))
    carry = model, inner.init(model)
    (model, _), _, _ = loader.scan(step, carry, loader.init(key), length=40)
    return loss_of(model, held_out["image"], held_out["label"])


# %% [markdown]
# Each step of the outer loop uses the same draws, so that its losses can be compared.

# %%
outer = optax.adam(0.1)


@eqx.filter_jit
def improve(move, state, key):
    loss, slope = eqx.filter_value_and_grad(after_training)(move, key)
    updates, state = outer.update(slope, state)
    return eqx.apply_updates(move, updates), state, loss


move, state = start, outer.init(start)
losses, path = [], []
for _ in range(15):
    path.append(jnp.exp(move.log_width))
    move, state, loss = improve(move, state, jr.key(2))
    losses.append(loss)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(losses)
left.set(xlabel="step of the outer loop", ylabel="loss on held-out digits")
right.plot(jnp.stack(path), label=widths)
right.set(xlabel="step of the outer loop", ylabel="width")
right.legend()

assert sum(losses[-5:]) < sum(losses[:5])
{name: round(float(x), 2) for name, x in zip(widths, path[-1], strict=True)}

# %% [markdown]
# The learned stage turns one digit into these images:

# %%
figure, panels = plt.subplots(1, 8, figsize=(8, 1.2))
four = jnp.broadcast_to(images[4], (8, 8, 8))
moved = eqx.filter_jit(ep.batched(move))(four, key=jr.key(0))
for panel, image in zip(panels, np.asarray(moved), strict=True):
    panel.imshow(image, cmap="gray_r")
    panel.axis("off")
