"""The registry of native code, which XLA calls by handlers of its typed FFI.

Handlers are written in the language of LLVM, so a call needs no Python. The offsets are
those of the C structs in `xla/ffi/api/c_api.h`. They have not changed between the
versions that are known, and a handler checks the sizes of the structs that it reads.
"""

import ctypes
import pathlib
import platform
import re
import threading
from collections.abc import Sequence

import jax
import numpy as np

from .._errors import message, optional
from .._same import digest
from .interrupts import STOPPED, Shared, shared_address
from .llvm import Code, Engine, Value, attributes, this_machine

_MAJOR, _MINOR = 0, range(3, 6)
"""The versions of the structs that are known: those of jaxlib 0.10 to 0.12."""

# The sizes of `XLA_FFI_CallFrame`, of its lists `XLA_FFI_Args` and `_Rets`, of
# `XLA_FFI_Buffer` and of `XLA_FFI_Error_Create_Args`, in bytes.
_FRAME, _LIST, _BUFFER, _ERROR = 168, 40, 48, 28
# Where the fields of a frame begin (`api`, `args`, `rets`), of a list (`size`, the
# pointers), of a buffer (`data`, `dims`), and of `XLA_FFI_Api` (`api_version` with
# its `major_version` and `minor_version`, `XLA_FFI_Error_Create`).
_API, _ARGS, _RETS = 16, 40, 80
_COUNT, _ARRAYS = 16, 32
_DATA, _DIMS = 24, 40
_MAJOR_AT, _MINOR_AT, _CREATE_ERROR = 32, 36, 48
# `XLA_FFI_Extension_Metadata`, and two of `XLA_FFI_Error_Code`.
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
    code = _Handler()
    read = code.read
    extension = read("%frame", 8)
    code.branch(code.test(f"eq ptr {extension}, null"), "call", "described")
    code.label("described")  # when it is registered, XLA asks for the version
    kind = read(extension, 8, "i32")
    code.branch(code.test(f"eq i32 {kind}, {_METADATA}"), "version", "unknown")
    code.label("version")
    metadata = read(extension, 24)
    for offset, number in ((24, _MAJOR), (28, _MINOR[0])):
        code.emit(f"store i32 {number}, ptr {code.at(metadata, offset)}")
    code.emit("ret ptr null")
    code.label("call")
    api = read("%frame", _API)
    code.check("i32", api, _MAJOR_AT, [_MAJOR])
    code.check("i32", api, _MINOR_AT, _MINOR)
    code.check("i64", "%frame", 0, [_FRAME])
    arrays, buffer = [], ""
    for place, count in ((_ARGS, num_inputs), (_RETS, num_outputs)):
        code.check("i64", "%frame", place, [_LIST])
        code.check("i64", "%frame", place + _COUNT, [count])
        buffers = read("%frame", place + _ARRAYS)
        arrays.append(f"ptr {code.register(f'alloca ptr, i64 {count}')}")
        for k in range(count):
            buffer = read(buffers, 8 * k)
            code.check("i64", buffer, 0, [_BUFFER])
            slot = code.register(f"getelementptr ptr, {arrays[-1]}, i64 {k}")
            code.emit(f"store ptr {read(buffer, _DATA)}, ptr {slot}")
    lanes = f"i64 {read(read(buffer, _DIMS), 0, 'i64')}"
    shared = code.register("load ptr, ptr @stop")
    code.count(shared, Shared.begun.offset)
    result = code.register(f"call i32 @kernel({', '.join([*arrays, lanes])})")
    code.count(shared, Shared.ended.offset)
    code.branch(code.test(f"ne i32 {result}, 0"), "stopped", "ended")
    code.label("ended")
    code.emit("ret ptr null")
    code.fail("stopped", _CANCELLED, STOPPED)
    unknown = "eqx_pipe: structs of an unknown version of XLA's FFI"
    code.fail("unknown", _INTERNAL, unknown)
    head = "define ptr @handler(ptr %frame) {"
    return "\n".join([head, *code.lines, "}", *code.constants])


class _Handler(Code):
    """The code of a function that reads the structs of a frame."""

    def __init__(self) -> None:
        super().__init__(1, strict=True)
        self.constants: list[str] = []

    def at(self, struct: str, offset: int) -> str:
        return self.register(f"getelementptr i8, ptr {struct}, i64 {offset}")

    def read(self, struct: str, offset: int, kind: str = "ptr") -> str:
        return self.register(f"load {kind}, ptr {self.at(struct, offset)}")

    def count(self, struct: str, offset: int) -> None:
        """Add 1 to a number that threads share."""
        self.register(f"atomicrmw add ptr {self.at(struct, offset)}, i64 1 seq_cst")

    def test(self, comparison: str) -> Value:
        return Value(self, self.register(f"icmp {comparison}"), np.dtype(bool))

    def check(
        self, kind: str, struct: str, offset: int, numbers: Sequence[int]
    ) -> None:
        """Go to `unknown` unless a field is one of some consecutive numbers."""
        following, field = self.name("c"), self.read(struct, offset, kind)
        beyond = self.register(f"sub {kind} {field}, {numbers[0]}")
        test = self.test(f"ult {kind} {beyond}, {len(numbers)}")
        self.branch(test, following, "unknown")
        self.label(following)

    def fail(self, label: str, code: int, text: str) -> None:
        """Return an error from a label on."""
        data = text.encode() + bytes(1)
        shown = "".join(f"\\{byte:02x}" for byte in data)
        kind = f"[{len(data)} x i8]"
        self.constants.append(f'@{label} = private constant {kind} c"{shown}"')
        self.label(label)
        error = self.register(f"alloca i8, i64 {_ERROR}, align 8")
        fields = f"i64 {_ERROR}", "ptr null", f"ptr @{label}", f"i32 {code}"
        for k, field in enumerate(fields):
            self.emit(f"store {field}, ptr {self.at(error, 8 * k)}")
        create = self.read(self.read("%frame", _API), _CREATE_ERROR)
        self.emit(f"ret ptr {self.register(f'call ptr {create}(ptr {error})')}")


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
    # Of macOS and Windows, C's library is a part of the system.
    library = " ".join(platform.libc_ver()).strip() or platform.platform()
    processor = f"{machine.cpu} (features #{features})"
    return f"llvmlite {llvm_version()} for {processor} with {library}"


def llvm_version() -> str:
    """Return the version of llvmlite, which contains LLVM."""
    return optional("kernel", "llvmlite", "kernels").__version__
