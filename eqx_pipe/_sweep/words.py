"""Arguments that a sweep does not have, and what to write instead."""

_BATCH = "The number of points that are vectorised at once is `batch_size=`."
_CORES = (
    "All devices are used as it is. For all cores of a CPU call "
    "`eqx_pipe.use_cpu_devices()` at the top of the program; for other machines give "
    "an `executor=`."
)
_MESH = 'Give the devices as a mesh: `mesh=jax.make_mesh((2,), ("x",))`.'
_KEY = "Give a key, `key=jax.random.key(seed)`: each point gets one made from it."
_ARGS = (
    "What does not vary stands in the space beside the axes, or is given by "
    "`functools.partial`."
)
_AXES = "The axes stand in the space: the function gets one point, without a batch."
_REPLICATES = (
    "Put an axis of keys in the space: "
    '`"seed": ep.Values(jax.random.split(jax.random.key(0), 5))`.'
)
_STORE = 'Values are written to the folder `store="runs.zarr"` as they are computed.'
_OUTPUTS = 'Dims of outputs are named by `output_coords={"curve": {"step": steps}}`.'
_DIMS = 'Dims are named on the axes: `Linspace(0, 1, 5, dim="time")`.'
_STATIC = "What the program depends on is an axis `Static([...])`, or is in a closure."

SWEEP_WORDS = {
    **dict.fromkeys(
        ("batch", "batchsize", "chunk_size", "chunksize", "chunks"), _BATCH
    ),
    **dict.fromkeys(("n_jobs", "njobs", "jobs", "workers", "num_workers"), _CORES),
    **dict.fromkeys(("max_workers", "processes", "cores", "parallel"), _CORES),
    **dict.fromkeys(("devices", "device", "n_devices", "num_devices"), _MESH),
    **dict.fromkeys(("seed", "rng", "prng_key", "random_state"), _KEY),
    **dict.fromkeys(("args", "kwargs", "fn_kwargs", "params"), _ARGS),
    **dict.fromkeys(("in_axes", "out_axes", "axes"), _AXES),
    **dict.fromkeys(("repeats", "replicates", "seeds", "num_seeds"), _REPLICATES),
    **dict.fromkeys(("out", "output", "path", "save", "save_to", "file"), _STORE),
    **dict.fromkeys(("dim", "dims"), _DIMS),
    **dict.fromkeys(("var_dims", "var_coords", "coords", "output_dims"), _OUTPUTS),
    **dict.fromkeys(("static", "static_argnums", "static_argnames"), _STATIC),
    "mode": 'It belongs to the space: `ep.Space(tree, mode="zip")`.',
    "cache": 'A store keeps what is computed: `store="runs.zarr"`.',
    "verbose": "Say `progress=True` or `progress=False`.",
    "reducer": "Say `reduce=ep.Mean()`.",
    "reduction": "Say `reduce=ep.Mean()`.",
    "over": 'It belongs to the reducer: `reduce=ep.Mean(over="seed")`.',
    "errors": 'Say `on_error="isolate"` to keep the points that do not fail.',
}

_NOT_HERE = "It is an argument of `sweep`, which runs on the host and does more."
_HOST = ("order_by", "reduce", "store", "part", "executor", "on_error", "progress")
VMAP_WORDS = {**SWEEP_WORDS, **dict.fromkeys(_HOST, _NOT_HERE)}

_ONE_RUN = "It is an argument of `sweep`, for a run that is not over in an instant."
_LONG = ("order_by", "store", "part", "executor", "resume", "progress", "count_steps")
SWEEPER_WORDS = {**SWEEP_WORDS, **dict.fromkeys(_LONG, _ONE_RUN)}
