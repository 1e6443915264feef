"""Programs as the compiler describes them, for devices that are there or not.

A machine without an accelerator compiles for one: the compiler of a TPU or of a GPU
needs a description of the device, not the device. Its answers are a model: bytes,
kernels and the steps of loops, but no times.
"""

import collections
import contextvars
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ._check import check_callable
from ._errors import describe_value, message, value_error
from ._mesh_context import check_mesh
from ._tree import as_arrays
from ._types import Device, PyTree

MEMORIES = {"H200": 139, "H100": 79, "A100": 79, "v5 lite": 15.75, "v6 lite": 31.25}
"""GiB of some devices, used only where none is there to be asked."""

_TPUS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
"""The smallest topology with a TPU of a kind."""

_PACKAGES = {"tpu": "tpu_compiler", "cuda": "gpu_compiler"}
"""The extras of this package that contain the compilers."""

_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The properties of a card that the compiler asks for, as XLA's `GpuTargetConfig`."""

_NAMES = "Give 'h100', 'h100:8' (cards of a host), or a TPU: 'v4', 'v5e', 'v5p' or "
_NAMES += "'v6e' for one, 'v5e:2x4' for a topology."


def topology(name: str) -> Mesh:
    """Return a mesh of devices by name, to compile for, whether they are there or not.

    `plan` and `program` accept it: they compile for its devices, and describe the
    program. It cannot compute. Reshape its devices for a mesh of several axes:
    `jax.sharding.Mesh(mesh.devices.reshape(2, 4), ("data", "model"))`.

    The compilers are packages of their own: `pip install 'eqx_pipe[tpu_compiler]'`
    (650 MB) or `'eqx_pipe[gpu_compiler]'`. Set `JAX_PLATFORMS=cpu` on a machine without
    an accelerator, or JAX looks for the devices of these packages when it starts.

    **Arguments:**

    - `name`: `"h100"` for a card, `"h100:8"` for eight in a host; `"v4"`, `"v5e"`,
      `"v5p"` or `"v6e"` for a TPU, `"v5e:2x4"` for a topology of them.

    **Returns:** a mesh with the axis `"devices"`.

    **Raises:** `ValueError` if no device has this name; `ImportError` if the compiler
    is not installed.

    !!! example

        >>> import eqx_pipe as ep
        >>> try:
        ...     mesh = ep.topology("v5e:2x4")
        ... except ImportError:
        ...     mesh = None  # the compiler is not installed

        ```py
        print(ep.plan(fn, space, mesh=mesh, compiled=True))
        ```
    """
    pattern = r"h100(?::(\d))?|(v4|v5e|v5p|v6e)(?::\d+(?:x\d+)+)?"
    known = re.fullmatch(pattern, str(name))
    if not isinstance(name, str) or known is None or known[1] == "0":
        wrong = f"`name` is {describe_value(name)}, an unknown device."
        raise value_error("topology", wrong, _NAMES)
    if known[2]:
        platform, options = (
            "tpu",
            {"topology_name": name if ":" in name else _TPUS[name]},
        )
        # Without these the compiler looks for the TPU that it runs on.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        if jax.config.jax_platforms == "cpu":
            # Processes that only compile need not wait for each other.
            os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    else:
        cards = f"1x1x{known[1] or 1}"
        platform, options = "cuda", {"target_config": _H100, "topology": cards}
    try:
        made = topologies.get_topology_desc(platform=platform, **options)
    except Exception as error:
        if "INVALID_ARGUMENT" in str(error):
            wrong = f"`{name}` has no such topology: {_first_line(error)}."
            raise value_error("topology", wrong, _NAMES) from error
        extra = _PACKAGES[platform]
        raise ImportError(
            message(
                "topology",
                f"the compiler for `{name}` does not start: {_first_line(error)}.",
                f"Install it: `pip install 'eqx_pipe[{extra}]'`.",
            )
        ) from error
    devices = made.devices if ":" in name else made.devices[:1]
    return Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))


_target = contextvars.ContextVar[tuple[Device, ...]]("_target", default=())


def default_devices() -> list[Device]:
    """Return the device that a program is for: JAX's first, or that of `program`."""
    return list(_target.get()) or jax.local_devices()[:1]


def is_there(device: Device) -> bool:
    """Return whether a device can compute; a topology has others, to compile for."""
    try:
        return any(device.client is d.client for d in jax.devices(device.platform))
    except RuntimeError:  # JAX has no such backend
        return False


def free_bytes(devices: Sequence[Device]) -> int | None:
    """Return the free memory of the fullest device; `None` if none reports it."""
    free = []
    for device in devices:
        try:
            stats = device.memory_stats() or {}
        except jax.errors.JaxRuntimeError:  # it is not there
            known = [n for name, n in MEMORIES.items() if name in device.device_kind]
            free += [int(n * 2**30) for n in known]
            continue
        if "bytes_limit" in stats:
            free.append(int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0)))
    return min(free) if free else None


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """A program as its compiler describes it, on one device; prints as a table.

    - `argument_bytes`, `output_bytes` and `temporary_bytes` are the memory that it
      needs; outputs in the place of donated arguments do not count. `accessed_bytes` is
      the memory that it reads and writes, of the body of a loop once; `None` if the
      compiler does not estimate it, as that of GPUs.
    - `loops` has for each loop the number of its steps, or `None` if the program does
      not contain it, and the number of kernels of a step.
    - `kernels` is the number of kernels outside of loops, `gathers` and `scatters` are
      the numbers of such operations, `callbacks` of calls of Python, and `collectives`
      has the number of each kind.
    - `wide` is true if a value has 64-bit floating-point numbers, which a TPU emulates.
    - `largest_batch` is the largest batch size that fits, `None` if it was not
      determined.
    - `seconds` is the time that the compiler took.
    - `remarks` name what is unusual.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> found = ep.program(lambda x, i: x[i], jnp.ones(9), jnp.arange(3))
        >>> found.output_bytes, found.gathers
        (12, 1)
    """

    platform: str
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    accessed_bytes: float | None
    loops: tuple[tuple[int | None, int], ...]
    kernels: int
    gathers: int
    scatters: int
    callbacks: int
    collectives: dict[str, int]
    wide: bool
    seconds: float
    largest_batch: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def round_trips(self) -> int | None:
        """The number of loops in which a GPU asks the host after each step."""
        if self.platform not in ("gpu", "cuda"):
            return None
        return sum(steps is None for steps, _ in self.loops)

    def __repr__(self) -> str:
        return "\n".join(["ProgramPlan", *(f"  {k:<9} {v}" for k, v in self.rows())])

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the table."""
        parts = [
            f"{as_bytes(self.argument_bytes)} of arguments",
            f"{as_bytes(self.output_bytes)} of outputs",
            f"{as_bytes(self.temporary_bytes)} of temporaries",
        ]
        rows = [("memory", ", ".join(parts))]
        if self.accessed_bytes is not None:
            rows.append(("accessed", as_bytes(int(self.accessed_bytes))))
        kernels = [f"{self.kernels} outside of loops"]
        for steps, each in self.loops:
            which = "a loop" if steps is None else f"a loop of {steps:,} steps"
            kernels.append(f"{each} a step of {which}")
        rows.append(("kernels", "; ".join(kernels)))
        if self.collectives:
            counts = ", ".join(f"{n} {name}" for name, n in self.collectives.items())
            rows.append(("exchange", counts))
        if self.largest_batch is not None:
            rows.append(("fits", f"a batch of {self.largest_batch:,} on each device"))
        return [*rows, *(("remark", text) for text in self.remarks)]


def as_bytes(size: int) -> str:
    """Return a number of bytes as text, in a suitable unit."""
    number, units = float(size), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while number >= 1000 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.3g} {units[0]}"


def program(
    fn: Callable[..., PyTree], *args: PyTree, mesh: Mesh | None = None
) -> ProgramPlan:
    """Compile a function, and describe its program, without running it.

    It works for devices that this machine does not have (`topology`), so that you know
    before you rent: bytes, kernels, gathers and collectives. These are the compiler's
    figures, not measurements, and none of them is a time.

    **Arguments:**

    - `fn`: any function that JAX can trace.
    - `args`: its arguments: arrays, or `jax.ShapeDtypeStruct`s. Those with a sharding
      keep it. Functions and other values that are not arrays count as they are.
    - `mesh`: the devices to compile for, such as a `topology`: arguments without a
      sharding are copied to each of them. By default JAX's first device. (Keyword
      only.)

    **Returns:** a `ProgramPlan`, which prints as a table.

    **Raises:** the errors of the function; `TypeError` if it cannot be called.

    !!! example "A gradient through `vmap`, and its memory"

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> loss = lambda w, x: jnp.tanh(x @ w).sum()
        >>> total = lambda w, xs: ep.vmap(loss, in_axes=(None, 0))(w, xs).sum()
        >>> w = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        >>> xs = jax.ShapeDtypeStruct((4096, 8), jnp.float32)
        >>> forward = ep.program(total, w, xs)
        >>> gradient = ep.program(jax.grad(total), w, xs)
        >>> gradient.output_bytes, gradient.collectives
        (256, {})

        For a TPU, or eight of them:

        ```py
        ep.program(jax.grad(total), w, xs, mesh=ep.topology("v5e"))
        mesh = ep.topology("v5e:2x4")
        meshed = lambda w, xs: ep.vmap(loss, in_axes=(None, 0), mesh=mesh)(w, xs).sum()
        ep.program(jax.grad(meshed), w, xs, mesh=mesh)
        ```
    """
    check_callable("program", "fn", fn, "The first argument is the function.")
    if mesh is None:
        mesh = Mesh(jax.devices()[:1], ("devices",), axis_types=(AxisType.Auto,))
    check_mesh("program", mesh)
    same = NamedSharding(mesh, P())

    def struct(x: Any) -> Any:
        own = getattr(x, "sharding", None)
        own = own if isinstance(own, NamedSharding) else same
        dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(x.shape, dtype, sharding=own)

    arrays, static = eqx.partition(as_arrays(args), _is_array)

    def of_arrays(arrays: PyTree) -> PyTree:
        return eqx.filter(as_arrays(fn(*eqx.combine(arrays, static))), _is_array)

    begun, token = time.perf_counter(), _target.set(tuple(mesh.devices.flat)[:1])
    try:
        made = jax.jit(of_arrays).lower(jtu.tree_map(struct, arrays)).compile()
    finally:
        _target.reset(token)
    seconds, platform = time.perf_counter() - begun, mesh.devices.flat[0].platform
    return plan_of_program(made, seconds, platform)


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


# Texts of optimised HLO.
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"= (?:\([^=]*?\)|\S+) ([\w\-]+)\(")
_COLLECTIVE = r" (all-(?:reduce|gather|to-all)|collective-permute|reduce-scatter)"
_COLLECTIVE += r"(?:-start)?\("
_CALLBACK = r'custom_call_target="[^"]*callback| outfeed\('
_CALLBACK += r"| recv\(.*is_host_transfer=true"
_IDLE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "while"}
_IDLE |= {"copy-done", "all-reduce-done", "all-gather-done", "collective-permute-done"}
_PADDED = 8
"""From so many times the bytes of its values on, a lane is remarked as padded."""


def plan_of_program(made: Any, seconds: float, platform: str) -> ProgramPlan:
    """Return the description of a compiled program."""
    text, memory, cost = made.as_text(), made.memory_analysis(), made.cost_analysis()
    bodies = _kernels_in(text)
    loops = tuple(_loops_in(text, bodies))
    entry = re.search(r"^ENTRY %?([\w.\-]+) ", text, re.M)
    found = collections.Counter(re.findall(_COLLECTIVE, text))
    plan = ProgramPlan(
        platform=platform,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=_own_outputs(memory),
        temporary_bytes=memory.temp_size_in_bytes,
        accessed_bytes=(cost or {}).get("bytes accessed"),
        loops=loops,
        kernels=bodies.get(entry[1], 0) if entry else 0,
        gathers=len(re.findall(r" gather\(", text)),
        scatters=len(re.findall(r" scatter\(", text)),
        callbacks=len(re.findall(_CALLBACK, text)),
        collectives=dict(sorted(found.items())),
        wide=re.search(r"\bf64\[", text) is not None,
        seconds=seconds,
    )
    return dataclasses.replace(plan, remarks=tuple(_remarks(plan)))


def bytes_of_program(made: Any) -> tuple[int, int]:
    """Return the memory of a compiled program, and that of arguments and outputs."""
    memory = made.memory_analysis()
    ends = memory.argument_size_in_bytes + _own_outputs(memory)
    return ends + memory.temp_size_in_bytes, ends


def _own_outputs(memory: Any) -> int:
    """Return the bytes of outputs that do not take the place of donated arguments."""
    return memory.output_size_in_bytes - memory.alias_size_in_bytes


def _remarks(plan: ProgramPlan) -> Iterator[str]:
    if plan.round_trips:
        loops = f"{plan.round_trips} of {len(plan.loops)} loops"
        yield f"{loops} of unknown length: a GPU asks the host after each step"
    if plan.gathers and plan.platform != "cpu":
        yield f"{plan.gathers} gathers, which a TPU computes slowly"
    if plan.callbacks and plan.platform != "cpu":
        yield f"{plan.callbacks} callbacks: the device waits for Python"
    if plan.wide and plan.platform == "tpu":
        yield "numbers of 64 bits, which a TPU emulates"


def padded(per_lane: float, alive: int) -> str | None:
    """Return a remark if a lane takes many times the bytes of its values."""
    if per_lane < _PADDED * alive:
        return None
    return (
        f"a lane takes {as_bytes(int(per_lane))}, {per_lane / alive:.0f} times the "
        f"{as_bytes(alive)} of its values: small trailing axes are padded"
    )


def _kernels_in(text: str) -> dict[str, int]:
    """Return the number of kernels of each computation of optimised HLO."""
    kernels: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        head, op = _HEAD.match(line), _OPERATION.search(line)
        if head:
            name = head[1]
            kernels[name] = 0
        elif op and op[1] not in _IDLE:
            kernels[name] = kernels.get(name, 0) + 1
    return kernels


def _loops_in(text: str, kernels: dict[str, int]) -> Iterator[tuple[int | None, int]]:
    """Yield the steps of each loop of optimised HLO, and the kernels of its body."""
    for line in text.splitlines():
        loop = re.search(r" while\(.*body=%?([\w.\-]+)", line)
        if loop:
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            yield int(known[1]) if known else None, kernels.get(loop[1], 0)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
