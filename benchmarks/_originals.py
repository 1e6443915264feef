"""Three published models of Equinox and diffrax, written with `eqx_pipe`.

Each draws its parameters from the same keys as the published one, takes the same
settings and computes the same values.
"""

import diffrax
import einops
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn

import eqx_pipe as ep


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
            ep.feed(attend, "x", "x", "x", "mask"), ep.feed(drop, "x"), broadcast="mask"
        ),
        attend_norm=norm,
        mlp=ep.residual(
            ep.feed(ep.batched(ep.chain(mlp, drop)), "x"), broadcast="mask"
        ),
        norm=norm,
        broadcast="mask",
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
            "layers": ep.repeat(
                [bert_layer(config, k) for k in keys], broadcast="mask"
            ),
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
                    returns="carry",
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
