"""The registry of native code, which XLA calls by handlers of its typed FFI.

Handlers are written in the language of LLVM, so a call needs no Python. The offsets are
those of the C structs in `xla/ffi/api/c_api.h`. They have not changed between the
versions that are known, and a handler checks the sizes of the structs that it reads.
"""

import ctypes
import itertools as it
import pathlib
import re
import threading
from collections.abc import Sequence

import jax

from .._errors import message, optional
from .._same import digest
from .interrupts import STOPPED, Shared, shared_address
from .llvm import Engine, attributes, this_machine

_MAJOR, _MINOR = 0, range(3, 6)
"""The versions of the structs that are known: those of jaxlib 0.10 to 0.12."""

# Sizes of structs, and offsets in them, in bytes.
_FRAME, _LIST, _BUFFER, _ERROR = 168, 40, 48, 28
_API, _ARGS, _RETS, _COUNT, _ARRAYS = 16, 40, 80, 16, 32
_DATA, _DIMS = 24, 40
_MAJOR_AT, _MINOR_AT, _CREATE_ERROR = 32, 36, 48
_METADATA = 1
_CANCELLED, _INTERNAL = 1, 13


def check_ffi() -> None:
    """Raise a `RuntimeError` if XLA has another version of the structs."""
    path = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = path.read_text() if path.exists() else ""
    found = re.findall(r"^#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)$", text, re.M)
    if len(found) != 2 or int(found[0]) != _MAJOR or int(found[1]) not in _MINOR:
        version = ".".join(found) or "unknown"
        raise RuntimeError(
            message(
                "kernel",
                f"the interface for native code of JAX {jax.__version__} has "
                f"the version {version}, and {_MAJOR}.{_MINOR[0]} to "
                f"{_MAJOR}.{_MINOR[-1]} are known.",
                "Use another version of jaxlib or of eqx_pipe, or sweep `fn` itself.",
            )
        )


def handler(num_inputs: int, num_outputs: int) -> str:
    """Return the handler that calls `@kernel(ptr inputs, ptr outputs, i64 lanes)`.

    Inputs and outputs are arrays of addresses. Each output has a leading axis over
    lanes. The kernel returns 1 if it was stopped, otherwise 0.
    """
    writer = _Writer()
    read = writer.read
    extension = read("%frame", 8)
    writer.branch(writer.make(f"icmp eq ptr {extension}, null"), "call", "described")
    writer.label("described")  # when it is registered, XLA asks for the version
    kind = read(extension, 8, "i32")
    known = writer.make(f"icmp eq i32 {kind}, {_METADATA}")
    writer.branch(known, "version", "unknown")
    writer.label("version")
    metadata = read(extension, 24)
    for offset, number in ((24, _MAJOR), (28, _MINOR[0])):
        writer.write(f"store i32 {number}, ptr {writer.at(metadata, offset)}")
    writer.write("ret ptr null")
    writer.label("call")
    api = read("%frame", _API)
    writer.check("i32", api, _MAJOR_AT, [_MAJOR])
    writer.check("i32", api, _MINOR_AT, _MINOR)
    writer.check("i64", "%frame", 0, [_FRAME])
    arrays, buffer = [], ""
    for place, count in ((_ARGS, num_inputs), (_RETS, num_outputs)):
        writer.check("i64", "%frame", place, [_LIST])
        writer.check("i64", "%frame", place + _COUNT, [count])
        buffers = read("%frame", place + _ARRAYS)
        arrays.append(f"ptr {writer.make(f'alloca ptr, i64 {count}')}")
        for k in range(count):
            buffer = read(buffers, 8 * k)
            writer.check("i64", buffer, 0, [_BUFFER])
            slot = writer.make(f"getelementptr ptr, {arrays[-1]}, i64 {k}")
            writer.write(f"store ptr {read(buffer, _DATA)}, ptr {slot}")
    lanes = f"i64 {read(read(buffer, _DIMS), 0, 'i64')}"
    shared = writer.make("load ptr, ptr @stop")
    writer.count(shared, Shared.begun.offset)
    result = writer.make(f"call i32 @kernel({', '.join([*arrays, lanes])})")
    writer.count(shared, Shared.ended.offset)
    stopped = writer.make(f"icmp ne i32 {result}, 0")
    writer.branch(stopped, "stopped", "ended")
    writer.label("ended")
    writer.write("ret ptr null")
    for label, code, text in (
        ("stopped", _CANCELLED, STOPPED),
        ("unknown", _INTERNAL, "eqx_pipe: structs of an unknown version of XLA's FFI"),
    ):
        writer.fail(label, code, text)
    head = "define ptr @handler(ptr %frame) {"
    return "\n".join([head, *writer.lines, "}", *writer.constants])


class _Writer:
    """The lines of a function that reads the structs of a frame."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: list[str] = []
        self._names = it.count()

    def write(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def make(self, text: str) -> str:
        name = f"%r{next(self._names)}"
        self.write(f"{name} = {text}")
        return name

    def at(self, struct: str, offset: int) -> str:
        return self.make(f"getelementptr i8, ptr {struct}, i64 {offset}")

    def read(self, struct: str, offset: int, kind: str = "ptr") -> str:
        return self.make(f"load {kind}, ptr {self.at(struct, offset)}")

    def count(self, struct: str, offset: int) -> None:
        """Add 1 to a number that threads share."""
        self.make(f"atomicrmw add ptr {self.at(struct, offset)}, i64 1 seq_cst")

    def branch(self, test: str, then: str, otherwise: str) -> None:
        self.write(f"br i1 {test}, label %{then}, label %{otherwise}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def check(
        self, kind: str, struct: str, offset: int, numbers: Sequence[int]
    ) -> None:
        """Go to `unknown` unless a field is one of some consecutive numbers."""
        least, count, following = numbers[0], len(numbers), f"c{next(self._names)}"
        beyond = self.make(f"sub {kind} {self.read(struct, offset, kind)}, {least}")
        self.branch(
            self.make(f"icmp ult {kind} {beyond}, {count}"), following, "unknown"
        )
        self.label(following)

    def fail(self, label: str, code: int, text: str) -> None:
        """Return an error from a label on."""
        data = text.encode() + bytes(1)
        shown = "".join(f"\\{byte:02x}" for byte in data)
        self.constants.append(
            f'@{label} = private constant [{len(data)} x i8] c"{shown}"'
        )
        self.label(label)
        error = self.make(f"alloca i8, i64 {_ERROR}, align 8")
        fields = f"i64 {_ERROR}", "ptr null", f"ptr @{label}", f"i32 {code}"
        for k, field in enumerate(fields):
            self.write(f"store {field}, ptr {self.at(error, 8 * k)}")
        create = self.read(self.read("%frame", _API), _CREATE_ERROR)
        self.write(f"ret ptr {self.make(f'call ptr {create}(ptr {error})')}")


_MOST = 1024
"""The most kernels of a process, 0.8 MB each: programs refer to them until it ends."""

_engines: dict[str, Engine] = {}
_lock = threading.Lock()


def registered(code: str, num_inputs: int, num_outputs: int) -> str:
    """Return the name by which XLA calls some code, which is built the first time.

    The name depends on everything that the machine code depends on, so a program that
    JAX reads from its persistent cache never calls another kernel.
    """
    machine = this_machine()
    parts = code, handler(num_inputs, num_outputs), attributes(machine)
    text = "\n".join(parts)
    name = f"eqx_pipe_kernel_{digest('|'.join([text, llvm_version(), *machine]))}"
    with _lock:
        if name in _engines:
            return name
        check_ffi()
        if len(_engines) == _MOST:
            raise RuntimeError(
                message(
                    "kernel",
                    f"this process has built {_MOST} kernels, and keeps all of them.",
                    "Let values that change be arrays: in the space, as arguments, or "
                    "closed over. Python numbers are part of a kernel.",
                )
            )
        engine = Engine(text, machine)
        stop = ctypes.c_void_p.from_address(engine.variable("stop"))
        stop.value = shared_address()
        pointer = jax.ffi.pycapsule(engine.address("handler"))
        jax.ffi.register_ffi_target(name, pointer, platform="cpu")
        _engines[name] = engine
    return name


def machine_text() -> str:
    """Return what the rounding of kernels depends on, besides their functions."""
    machine = this_machine()
    features = digest(machine.features)[:8]
    return f"llvmlite {llvm_version()} for {machine.cpu} (features #{features})"


def llvm_version() -> str:
    """Return the version of llvmlite, which contains LLVM."""
    return optional("kernel", "llvmlite", "kernels").__version__
