"""The models of docs/models.md in plain Equinox, as one writes them without us.

Each draws its parameters from the same keys as the model of its name on the page, so
that both compute the same. `python -m benchmarks compose_models` counts the lines.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn


class TransformerBlock(eqx.Module):
    norm: nn.LayerNorm
    attend: nn.MultiheadAttention
    mlp_norm: nn.LayerNorm
    mlp: nn.MLP

    def __init__(self, key):
        attend, mlp = jr.split(key)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(2, 8, key=attend)
        self.mlp_norm = nn.LayerNorm(8)
        self.mlp = nn.MLP(8, 8, 16, 1, key=mlp)

    def __call__(self, inputs):
        x, mask = inputs["x"], inputs["mask"]
        h = jax.vmap(self.norm)(x)
        x = x + self.attend(h, h, h, mask)
        return x + jax.vmap(lambda v: self.mlp(self.mlp_norm(v)))(x)


def blocks(make, n, key):
    return [make(jr.fold_in(key, i)) for i in range(n)]


class VisionTransformer(eqx.Module):
    patches: nn.Conv2d
    token: jax.Array
    places: jax.Array
    blocks: list
    norm: nn.LayerNorm
    head: nn.Linear

    def __init__(self, key):
        patches, token, places, layers, head = jr.split(key, 5)
        self.patches = nn.Conv2d(1, 8, 4, 4, key=patches)
        self.token = jr.normal(token, (1, 8))
        self.places = jr.normal(places, (5, 8))
        self.blocks = blocks(TransformerBlock, 2, layers)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, key=head)

    def __call__(self, image):
        x = self.patches(image)
        x = x.reshape(8, -1).T
        x = jnp.concatenate([self.token, x]) + self.places
        for block in self.blocks:
            x = block({"x": x, "mask": None})
        return self.head(self.norm(x[0]))


class Bert(eqx.Module):
    shared: nn.Shared
    segments: nn.Embedding
    norm: nn.LayerNorm
    blocks: list

    def __init__(self, key):
        words, segments, layers, head = jr.split(key, 4)
        embedding = nn.Embedding(20, 8, key=words)
        linear = nn.Linear(8, 20, key=head)
        self.shared = nn.Shared(
            (embedding, linear),
            lambda pair: pair[1].weight,
            lambda pair: pair[0].weight,
        )
        self.segments = nn.Embedding(2, 8, key=segments)
        self.norm = nn.LayerNorm(8)
        self.blocks = blocks(TransformerBlock, 2, layers)

    def __call__(self, inputs):
        embedding, linear = self.shared()
        x = jax.vmap(embedding)(inputs["tokens"])
        x = x + jax.vmap(self.segments)(inputs["kinds"])
        x = jax.vmap(self.norm)(x)
        for block in self.blocks:
            x = block({"x": x, "mask": inputs["mask"]})
        return jax.vmap(linear)(x)


class UNet(eqx.Module):
    into: nn.Conv2d
    time: nn.MLP
    down: nn.Conv2d
    middle: nn.Conv2d
    up: nn.ConvTranspose2d
    out: nn.Conv2d

    def __init__(self, key):
        into, time, down, middle, up, out = jr.split(key, 6)
        self.into = nn.Conv2d(1, 4, 3, padding=1, key=into)
        self.time = nn.MLP("scalar", 8, 8, 1, jax.nn.silu, key=time)
        self.down = nn.Conv2d(4, 8, 3, 2, 1, key=down)
        self.middle = nn.Conv2d(8, 8, 3, padding=1, key=middle)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2, key=up)
        self.out = nn.Conv2d(8, 1, 3, padding=1, key=out)

    def __call__(self, inputs):
        time = self.time(inputs["t"])
        begin = self.into(inputs["x"])
        x = jax.nn.silu(self.down(begin))
        x = x + time[:, None, None]
        x = jax.nn.silu(self.middle(x))
        x = jnp.concatenate([begin, self.up(x)])
        return self.out(x)


class MixerBlock(eqx.Module):
    patch: nn.MLP
    hidden: nn.MLP
    patch_norm: nn.LayerNorm
    hidden_norm: nn.LayerNorm

    def __init__(self, key):
        patch, hidden = jr.split(key)
        self.patch = nn.MLP(4, 4, 8, 1, key=patch)
        self.hidden = nn.MLP(8, 8, 8, 1, key=hidden)
        self.patch_norm = nn.LayerNorm((8, 4))
        self.hidden_norm = nn.LayerNorm((8, 4))

    def __call__(self, y):
        y = y + jax.vmap(self.patch)(self.patch_norm(y))
        return y + jax.vmap(self.hidden, in_axes=1, out_axes=1)(self.hidden_norm(y))


class Mixer(eqx.Module):
    into: nn.Conv2d
    blocks: list
    norm: nn.LayerNorm
    out: nn.ConvTranspose2d

    def __init__(self, key):
        into, layers, out = jr.split(key, 3)
        self.into = nn.Conv2d(2, 8, 2, 2, key=into)
        self.blocks = blocks(MixerBlock, 3, layers)
        self.norm = nn.LayerNorm((8, 4))
        self.out = nn.ConvTranspose2d(8, 1, 2, 2, key=out)

    def __call__(self, inputs):
        y = jnp.concatenate([inputs["y"], jnp.full((1, 4, 4), inputs["t"])])
        y = self.into(y).reshape(8, 4)
        for block in self.blocks:
            y = block(y)
        return self.out(self.norm(y).reshape(8, 2, 2))


class GRUClassifier(eqx.Module):
    ahead: nn.GRUCell
    back: nn.GRUCell
    head: nn.Linear

    def __init__(self, key):
        ahead, back, head = jr.split(key, 3)
        self.ahead = nn.GRUCell(3, 4, key=ahead)
        self.back = nn.GRUCell(3, 4, key=back)
        self.head = nn.Linear(8, 1, key=head)

    def __call__(self, xs):
        def last(cell, reverse):
            def step(hidden, x):
                return cell(x, hidden), None

            return jax.lax.scan(step, jnp.zeros(4), xs, reverse=reverse)[0]

        both = jnp.concatenate([last(self.ahead, False), last(self.back, True)])
        return jax.nn.sigmoid(self.head(both))


class MLPEnsemble(eqx.Module):
    models: nn.MLP

    def __init__(self, key):
        keys = jnp.stack([jr.fold_in(key, i) for i in range(4)])
        self.models = eqx.filter_vmap(lambda key: nn.MLP(3, 2, 8, 1, key=key))(keys)

    def __call__(self, x):
        def one(model, x):
            return model(x)

        each = eqx.filter_vmap(one, in_axes=(eqx.if_array(0), None))
        return jnp.mean(each(self.models, x), axis=0)


class DCGAN(eqx.Module):
    up: nn.ConvTranspose2d
    up_norm: nn.BatchNorm
    to_image: nn.ConvTranspose2d
    down: nn.Conv2d
    down_norm: nn.BatchNorm
    to_number: nn.Conv2d

    def __init__(self, key):
        a, b, c, d = jr.split(key, 4)
        self.up = nn.ConvTranspose2d(5, 4, 4, key=a)
        self.up_norm = nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.to_image = nn.ConvTranspose2d(4, 1, 4, 2, padding=1, key=b)
        self.down = nn.Conv2d(1, 4, 4, 2, 1, key=c)
        self.down_norm = nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.to_number = nn.Conv2d(4, 1, 4, key=d)

    def generate(self, z, state):
        x, state = self.up_norm(self.up(z[:, None, None]), state)
        return jnp.tanh(self.to_image(jax.nn.relu(x))), state

    def judge(self, x, state):
        x, state = self.down_norm(self.down(x), state)
        return jnp.ravel(self.to_number(jax.nn.leaky_relu(x, 0.2))), state

    def __call__(self, zs, state):
        def one(z, state):
            x, state = self.generate(z, state)
            return self.judge(x, state)

        over = jax.vmap(one, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return over(zs, state)


def noise(*shape):
    return jr.normal(jr.key(3), shape)


class FineTuned(eqx.Module):
    body: nn.Linear
    head: nn.Linear

    def __init__(self, key):
        body, _, new = jr.split(key, 3)
        self.body = nn.Linear(3, 8, key=body)
        self.head = nn.Linear(8, 2, key=new)

    def __call__(self, x):
        arrays, rest = eqx.partition(self.body, eqx.is_array)
        body = eqx.combine(jax.lax.stop_gradient(arrays), rest)
        return self.head(jnp.tanh(body(x)))


class MixtureOfExperts(eqx.Module):
    """All experts on all tokens, and what was not chosen counts nothing."""

    gate: nn.Linear
    experts: list

    def __init__(self, key):
        gate, *keys = jr.split(key, 5)
        self.gate = nn.Linear(4, 4, key=gate)
        self.experts = [nn.MLP(4, 4, 8, 1, key=k) for k in keys]

    def __call__(self, x):
        share = jax.nn.softmax(jax.vmap(self.gate)(x))
        second = jnp.sort(share)[:, -2:-1]
        chosen = share >= second
        kept = chosen & (jnp.cumsum(chosen, axis=0) <= 3)
        y = jnp.zeros_like(x)
        for i, expert in enumerate(self.experts):
            weight = jnp.where(kept[:, i], share[:, i], 0)
            y = y + weight[:, None] * jax.vmap(expert)(x)
        return y


# By the name of the function on the page: the plain one, and an input.
MODELS = {
    "transformer_block": (
        TransformerBlock,
        lambda: {"x": noise(5, 8), "mask": jnp.tri(5, dtype=bool)},
    ),
    "vision_transformer": (VisionTransformer, lambda: noise(1, 8, 8)),
    "bert": (
        Bert,
        lambda: {
            "tokens": jnp.array([3, 7, 7, 0, 19]),
            "kinds": jnp.array([0, 0, 1, 1, 1]),
            "mask": jnp.tri(5, dtype=bool),
        },
    ),
    "unet": (UNet, lambda: {"x": noise(1, 4, 4), "t": jnp.float32(0.3)}),
    "nested_unet": (UNet, lambda: {"x": noise(1, 4, 4), "t": jnp.float32(0.3)}),
    "mixer": (Mixer, lambda: {"y": noise(1, 4, 4), "t": jnp.float32(0.3)}),
    "gru_classifier": (GRUClassifier, lambda: noise(7, 3)),
    "mlp_ensemble": (MLPEnsemble, lambda: noise(3)),
    "fine_tuned": (FineTuned, lambda: noise(3)),
    "mixture_of_experts": (MixtureOfExperts, lambda: noise(6, 4)),
}

# Those with state: a call also gives the updated one.
STATEFUL = {"dcgan": (DCGAN, lambda: noise(6, 5))}
