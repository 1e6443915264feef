"""Models of the examples of Equinox and diffrax, written anew with `eqx_pipe`.

Each draws its parameters from the same keys as the published one, takes the same
settings, and computes the same. Dropout is as in inference where the published model is
asked for that.
"""

import diffrax
import einops
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn

import eqx_pipe as ep


def mnist_cnn(key):
    a, b, c, d = jr.split(key, 4)
    return ep.chain(
        nn.Conv2d(1, 3, kernel_size=4, key=a),
        nn.MaxPool2d(kernel_size=2),
        jax.nn.relu,
        jnp.ravel,
        nn.Linear(1728, 512, key=b),
        jax.nn.sigmoid,
        nn.Linear(512, 64, key=c),
        jax.nn.relu,
        nn.Linear(64, 10, key=d),
        jax.nn.log_softmax,
    )


def generator(input_shape, output_shape, key):
    (_, width, channels), keys = output_shape, jr.split(key, 5)

    def block(before, after, stride, key):
        layer = nn.ConvTranspose2d(
            before, after, 4, stride, padding=int(stride > 1), use_bias=False, key=key
        )
        return ep.chain(layer, nn.BatchNorm(after, "batch"), jax.nn.relu)

    return ep.chain(
        block(input_shape, width * 8, 1, keys[0]),
        block(width * 8, width * 4, 2, keys[1]),
        block(width * 4, width * 2, 2, keys[2]),
        block(width * 2, width, 2, keys[3]),
        nn.ConvTranspose2d(
            width, channels, 4, 2, padding=1, use_bias=False, key=keys[4]
        ),
        jax.nn.tanh,
    )


def discriminator(input_shape, key):
    (_, width, channels), keys = input_shape, jr.split(key, 5)

    def conv(before, after, key, stride=2):
        padding = int(stride > 1)
        return nn.Conv2d(before, after, 4, stride, padding, use_bias=False, key=key)

    def block(size, key):
        norm = nn.BatchNorm(2 * size, "batch")
        return ep.chain(conv(size, 2 * size, key), norm, nn.PReLU(0.2))

    return ep.chain(
        conv(channels, width, keys[0]),
        nn.PReLU(0.2),
        block(width, keys[1]),
        block(width * 2, keys[2]),
        block(width * 4, keys[3]),
        conv(width * 8, 1, keys[4], stride=1),
    )


class Places(ep.Stage):
    token: jax.Array
    table: jax.Array

    def __call__(self, x, *, key=None):
        x = jnp.concatenate([self.token, x])
        return x + self.table[: x.shape[0]]


def vision_block(size, hidden, heads, rate, key):
    a, b, c = jr.split(key, 3)
    attend = nn.MultiheadAttention(heads, size, key=a)
    return ep.chain(
        ep.residual(
            ep.batched(nn.LayerNorm(size)),
            ep.graph({"attend": attend}, {"attend": ["input"] * 3}, "attend"),
        ),
        ep.residual(
            ep.batched(ep.chain(nn.LayerNorm(size), nn.Linear(size, hidden, key=b))),
            jax.nn.gelu,
            nn.Dropout(rate),
            ep.batched(nn.Linear(hidden, size, key=c)),
            nn.Dropout(rate),
        ),
    )


def vision_transformer(
    embedding_dim,
    hidden_dim,
    num_heads,
    num_layers,
    dropout_rate,
    patch_size,
    num_patches,
    num_classes,
    channels,
    key,
):
    a, b, c, d, e = jr.split(key, 5)
    cut = {"ph": patch_size, "pw": patch_size}
    block = vision_block(embedding_dim, hidden_dim, num_heads, dropout_rate, d)
    return ep.chain(
        patches=lambda x: einops.rearrange(
            x, "c (h ph) (w pw) -> (h w) (c ph pw)", **cut
        ),
        embed=ep.batched(nn.Linear(patch_size**2 * channels, embedding_dim, key=a)),
        places=Places(
            jr.normal(c, (1, embedding_dim)),
            jr.normal(b, (num_patches + 1, embedding_dim)),
        ),
        drop=nn.Dropout(dropout_rate),
        blocks=ep.repeat([block] * num_layers),
        token=lambda x: x[0],
        norm=nn.LayerNorm(embedding_dim),
        head=nn.Linear(embedding_dim, num_classes, key=e),
    )


def bert_layer(config, key):
    a, mlp = jr.split(key)
    b, c = jr.split(mlp)
    size, hidden = config["hidden_size"], config["intermediate_size"]
    drop = nn.Dropout(config["hidden_dropout_prob"])
    norm = ep.feed(ep.batched(nn.LayerNorm(size)), "x")
    attend = nn.MultiheadAttention(
        config["num_attention_heads"],
        size,
        use_query_bias=True,
        use_key_bias=True,
        use_value_bias=True,
        use_output_bias=True,
        dropout_p=config["attention_probs_dropout_prob"],
        key=a,
    )
    mlp = ep.chain(
        nn.Linear(size, hidden, key=b), jax.nn.gelu, nn.Linear(hidden, size, key=c)
    )
    return ep.chain(
        attend=ep.residual(
            ep.feed(attend, "x", "x", "x", "mask"), ep.feed(drop, "x"), over="x"
        ),
        attend_norm=norm,
        mlp=ep.residual(ep.feed(ep.batched(ep.chain(mlp, drop)), "x"), over="x"),
        norm=norm,
        over="x",
    )


def bert(config, num_classes, key):
    encoder, head = jr.split(key)
    embed, layers, pool = jr.split(encoder, 3)
    a, b, c = jr.split(embed, 3)
    size, drop = config["hidden_size"], nn.Dropout(config["hidden_dropout_prob"])
    keys = jr.split(layers, config["num_hidden_layers"])

    def table(rows, key):
        return ep.batched(nn.Embedding(config[rows], size, key=key))

    return ep.graph(
        nodes={
            "mask": lambda ids: jnp.outer(ids != 0, ids != 0),
            "tokens": table("vocab_size", a),
            "segments": table("type_vocab_size", b),
            "places": ep.chain(
                lambda ids: jnp.arange(ids.shape[0]),
                table("max_position_embeddings", c),
            ),
            "sum": lambda tokens, segments, places: tokens + segments + places,
            "embed": ep.chain(ep.batched(nn.LayerNorm(size)), drop),
            "layers": ep.repeat([bert_layer(config, k) for k in keys], over="x"),
            "pool": ep.chain(
                lambda x: x[0], nn.Linear(size, size, key=pool), jnp.tanh, drop
            ),
            "head": nn.Linear(size, num_classes, key=head),
        },
        edges={
            "mask": "token_ids",
            "tokens": "token_ids",
            "segments": "segment_ids",
            "places": "token_ids",
            "sum": ["tokens", "segments", "places"],
            "embed": "sum",
            "layers": {"x": "embed", "mask": "mask"},
            "pool": "layers",
            "head": "pool",
        },
        sink="head",
        inputs=("token_ids", "segment_ids"),
    )


def mixer_block(patches, hidden, patch_width, hidden_width, key):
    a, b = jr.split(key)
    across = nn.MLP(patches, patches, patch_width, 1, key=a)
    along = nn.MLP(hidden, hidden, hidden_width, 1, key=b)
    return ep.chain(
        ep.residual(nn.LayerNorm((hidden, patches)), ep.batched(across)),
        jnp.transpose,
        ep.residual(nn.LayerNorm((patches, hidden)), ep.batched(along)),
        jnp.transpose,
    )


def mixer(
    img_size, patch_size, hidden, patch_width, hidden_width, num_blocks, t1, *, key
):
    channels, height, width = img_size
    rows, columns = height // patch_size, width // patch_size
    into, out, *keys = jr.split(key, 2 + num_blocks)
    patches = rows * columns

    def block(key):
        return mixer_block(patches, hidden, patch_width, hidden_width, key)

    def join(y, t):
        return jnp.concatenate([y, jnp.full((1, height, width), t / t1)])

    return ep.chain(
        ep.feed(join, "y", "t"),
        nn.Conv2d(channels + 1, hidden, patch_size, patch_size, key=into),
        lambda y: y.reshape(hidden, patches),
        ep.repeat([block(k) for k in keys]),
        nn.LayerNorm((hidden, patches)),
        lambda y: y.reshape(hidden, rows, columns),
        nn.ConvTranspose2d(hidden, channels, patch_size, patch_size, key=out),
    )


class Waves(ep.Stage):
    rates: jax.Array

    def __call__(self, t, *, key=None):
        return jnp.concatenate([jnp.sin(t * self.rates), jnp.cos(t * self.rates)])


def group_norm(size):
    return nn.GroupNorm(min(size // 4, 32), size)


def linear_attention(size, heads, dim_head, key):
    a, b = jr.split(key)
    hidden = heads * dim_head

    def attend(qkv):
        _, h, w = qkv.shape
        q, k, v = einops.rearrange(
            qkv, "(three heads c) h w -> three heads c (h w)", three=3, heads=heads
        )
        context = jnp.einsum("hdn,hen->hde", jax.nn.softmax(k, axis=-1), v)
        out = jnp.einsum("hde,hdn->hen", context, q)
        return einops.rearrange(out, "heads c (h w) -> (heads c) h w", h=h, w=w)

    return ep.residual(
        group_norm(size),
        nn.Conv2d(size, hidden * 3, 1, key=a),
        attend,
        nn.Conv2d(hidden, size, 1, key=b),
    )


def repeat_pixels(y):
    return jnp.repeat(jnp.repeat(y, 2, axis=1), 2, axis=2)


def mean_pixels(y):
    return einops.reduce(y, "c (h a) (w b) -> c h w", "mean", a=2, b=2)


def resnet_block(before, after, time, rate, heads, dim_head, attend, size, biggan, key):
    """`size` is "up", "down" or "same"."""
    keys = jr.split(key, 7)
    resize = {"same": nn.Identity(), "up": repeat_pixels, "down": mean_pixels}[size]
    if size == "up" and not biggan:
        resize = nn.ConvTranspose2d(before, before, 4, 2, padding=1, key=keys[3])
    if size == "down" and not biggan:
        resize = nn.Conv2d(before, before, 3, 2, 1, key=keys[4])
    skip = nn.Identity()
    if before != after or size != "same":
        skip = ep.chain(resize, nn.Conv2d(before, after, 1, key=keys[5]))
    first = nn.Conv2d(before, after, 3, padding=1, key=keys[1])
    block = ep.graph(
        nodes={
            "first": ep.chain(group_norm(before), jax.nn.silu, resize, first),
            "time": ep.chain(jax.nn.silu, nn.Linear(time, after, key=keys[0])),
            "add": lambda x, time: x + time[:, None, None],
            "second": ep.chain(
                group_norm(after),
                jax.nn.silu,
                nn.Dropout(rate),
                nn.Conv2d(after, after, 3, padding=1, key=keys[2]),
            ),
            "skip": skip,
            "join": lambda x, y: (x + y) / jnp.sqrt(2),
        },
        edges={
            "first": "x",
            "time": "t",
            "add": ["first", "time"],
            "second": "add",
            "skip": "x",
            "join": ["second", "skip"],
        },
        sink="join",
        inputs=("x", "t"),
    )
    if size != "same" and not biggan:  # one layer for both ways
        block = ep.tied(block, lambda b: b["skip"][0], lambda b: b["first"][2])
    if attend:
        attention = linear_attention(after, heads, dim_head, keys[6])
        block = ep.chain(block, attention)
    return block


def unet(
    data_shape,
    is_biggan,
    dim_mults,
    hidden_size,
    heads,
    dim_head,
    dropout_rate,
    num_res_blocks,
    attn_resolutions,
    *,
    key,
):
    channels, height, _ = data_shape
    dims = [hidden_size, *(hidden_size * m for m in dim_mults)]
    levels = list(zip(dims[:-1], dims[1:], strict=True))
    a, b, down, c, d, up, last = jr.split(key, 7)
    half = hidden_size // 2
    rates = jnp.exp(jnp.arange(half) * -jnp.log(10000) / (half - 1))
    mlp = nn.MLP(hidden_size, hidden_size, 4 * hidden_size, 1, jax.nn.silu, key=a)
    nodes = {
        "time": ep.chain(Waves(rates), mlp),
        "begin": nn.Conv2d(channels, hidden_size, 3, padding=1, key=b),
    }
    edges = {"time": "t", "begin": "y"}

    def add(x, before, after, key, size="same", attend=None, beside=None):
        name = f"block{len(nodes)}"
        attend = height in attn_resolutions if attend is None else attend
        if beside is not None:
            nodes[f"{name}_join"] = lambda x, skip: jnp.concatenate([x, skip])
            edges[f"{name}_join"] = [x, beside]
            x = f"{name}_join"
        nodes[name] = resnet_block(
            before,
            after,
            hidden_size,
            dropout_rate,
            heads,
            dim_head,
            attend,
            size,
            is_biggan,
            key,
        )
        edges[name] = {"x": x, "t": "time"}
        return name

    x, skips = "begin", ["begin"]
    keys = iter(jr.split(down, len(levels) * num_res_blocks - 1))
    for i, (before, after) in enumerate(levels):
        for j in range(num_res_blocks - 1):
            x = add(x, after if j else before, after, next(keys))
            skips.append(x)
        if i < len(levels) - 1:
            x = add(x, after, after, next(keys), "down")
            skips.append(x)
            height //= 2
    x = add(x, dims[-1], dims[-1], c, attend=True)
    x = add(x, dims[-1], dims[-1], d, attend=False)
    keys = iter(jr.split(up, len(levels) * (num_res_blocks + 1) - 1))
    for i, (before, after) in enumerate(reversed(levels)):
        for _ in range(num_res_blocks - 1):
            x = add(x, after * 2, after, next(keys), beside=skips.pop())
        x = add(x, after + before, before, next(keys), beside=skips.pop())
        if i < len(levels) - 1:
            x = add(x, before, before, next(keys), "up")
            height *= 2
    nodes["end"] = ep.chain(
        group_norm(hidden_size),
        jax.nn.silu,
        nn.Conv2d(hidden_size, channels, 1, key=last),
    )
    return ep.graph(nodes, {**edges, "end": x}, "end", inputs=("t", "y"))


def rnn(in_size, out_size, hidden_size, *, key):
    cell, head = jr.split(key)
    pipe = ep.chain(
        hidden=ep.scan(nn.GRUCell(in_size, hidden_size, key=cell), returns="last"),
        head=nn.Linear(hidden_size, out_size, key=head),
        out=jax.nn.sigmoid,
    )
    return pipe.replace({"head.bias": jnp.zeros(out_size)})


def stateful(key):
    a, b, c, d = jr.split(key, 4)
    return ep.chain(
        nn.BatchNorm(3, "batch"),
        nn.SpectralNorm(nn.Linear(3, 32, key=a), "weight", key=b),
        jax.nn.relu,
        nn.BatchNorm(32, "batch"),
        nn.Linear(32, 32, key=c),
        jax.nn.relu,
        nn.Linear(32, 3, key=d),
    )


class Solve(eqx.Module):
    """A field as the solution of its equation, at these times."""

    field: ep.Stage

    def __call__(self, ts, y0):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: self.field(y)),
            diffrax.Tsit5(),
            ts[0],
            ts[-1],
            0.4,
            y0,
            saveat=diffrax.SaveAt(ts=ts),
        ).ys


def latent_ode(*, data_size, hidden_size, latent_size, width_size, depth, key):
    a, b, c, d, e = jr.split(key, 5)
    field = nn.MLP(
        hidden_size,
        hidden_size,
        width_size,
        depth,
        jax.nn.softplus,
        jax.nn.tanh,
        key=a,
    )
    to_hidden = nn.MLP(latent_size, hidden_size, width_size, depth, key=d)

    def sample(mean, logstd, *, key):
        return mean + jr.normal(key, mean.shape) * jnp.exp(logstd)

    def loss(ys, again, mean, logstd):
        std = jnp.exp(logstd)
        far = 0.5 * jnp.sum((ys - again) ** 2)
        return far + 0.5 * jnp.sum(mean**2 + std**2 - 2 * jnp.log(std) - 1)

    return ep.graph(
        nodes={
            "data": lambda ts, ys: jnp.concatenate([ts[:, None], ys], axis=1),
            "context": ep.chain(
                ep.scan(
                    nn.GRUCell(data_size + 1, hidden_size, key=b),
                    returns="last",
                    reverse=True,
                ),
                nn.Linear(hidden_size, 2 * latent_size, key=c),
            ),
            "mean": lambda context: context[:latent_size],
            "logstd": lambda context: context[latent_size:],
            "latent": sample,
            "begin": to_hidden,
            "path": Solve(ep.weighted(field, weights=[1.0])),
            "again": ep.batched(nn.Linear(hidden_size, data_size, key=e)),
            "loss": loss,
        },
        edges={
            "data": ["ts", "ys"],
            "context": "data",
            "mean": "context",
            "logstd": "context",
            "latent": ["mean", "logstd"],
            "begin": "latent",
            "path": ["ts", "begin"],
            "again": "path",
            "loss": ["ys", "again", "mean", "logstd"],
        },
        sink="loss",
        inputs=("ts", "ys"),
    )
