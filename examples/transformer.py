# %% [markdown]
# # A transformer on eight devices
#
# How do you train one model on several devices? A small transformer reads digits row by
# row on a mesh of 4 x 2 devices: four split the batch, two the hidden axes of attention
# and feed-forward layers. Eight CPU devices stand in for eight GPUs; the program is the
# same.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import optax
import pandas as pd
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import eqx_pipe as ep

ep.use_cpu_devices(8)
digits = load_digits()
images = jnp.asarray(digits.images, "float32") / 16
labels = jnp.asarray(digits.target)

# %% [markdown]
# ## The model
#
# Pre-norm blocks are residual branches, and four blocks of the same structure are a
# `repeat`: their parameters are stacked and one `scan` runs through them, so the
# program does not grow with the depth. `ep.sharding.constrain` names the axes of an
# intermediate result; without a mesh it does nothing.

# %%
size, hidden = 32, 64


class Attend(ep.Stage):
    attention: eqx.nn.MultiheadAttention

    def __call__(self, x, *, key=None):
        return self.attention(x, x, x)


def block(key):
    attend, up, down = jr.split(key, 3)
    return ep.chain(
        attend=ep.residual(
            ep.chain(
                ep.batched(eqx.nn.LayerNorm(size)),
                Attend(eqx.nn.MultiheadAttention(4, size, key=attend)),
            )
        ),
        feed=ep.residual(
            ep.chain(
                norm=ep.batched(eqx.nn.LayerNorm(size)),
                up=ep.batched(eqx.nn.Linear(size, hidden, key=up)),
                bend=lambda x: ep.sharding.constrain(jax.nn.gelu(x), None, "hidden"),
                down=ep.batched(eqx.nn.Linear(hidden, size, key=down)),
            )
        ),
    )


class Place(ep.Stage):
    offsets: jax.Array

    def __call__(self, x, *, key=None):
        return x + self.offsets


def make(key):
    embed, place, blocks, head = jr.split(key, 4)
    return ep.chain(
        embed=ep.batched(eqx.nn.Linear(8, size, key=embed)),
        place=Place(0.1 * jr.normal(place, (8, size))),
        blocks=ep.repeat(block, 4, key=blocks),
        mean=lambda x: x.mean(0),
        head=eqx.nn.Linear(size, 10, key=head),
    )


# %% [markdown]
# ## Shard the parameters
#
# `names` gives the axes of the weights names, by patterns of their paths; the first
# axis is the block. The rules map these names to mesh axes. `init_sharded` initialises
# each part on its own device.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
rules = ep.sharding.AxisRules({"batch": "data", "hidden": "model"})
names = {
    "blocks.**.[qkv]*_proj.weight": P(None, "hidden", None),
    "blocks.**.output_proj.weight": P(None, None, "hidden"),
    "blocks.**.up.stage.weight": P(None, "hidden", None),
    "blocks.**.down.stage.weight": P(None, None, "hidden"),
}
model = ep.sharding.init_sharded(make, jr.key(0), mesh, names, rules)
ep.summary(model, images[0])

# %%
rows = [
    (jax.tree_util.keystr(path, simple=True, separator="."), x.shape, x.sharding.spec)
    for path, x in jax.tree.leaves_with_path(eqx.filter(model, eqx.is_array))
]
pd.DataFrame(rows, columns=["path", "shape", "spec"])

# %% [markdown]
# ## Training
#
# The loader places its batches on the mesh. The step is the same as for one device.

# %%
source = ep.data.ArraySource({"image": images[:1500], "label": labels[:1500]})
split = jax.NamedSharding(mesh, P("data"))
loader = ep.data.Loader(source, batch_size=60, sharding=split)
optimizer = optax.adam(5e-3)


def loss_of(model, batch):
    scores = jax.vmap(model)(batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"])
    return losses.mean()


def step(carry, batch):
    model, state = carry
    loss, slope = eqx.filter_value_and_grad(loss_of)(model, batch)
    updates, state = optimizer.update(slope, state)
    return (eqx.apply_updates(model, updates), state), loss


carry = model, optimizer.init(eqx.filter(model, eqx.is_array))
with rules.on(mesh):
    (model, _), losses, _ = loader.scan(step, carry, loader.init(jr.key(1)), length=80)

# %%
lines = plt.plot(losses)
plt.xlabel("step")
label = plt.ylabel("loss")

# %%
scores = eqx.filter_jit(ep.batched(model))(images[1500:])
accuracy = (scores.argmax(1) == labels[1500:]).mean()
assert accuracy > 0.75
print(f"accuracy on held-out digits: {accuracy:.1%}")
