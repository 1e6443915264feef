"""`sweep` computes a function at every point of a space."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh

from .._progress import Progress, tell
from .._reduce import ReduceLike
from .._results import OutputCoords, Steps, SweepResult, names_of, reduced_coords
from .._run import CTRL_C, ENDING, Interrupt, Watch, call, fn_name, no_mesh
from .._spaces import SpaceLike
from .._store import MISSING, StoreLike, count_in
from .._tree import as_data, as_keys, struct_of
from .._types import Key, PyTree
from .._vmap import warn_if_cores_idle
from .plan import Outcome, Plan, Todo, compute_here, plan_of
from .remote import compute_remotely, end_workers
from .request import (
    BatchSize,
    Costs,
    Executor,
    Request,
    Resume,
    Shard,
    check_together,
    request_of,
)
from .sinks import ArraySink, ReductionSink, StoreSink
from .work.buffer import Chunk


def sweep(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    order_by: Costs | None = None,
    reduce: ReduceLike | None = None,
    store: StoreLike | None = None,
    shard: Shard | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    resume: Resume | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    progress: bool | None = None,
    count_steps: bool = False,
    output_coords: OutputCoords | None = None,
) -> SweepResult:
    """Compute a function at every point of a space, on all devices.

    The values equal
    `stack([fn(space.point(i), key=space.point_key(i, key=key)) for i in range(n)])`
    with `n = space.size`, for any batch size, number of devices and number of chunks.
    Keys and integers are equal; floats agree to rounding, since each of these choices
    compiles a different program. Points are split over the devices, without
    collectives, and vectorised in batches.

    A second sweep of the same program (the traced function and the structure, shapes,
    dtypes and lengths of the space) compiles nothing. The values of axes and of arrays,
    in `fn` or closed over by it, may change; Python and NumPy scalars are part of the
    program. Arrays of at most 512 numbers that `fn` closes over are part of it, too,
    which makes it faster, until they change for the first time: then another program is
    compiled, of which they are arguments. (With `store`, they always are part of it.)

    `fn` is traced again if something that it reads has changed: its code, closure,
    defaults, globals, helpers, attributes of modules, classes, Modules and dataclasses,
    or JAX's configuration. If it reads other objects that may change in place, such as
    NumPy arrays, it is traced in every call. As with `jax.jit`, changes of `np.random`,
    `os.environ`, files, names that are looked up as text (`globals()["x"]`) and state
    inside of installed packages are not seen.

    **Arguments:**

    - `fn`: called as `fn(point)`, or as `fn(point, key=...)` if it has a parameter of
      that name. A point is the space's pytree with values in place of axes. The output
      is any pytree of arrays and numbers. `fn` is traced, once for each combination of
      `Static` values, so it must consist of JAX operations, and its Python control flow
      must not depend on the value of any other axis.
    - `space`: a `Space`, or a bare pytree with axes in it, which is their product.
    - `key`: for a function that draws: a PRNG key. Point i gets
      `space.point_key(i, key=key)`: the key folded with the point's position on one dim
      after the other, `fold_in(key, i)` with one dim. So keys do not depend on how the
      sweep runs, making an axis longer changes no key, and a sweep of a slice draws the
      same numbers as the whole sweep does there. A function without a parameter `key`
      gets no key. (Keyword only.)
    - `batch_size`: seldom needed: the number of points vectorised at once on a device.
      `"auto"` chooses it from the function's operations, and returns it with the
      result. At most the number of points. If memory does not suffice for an automatic
      size, the size is halved, and `result.made` lists the sizes. Without an explicit
      size, a function that prints, writes or calls back (`jax.debug.print`,
      `io_callback`) runs once at each point, not vectorised. (Keyword only.)
    - `mesh`: to use only some devices: the points are split over all axes of the mesh.
      By default they are split over all devices of the process. Several processes
      share a sweep by `shard`. (Keyword only.)
    - `order_by`: for points of unequal cost, such as adaptive solves: the approximate
      cost of a point, as a function from a point to a number, or an array with a number
      for each point. Points of similar cost then share a batch, so that few lanes wait
      for a slower one; the order of results does not change. It has no effect with
      `reduce`, which reduces values in order. (Keyword only.)
    - `reduce`: for statistics of more points than fit into memory: a reducer (`Mean()`,
      `ArgMin(by="loss")`, ...) or a pytree of them. Values are reduced as they are
      computed, in memory that does not grow with the number of points, and `.values` is
      the reduction. A `store` then keeps the state of every block of points instead of
      values; the result merges all states in the store in order, and omits missing
      points. With `Mean(over="seed")` only the named dims are reduced, separately for
      each cell: the result has the other dims, and is labelled and stored like any
      other. (Keyword only.)
    - `store`: for a sweep that must survive a crash, or whose values do not fit into
      memory: the path of a folder to which values are written, chunk by chunk as they
      are computed; `xarray.open_zarr` reads it at any time. Or a URL of a bucket,
      `s3://bucket/name.zarr` (`gs://`, `az://`), or a store object of obstore, with
      `pip install 'eqx_pipe[cloud]'`: there it cannot grow. The same call resumes a
      sweep that was stopped. Everything that a function reaches by name counts, and
      what cannot be understood counts as changed. What code finds by text or outside of
      Python (files, environment, time, random state), or changes inside of an installed
      numerical package, does not count. With a larger space it computes only the new
      points; those in the store are recognised by their coordinates. `.values` is then
      read from the store when it is indexed. Needs `pip install 'eqx_pipe[sweep]'`.
      (Keyword only.)
    - `shard`: for several processes, such as the tasks of a Slurm array, that fill one
      store: `(index, count)` computes share `index` of `count` shares of its chunks.
      `"auto"` reads both from the environment of Slurm (arrays and `srun`), PBS,
      HyperQueue, Kubernetes or MPI, from `jax.distributed`, or from
      `EQX_PIPE_SHARD=7/16`, and prints a line.
      The result is the store at that moment; `.ok` is `False` at missing points.
      (Keyword only.)
    - `executor`: for workers that a scheduler manages, such as Dask's: an object that
      has a method `submit(fn, *args)`, whose return value has the methods `done()` and
      `result()`. Each worker uses all of its own devices. Needs
      `pip install 'eqx_pipe[distributed]'`. (Keyword only.)
    - `timeout`: for workers that may hang: the time in seconds after which the calls in
      flight are submitted again, if no worker has answered meanwhile. Choose more than
      a chunk takes, with its compilation, and more than jobs wait in a queue. After
      three times the sweep ends with a `SweepError`. (Keyword only.)
    - `resume`: after an edit of the function: `"force"` resumes a store even if another
      function created it, and drops points in flight if a growth moves points.
      `"failed"` also does so, and recomputes failed points; the
      others keep their values. (Keyword only.)
    - `on_error`: if some points may fail: `"mark"` finds the points at which `fn`
      raises (by `equinox.error_if`, or when it is traced for one combination of
      `Static` values), marks them in `.ok`, and computes the others as if they did not
      exist. At a failed point inexact leaves are NaN and others 0. `"raise"` ends the
      sweep. (Keyword only.)
    - `progress`: `True` or `False` to force or hide the progress bar; by default there
      is one in a terminal or notebook if the work takes more than a second. A file gets
      a line each minute. (Keyword only.)
    - `count_steps`: to find out how long lanes wait for others: for each point,
      `result.steps` has the number of steps of `while_loop`s that it needed, including
      those in solvers, and the number executed until its whole batch had finished;
      `result.waste` is their ratio. A step is one run of a loop's body; nested loops
      count separately. Loops of `scan` and `refill` are not counted. A sweep that
      counts takes up to 2.5 times as long, and its values stay in memory: count on a
      part of the space. (Keyword only.)
    - `output_coords`: for outputs that are arrays at each point, such as a loss curve:
      names and coordinates for their dims, as in `{"curve": {"step": steps}}`: a dict
      from the path of an output (`"value"` for a bare one) to a dict from the name of
      each dim, in order, to a sequence of numbers or texts, or to `None` for a dim
      without coordinates. Outputs may share a dim. `to_xarray`, plots, files and stores
      use these names instead of `curve.0`, and reductions of an output keep them.
      (Keyword only.)

    **Returns:** a `SweepResult`.

    **Raises:**

    - `MissingKeyError` if `fn` needs a key and none was given.
    - `TypeError` if an output is not numeric, if there is no output (`return` is
      missing), or for traced arguments: under `jit` and `grad` use `vmap_space`.
    - `ValueError` for an invalid space, key, mesh or batch size, and for values that do
      not fit into this machine's memory.
    - `StructureError` (a `ValueError`) if outputs differ in structure, shape or dtype
      between values of `Static` axes, before anything is computed. Also if a store was
      created with another space, key or function.
    - `SweepError` if `fn` raises while it runs; `.indices` has the first point found.
      Also if a store contains failed points, unless they are marked; `.indices` has all
      of them. Also if memory does not suffice for an explicit batch size, the disk is
      full, a worker dies repeatedly, or another process fills the same store; finished
      chunks are kept.
    - Any error that `fn` raises while it is traced, with a note. If it needs the value
      of an axis, JAX's message names the axis and the note has the fix.

    Under `jax.disable_jit()` a sweep is a plain loop, so a debugger stops inside `fn`.

    Ctrl-C stops after the step in flight of a long loop in `fn`, or else after the
    batch in flight; a store keeps the state of the points in flight, and the same call
    resumes them. The `.result` of the `KeyboardInterrupt` is a `SweepResult` of all
    finished points; its `.status` marks the missing ones. A second Ctrl-C stops at
    once.

    **Laws:** a sweep equals its definition, to rounding, for every batch size, mesh,
    executor, shard and restart; so does a reduction. The same call on the same machine
    with the same batch sizes is bitwise identical, also after a restart with a store.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = {"x": ep.Linspace(0, 3, 4), "y": ep.Values([10.0, 20.0])}
        >>> ep.sweep(lambda p: p["x"] * p["y"], space).grid().tolist()
        [[0.0, 0.0], [10.0, 20.0], [20.0, 40.0], [30.0, 60.0]]
    """
    request = request_of("sweep", **locals())
    started = time.time()
    warn_if_cores_idle(request.devices, mesh)
    with no_mesh():
        if request.by_hand:
            return plain_sweep(request, started)
        return complete(plan_of(request), started)


def complete(plan: Plan, started: float) -> SweepResult:
    """Return the result of a plan; with a store, compute the missing chunks only."""
    sink = _sink(plan)
    here = plan.request.executor is None
    try:
        gather(sink, compute_here if here else compute_remotely)
    except KeyboardInterrupt as interrupt:
        # Raise the interrupt rather than an error about failed points.
        with contextlib.suppress(Exception):
            carry(interrupt, _finished(sink, started), plan.request)
        raise
    except SystemExit as ending:  # Python does not print its notes
        end_workers(plan.request.executor)
        for note in getattr(ending, "__notes__", []):
            tell(note)
        raise
    return _finished(sink, started)


Sink: TypeAlias = ArraySink | ReductionSink | StoreSink
"""An object that keeps chunks: in memory, in a store, or merged to a reduction."""


def _finished(sink: Sink, started: float) -> SweepResult:
    plan = sink.plan
    return result_of(
        plan.request,
        sink.outcome(),
        batch_size=plan.points.largest_batch,
        num_devices=len(plan.points.devices),
        attrs=plan.points.attrs,
        started=started,
    )


def _sink(plan: Plan) -> Sink:
    """Return the sink that keeps the rows of a plan."""
    if plan.request.store is not None:
        return StoreSink(plan)
    return ArraySink(plan) if plan.blocks is None else ReductionSink(plan)


Compute: TypeAlias = Callable[[Plan, Todo, Watch], Iterator[Chunk]]
"""Compute chunks, and yield each when it is finished, in any order.

No chunk begins after the watch asks to stop.
"""


def gather(sink: Sink, compute: Compute) -> None:
    """Compute the missing chunks of a sink; after a signal, keep what is finished.

    Ctrl-C then raises a `KeyboardInterrupt`. With a store, SIGTERM and SIGHUP are
    handled too, and raise a `SystemExit`; without one there is nothing to keep.
    """
    plan = sink.plan
    is_stored = plan.request.store is not None
    with (
        sink.filling() as todo,
        Interrupt(ENDING if is_stored else CTRL_C) as interrupt,
    ):
        if not todo.chunks:
            return
        size, left = plan.count(todo.owned), todo.left(plan)
        with Progress(plan.request.progress, size, size - left) as bar:
            watch = Watch(
                bar, lambda: interrupt.asked, hands_over=is_stored, whole=todo.whole
            )
            for chunk in compute(plan, todo, watch):
                sink.keep(chunk)
        # Also if all chunks are done, since a loop over sweeps should end too.
        interrupt.end()


def result_of(
    request: Request,
    outcome: Outcome,
    *,
    batch_size: int,
    num_devices: int,
    attrs: Mapping[str, str],
    started: float,
) -> SweepResult:
    """Return the result of a request, with its provenance."""
    values, steps = outcome.values, None
    if request.count_steps:
        values, *counts = values
        steps = Steps(*counts)
    output_coords = request.output_coords
    if outcome.points is not None and request.reducers is not None:
        output_coords = reduced_coords(request.reducers, values, output_coords, set())
    return SweepResult(
        values=values,
        space=request.space,
        _gaps=outcome.gaps,
        batch_size=batch_size,
        num_devices=num_devices,
        started=started,
        seconds=time.time() - started,
        points=outcome.points,
        function=fn_name(request.fn),
        made=(*request.goal.items(), *attrs.items()),
        steps=steps,
        _errors={t: np.sort(at) for t, at in outcome.errors.items() if len(at)},
        output_coords=output_coords,
    )


def carry(interrupt: KeyboardInterrupt, result: SweepResult, request: Request) -> None:
    """Attach the partial result to the `KeyboardInterrupt`."""
    interrupt.result = result  # pyright: ignore[reportAttributeAccessIssue]
    if request.store is not None:
        return  # the sink has added a note
    done = result.points
    if done is None:
        done = len(result) - count_in(result._gaps, MISSING)
    interrupt.add_note(
        f"{done:,} of {len(result):,} points are finished: they are the `.result` of "
        "this KeyboardInterrupt (`sys.last_value.result` in a notebook)."
    )


# Under `jax.disable_jit()` a sweep is a plain loop over points, so that a debugger
# stops inside the function, at one point, where values can be inspected.


def plain_sweep(request: Request, started: float) -> SweepResult:
    """Return the result of a request, computed by the plain loop."""
    check_together(request)  # a sweeper may have been made before JIT was disabled
    space, outputs = request.space, []
    with Progress(request.progress, space.size) as bar:
        for i in range(space.size):
            try:
                point, key = space.point(i), space.point_key(i, key=request.key)
                outputs.append(call(request.function, request.fn, point, key))
            except Exception as error:
                error.add_note(f"At point {i} of the space.")
                raise
            bar.done(1)
    values = jtu.tree_map(_stacked, *outputs)
    if request.output_coords:
        structs = jtu.tree_map(lambda x: struct_of(x, drop=1), values)
        names_of(structs, request.space, request.output_coords)
    return result_of(
        request,
        Outcome(values),
        batch_size=1,
        num_devices=len(request.devices),
        attrs={},
        started=started,
    )


def _stacked(*leaves: Any) -> Any:
    """Return the leaves of all outputs as one array on the host, or as keys."""
    return as_keys(np.stack([np.asarray(as_data(x)) for x in leaves]), leaves[0])
