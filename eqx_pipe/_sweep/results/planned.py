"""The work that a sweep would do, as numbers and as text."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The work that a sweep would do. `print` shows it.

    - `dims` are the dims of the space with their lengths, and `points` their product.
    - `done`, `failed` and `missing` are how many points the store has, how many of them
      failed, and how many it lacks; without a store all are missing. `left` is how many
      points the call would compute: those of its part that are missing, with
      `resume="failed"` also those that failed.
    - `new` is how many points a store would get that grows with its space: they are
      missing. Of those that it has `copied` go to other files first, once; it is 0
      where all stay where they are, but in chunks at the edge that get new points.
    - `programs` is how many programs it would compile, and `compiled` how many of those
      that it needs are compiled already.
    - `batch_size`, `devices`: points vectorised at once, on each of so many devices.
    - `chunks` is how many chunks the values are computed and kept in, of at most
      `chunk_points` points, and `chunks_left` how many of them are computed now.
    - `value_bytes` is what all values take in memory, or before they are compressed in
      a store. Of a reduction they are its states.
    - `memory_bytes` is what a device has to hold: that of the compiled program which
      takes most, or, if none is compiled yet, about that.

    Under `jax.disable_jit()` it describes the compiled sweep.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> coming = ep.plan(jnp.sin, ep.Linspace(0, 1, 500))
        >>> coming.left, coming.value_bytes, coming.done
        (500, 2000, 0)
    """

    dims: dict[str, int]
    points: int
    done: int
    failed: int
    missing: int
    left: int
    programs: int
    compiled: int
    batch_size: int
    devices: int
    chunks: int
    chunks_left: int
    chunk_points: int
    value_bytes: int
    memory_bytes: int | None = None
    store: str | None = None
    new: int = 0
    copied: int = 0

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.dims.items())
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {text}" for name, text in rows]
        return "\n".join([f"SweepPlan({self.points:,} points; {dims})", *lines])

    def _rows(self) -> list[tuple[str, str]]:
        there = f"{self.left:,} to compute"
        if self.store is not None:
            there += f"; {self.done:,} done, {self.missing:,} missing"
            there += f", {self.failed:,} failed"
        grows = f"{_points(self.points - self.new)} become {self.points:,}; "
        grows += f"{self.copied:,} are copied once" if self.copied else "files stay"
        programs = f"{self.programs:,} to compile"
        if self.compiled:
            programs += f", {self.compiled:,} compiled already"
        devices = "1 device" if self.devices == 1 else f"each of {self.devices} devices"
        rows = [
            ("points", there),
            *([("growth", grows)] if self.new else []),
            ("programs", programs),
            ("batches", f"{_points(self.batch_size)} on {devices}"),
        ]
        if self.memory_bytes is not None:
            about = "about " if self.programs else ""
            size = f"{about}{bytes_text(self.memory_bytes)}"
            rows.append(("memory", f"{size} on {devices}"))
        rows.append(("values", bytes_text(self.value_bytes)))
        if self.chunks > 1 or self.store is not None:
            left = f"{self.chunks_left:,} of {self.chunks:,}"
            rows.append(("chunks", f"{left}, of at most {_points(self.chunk_points)}"))
        return rows


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count:,} points"


def bytes_text(size: int) -> str:
    """A number of bytes in the unit of which there are not many."""
    number, units = float(size), iter(("bytes", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while number >= 1000 and unit != "PB":
        number, unit = number / 1000, next(units)
    return f"{number:.3g} {unit}"
