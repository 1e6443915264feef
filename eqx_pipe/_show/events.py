"""Curves as TensorBoard's event files, which trackers read too, without TensorBoard.

A file is a sequence of records, each with its length and masked CRC-32C sums of both.
A record is an event in the encoding of Protocol Buffers: fields of a number and a wire
type (0 an integer, 1 eight bytes, 2 bytes after their length, 5 four bytes).
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._check import check_int
from .._errors import nearest, value_error
from .._results import ranked
from .._store import checksum
from .source import Shown, Source
from .summary import LEVELS, bands_of, text_of


def _varint(n: int) -> bytes:
    parts = bytearray()
    while n > 127:
        parts.append(n & 127 | 128)
        n >>= 7
    return bytes([*parts, n])


def _field(number: int, x: bytes | str | float) -> bytes:
    """Return a field with bytes, a text or a double."""
    if isinstance(x, float):
        return _varint(number << 3 | 1) + struct.pack("<d", x)
    data = x if isinstance(x, bytes) else str(x).encode()
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _event(when: float, step: int, body: bytes) -> bytes:
    return _field(1, when) + _varint(2 << 3) + _varint(step) + body


def _record(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = checksum(part)
        rotated = (crc >> 15 | crc << 17) + 0xA282EAD8
        return struct.pack("<I", rotated & 0xFFFFFFFF)

    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


def _hparams(point: Mapping[str, Any]) -> bytes:
    """Return the summary of the plugin `hparams` that starts a session."""
    pairs = b""
    for name, x in point.items():
        value = _field(3, x) if isinstance(x, str) else _field(2, float(x))
        pairs += _field(1, _field(1, name) + _field(2, value))
    plugin = _field(1, "hparams") + _field(2, _field(2, b"") + _field(3, pairs))
    return _field(1, "_hparams_/session_start_info") + _field(9, _field(1, plugin))


def _write(
    folder: Path,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    when: float,
    point: Mapping[str, Any] | None = None,
) -> None:
    """Write a run: steps and values by metric, and its hyperparameters."""
    folder.mkdir(parents=True, exist_ok=True)
    events = [_event(when, 0, _field(3, "brain.Event:2"))]
    if point is not None:
        events.append(_event(when, 0, _field(5, _field(1, _hparams(point)))))
    for tag, (steps, values) in curves.items():
        head, valid = _field(1, tag) + _varint(2 << 3 | 5), np.isfinite(values)
        for step, x in zip(steps[valid].tolist(), values[valid].tolist(), strict=True):
            value = _field(1, head + struct.pack("<f", x))
            events.append(_event(when, int(step), _field(5, value)))
    path = folder / f"events.out.tfevents.{int(when)}.eqx_pipe"
    path.write_bytes(b"".join(map(_record, events)))


def export(
    shown: Shown, folder: str, top: int | None = 5, metric: str = "", mode: str = ""
) -> str:
    """Write curves as event files: bands, and the `top` best points, or all.

    `band/p50` and so on are runs with the quantiles of each metric; `best/1-rate=0.01`
    are runs of single points, with the values of their axes as hyperparameters.
    """
    source = Source(shown, "store")
    reading = source.reading()
    result = reading.result
    if result is None or not reading.curves:
        wrong, cure = f"`{source.path}` has no curves.", "Give a store with curves."
        raise value_error("tensorboard", wrong, cure)
    curves = {k: reading.curves[k] for k in reading.metrics if k in reading.curves}
    if metric and reading.metric(metric) not in curves:
        wrong = f"`by` is {metric!r}, which is not a curve of `{source.path}`."
        raise value_error("tensorboard", wrong, nearest(metric, [*curves]))
    metric, mode = reading.chosen(metric, mode)
    _, scores = reading.numbers(metric)
    order = np.arange(len(scores))
    if top is not None:
        check_int("tensorboard", "top", top, 0)
        allowed = result.ok & ~np.isnan(scores)
        order = ranked(scores, mode, allowed)[:top]
    columns, when = reading.at(order), result.started
    values = {k: (curve.steps, np.asarray(curve.leaf)) for k, curve in curves.items()}
    bands = {name: (steps, bands_of(x)) for name, (steps, x) in values.items()}
    root = Path(folder)
    for k, level in enumerate(LEVELS):
        run = {name: (steps, x[k]) for name, (steps, x) in bands.items()}
        _write(root / "band" / f"p{100 * level:02.0f}", run, when)
    for k, i in enumerate(order):
        point = {name: x[k].item() for name, x in columns.items()}
        text = ",".join(f"{name}={text_of(x)}" for name, x in point.items())
        text = f"{k + 1:0{len(str(len(order)))}}-{text}"
        # File systems allow 255 bytes.
        name = re.sub(r"[^\w=.,+-]", "_", text, flags=re.ASCII)[:200]
        run = {n: (steps, x[i]) for n, (steps, x) in values.items()}
        _write(root / ("all" if top is None else "best") / name, run, when, point)
    return f"{len(LEVELS)} runs of bands and {len(order)} of points in {root}"
