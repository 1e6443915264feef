"""LLVM: text of instructions that are defined for all inputs, and the engine.

Every number of a kernel is a `Value`: shared by all lanes of a block, or a vector with
one element per lane. Both have the same operators. LLVM leaves some results undefined
(a division by zero, a shift by the width, the conversion of an infinity to an integer).
Only this file writes such instructions, each after a guard, with XLA's results.
"""

import contextlib
import copy
import dataclasses
import functools as ft
import itertools as it
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import optional, value_error

_MOST_BYTES = 256 * 1024
"""The bytes that a kernel may keep on the stack; macOS gives some threads 512 KiB."""

MOST_LINES = 7000
"""LLVM takes about 1 s for so many lines, and cannot be interrupted."""

_TYPES = {
    "bool": "i1",
    "float32": "float",
    "float64": "double",
    **{
        f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
}
DTYPES = frozenset(_TYPES)
"""The names of the dtypes that kernels support."""

_COMPARISONS = {
    "f": dict(eq="oeq", ne="une", lt="olt", le="ole", gt="ogt", ge="oge"),
    "i": dict(eq="eq", ne="ne", lt="slt", le="sle", gt="sgt", ge="sge"),
    "u": dict(eq="eq", ne="ne", lt="ult", le="ule", gt="ugt", ge="uge"),
}


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A number of a kernel: a constant or a register, for a point or for each lane."""

    code: "Code"
    text: str
    dtype: np.dtype
    lanes: bool = False
    number: Any = None
    """The number, if it is known."""

    @property
    def kind(self) -> str:
        """The kind of the dtype as in NumPy, where a `bool` counts as unsigned."""
        return "u" if self.dtype.kind == "b" else self.dtype.kind

    @property
    def bits(self) -> int:
        """The width of the dtype."""
        return 1 if self.dtype.kind == "b" else 8 * self.dtype.itemsize

    @property
    def type(self) -> str:
        """The LLVM type."""
        return self.code.type(self.dtype, self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def changed(self, **changes: Any) -> "Value":
        """Return a value with other attributes."""
        return dataclasses.replace(self, **({"number": None} | changes))

    def like(self, number: Any) -> "Value":
        """Return a constant of this dtype."""
        if isinstance(number, Value):
            return number
        return self.code.constant(number, self.dtype)

    def __add__(self, other: Any) -> "Value":
        return self.code.arithmetic("add", self, self.like(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Value":
        return self.code.arithmetic("sub", self, self.like(other))

    def __rsub__(self, other: Any) -> "Value":
        return self.like(other) - self

    def __mul__(self, other: Any) -> "Value":
        return self.code.arithmetic("mul", self, self.like(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Value":
        return self.code.op(f"fdiv {self.code.flags}", self, self.like(other))

    def __rtruediv__(self, other: Any) -> "Value":
        return self.like(other) / self

    def __neg__(self) -> "Value":
        return self.code.op("fneg", self) if self.kind == "f" else 0 - self

    def __and__(self, other: Any) -> "Value":
        return self.code.op("and", self, self.like(other))

    def __or__(self, other: Any) -> "Value":
        return self.code.op("or", self, self.like(other))

    def __xor__(self, other: Any) -> "Value":
        return self.code.op("xor", self, self.like(other))

    def __invert__(self) -> "Value":
        return self ^ (True if self.dtype.kind == "b" else ~self.dtype.type(0))

    def __lt__(self, other: Any) -> "Value":
        return self.compare("lt", other)

    def __le__(self, other: Any) -> "Value":
        return self.compare("le", other)

    def __gt__(self, other: Any) -> "Value":
        return self.compare("gt", other)

    def __ge__(self, other: Any) -> "Value":
        return self.compare("ge", other)

    def compare(self, how: str, other: Any) -> "Value":
        """Compare as JAX does: all but `ne` are false for NaN."""
        float_or_int = "fcmp" if self.kind == "f" else "icmp"
        predicate = _COMPARISONS[self.kind][how]
        operator = f"{float_or_int} {predicate}"
        return self.code.op(operator, self, self.like(other), dtype=np.dtype(bool))

    def equals(self, other: Any) -> "Value":
        """Compare; `==` of `Value`s compares the registers."""
        return self.compare("eq", other)

    def is_nan(self) -> "Value":
        """Return whether the value is NaN."""
        return self.compare("ne", self)

    def where(self, then: Any, otherwise: Any) -> "Value":
        """Return `then` where this is true, `otherwise` elsewhere."""
        then = otherwise.like(then) if isinstance(otherwise, Value) else then
        return self.code.select(self, then, then.like(otherwise))

    def call(self, name: str, *others: Any) -> "Value":
        """Call a function of LLVM that takes and returns values of this type."""
        return self.code.intrinsic(name, self, *map(self.like, others))

    def view(self, dtype: Any) -> "Value":
        """Return the value with the same bits and another dtype."""
        dtype = np.dtype(dtype)
        if self.code.type(dtype) == self.code.type(self.dtype):
            return self.changed(dtype=dtype, number=self.number)
        return self.code.convert_by("bitcast", self, dtype)

    def to(self, dtype: Any) -> "Value":
        """Convert to another dtype as XLA does: floats to the nearest integer."""
        return _converted(self, np.dtype(dtype))


class Code:
    """The instructions of a kernel, as they are written."""

    def __init__(self, width: int, strict: bool):
        self.width, self.flags = width, "" if strict else "contract"
        self.lines: list[str] = []
        self.allocations: list[str] = []
        self._bytes = 0
        self.declarations: set[str] = set()
        self.functions: dict[str, tuple[str, str, list[Value]]] = {}
        self._names = it.count()

    def type(self, dtype: np.dtype, lanes: bool = False) -> str:
        """Return the LLVM type of a dtype."""
        name = _TYPES[dtype.name]
        return f"<{self.width} x {name}>" if lanes else name

    def name(self, stem: str = "v") -> str:
        """Return a new name for a register or a label."""
        return f"{stem}{next(self._names)}"

    def emit(self, line: str) -> None:
        """Append an instruction without a result."""
        if len(self.lines) >= MOST_LINES:
            raise value_error(
                "kernel",
                f"`fn` takes more than {MOST_LINES} lines of LLVM's code, whose "
                "compilation takes too long.",
                "Use smaller arrays or shorter loops without carries in Python, or "
                "sweep `fn` itself.",
            )
        self.lines.append(f"  {line}")

    def register(self, text: str, stem: str = "v") -> str:
        """Append an instruction, and return the register of its result."""
        name = f"%{self.name(stem)}"
        self.emit(f"{name} = {text}")
        return name

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")

    def jump(self, name: str) -> None:
        """Go to a basic block."""
        self.emit(f"br label %{name}")

    def branch(self, test: Value, then: str, otherwise: str) -> None:
        """Go to one of two basic blocks."""
        self.emit(f"br {test}, label %{then}, label %{otherwise}")

    def allocate(
        self, dtype: np.dtype, lanes: bool, count: int = 1, *, zeros: bool = False
    ) -> str:
        """Reserve memory on the stack for some values, and return its address."""
        self._bytes += count * dtype.itemsize * (self.width if lanes else 1)
        if self._bytes > _MOST_BYTES:
            raise value_error(
                "kernel",
                f"the loops, scans and branches of `fn` keep more than {_MOST_BYTES} "
                "bytes for a block of points, and the stack of a thread is small.",
                "Use smaller carries, fewer inputs or shorter scans, or sweep `fn` "
                "itself.",
            )
        name, kind = f"%{self.name('m')}", self.type(dtype, lanes)
        # Aligned as the type asks: loads assume that, of long vectors 512 bytes.
        self.allocations.append(f"  {name} = alloca {kind}, i64 {count}")
        if zeros:
            self.allocations.append(f"  store {kind} zeroinitializer, ptr {name}")
        return name

    def load(self, slot: str, dtype: np.dtype, lanes: bool = False) -> Value:
        """Read a value from memory."""
        text = self.register(f"load {self.type(dtype, lanes)}, ptr {slot}")
        return Value(self, text, dtype, lanes)

    def store(self, value: Value, slot: str) -> None:
        """Write a value to memory."""
        self.emit(f"store {value}, ptr {slot}")

    def each_lane(self, numbers: Iterable[int], dtype: Any = "int64") -> Value:
        """Return a vector of known integers."""
        dtype = np.dtype(dtype)
        kind = self.type(dtype)
        text = ", ".join(f"{kind} {k}" for k in numbers)
        return Value(self, f"<{text}>", dtype, lanes=True)

    def constant(self, number: Any, dtype: Any) -> Value:
        """Return a constant, exactly."""
        dtype = np.dtype(dtype)
        with np.errstate(over="ignore"):
            number = np.asarray(number).astype(dtype)[()]
        if dtype.kind == "f":
            text = f"0x{_double_bits(number):016X}"
        else:
            text = str(number).lower() if dtype.kind == "b" else str(int(number))
        return Value(self, text, dtype, number=number)

    def spread(self, value: Value) -> Value:
        """Return a value that all lanes share as a vector."""
        if value.lanes:
            return value
        vector = value.changed(lanes=True, number=value.number)
        if value.number is not None:
            return vector.changed(text=f"splat ({value.type} {value.text})")
        first = self.register(f"insertelement {vector.type} poison, {value}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        text = f"shufflevector {vector.type} {first}, {vector.type} poison, {zeros}"
        return vector.changed(text=self.register(text))

    def together(self, *values: Value) -> list[Value]:
        """Return vectors if one of the values is a vector."""
        if any(v.lanes for v in values):
            return [self.spread(v) for v in values]
        return list(values)

    def op(
        self, name: str, *values: Value, dtype: np.dtype | None = None, stem: str = "v"
    ) -> Value:
        """Apply an instruction to values of one dtype."""
        values = tuple(self.together(*values))
        texts = ", ".join(v.text for v in values)
        text = self.register(f"{name} {values[0].type} {texts}", stem)
        return Value(self, text, dtype or values[0].dtype, values[0].lanes)

    def arithmetic(self, name: str, x: Value, y: Value) -> Value:
        """Add, subtract or multiply; integers wrap around."""
        return self.op(f"f{name} {self.flags}" if x.kind == "f" else name, x, y)

    def select(self, test: Value, then: Value, otherwise: Value) -> Value:
        """Return one of two values."""
        if test.lanes or then.lanes or otherwise.lanes:
            then, otherwise = self.spread(then), self.spread(otherwise)
        text = self.register(f"select {test}, {then}, {otherwise}")
        return then.changed(text=text)

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Declare a function, and return the text that calls it.

        Arguments are pairs of a type and a number or register.
        """
        kinds = ", ".join(kind for kind, _ in arguments)
        self.declarations.add(f"declare {result} {function}({kinds}) nounwind")
        return f"call {result} {function}({', '.join(map(' '.join, arguments))})"

    def intrinsic(self, name: str, *values: Value, tail: Sequence[Any] = ()) -> Value:
        """Call a function of LLVM on values of one dtype, which it returns."""
        values = tuple(self.together(*values))
        kind, end = values[0].type, self.suffix(values[0].dtype, values[0].lanes)
        arguments = *((kind, v.text) for v in values), *tail
        text = self.register(self.call(kind, f"@llvm.{name}.{end}", *arguments))
        return values[0].changed(text=text)

    def convert_by(self, name: str, value: Value, dtype: np.dtype) -> Value:
        """Apply an instruction that converts."""
        result = value.changed(dtype=dtype)
        return result.changed(text=self.register(f"{name} {value} to {result.type}"))

    def saturate(self, value: Value, dtype: np.dtype) -> Value:
        """Convert a float to the nearest integer of a dtype towards 0; NaN to 0."""
        result = value.changed(dtype=dtype)
        name = "fptosi" if dtype.kind == "i" else "fptoui"
        ends = (self.suffix(v.dtype, v.lanes) for v in (result, value))
        function = f"@llvm.{name}.sat.{'.'.join(ends)}"
        text = self.call(result.type, function, (value.type, value.text))
        return result.changed(text=self.register(text))

    def mask_bits(self, test: Value) -> Value:
        """Return the truth of each lane as the bits of an integer."""
        dtype = np.dtype(f"uint{self.width}")
        return Value(
            self, self.register(f"bitcast {test} to {self.type(dtype)}"), dtype
        )

    def any(self, test: Value) -> Value:
        """Return whether a value is true in a lane."""
        return self.mask_bits(test).compare("ne", 0) if test.lanes else test

    def libm(self, name: str, *values: Value) -> Value:
        """Call a function of C's library, lane by lane."""
        if any(v.lanes for v in values):

            def each(*values: Value) -> list[Value]:
                return values[0].code._lane_by_lane(name, *values)

            return self.function(f"each.{name}", each, *values)[0]
        kind = values[0].type
        arguments = ((kind, v.text) for v in values)
        text = self.register(self.call(kind, f"@libm.{name}", *arguments))
        return values[0].changed(text=text)

    def _lane_by_lane(self, name: str, *values: Value) -> list[Value]:
        out = values[0].changed(text="poison")
        for lane in range(self.width):
            texts = [self.register(f"extractelement {v}, i64 {lane}") for v in values]
            numbers = (
                v.changed(text=t, lanes=False)
                for v, t in zip(values, texts, strict=True)
            )
            number = self.libm(name, *numbers)
            text = self.register(f"insertelement {out}, {number}, i64 {lane}")
            out = out.changed(text=text)
        return [out]

    def suffix(self, dtype: np.dtype, lanes: bool) -> str:
        """Return how names of LLVM's functions end for a type."""
        bits = self.type(dtype).removeprefix("i")
        name = {"float": "f32", "double": "f64"}.get(bits, f"i{bits}")
        return f"v{self.width}{name}" if lanes else name

    def function(
        self,
        name: str,
        write: Callable[..., Sequence[Value]],
        *values: Value,
        inlined: bool = True,
    ) -> list[Value]:
        """Call a function of the kernel, which is written at its first call.

        LLVM decides whether to copy it to where it is called, unless it never does.
        """
        values = tuple(self.together(*values))
        # Signed and unsigned integers are one type of LLVM.
        dtypes = ".".join(v.dtype.name for v in values)
        name = f"{name}.{dtypes}.{'lanes' if values[0].lanes else 'shared'}"
        if name not in self.functions:
            inner = copy.copy(self)  # shares its names, declarations and functions
            inner.lines, inner.allocations = [], []
            given = [v.changed(code=inner, text=f"%x{k}") for k, v in enumerate(values)]
            outputs, result = list(write(*given)), "poison"
            kinds = f"{{ {', '.join(v.type for v in outputs)} }}"
            for k, v in enumerate(outputs):
                result = inner.register(f"insertvalue {kinds} {result}, {v}, {k}")
            inner.emit(f"ret {kinds} {result}")
            head = f"{kinds} @{name}({', '.join(map(str, given))})"
            head += "" if inlined else " noinline"
            self.functions[name] = inner.definition(head), kinds, outputs
        _, kinds, outputs = self.functions[name]
        text = self.register(f"call {kinds} @{name}({', '.join(map(str, values))})")
        texts = (f"extractvalue {kinds} {text}, {k}" for k in range(len(outputs)))
        results = zip(outputs, map(self.register, texts), strict=True)
        return [v.changed(code=self, text=text) for v, text in results]

    def definition(self, head: str) -> str:
        """Return the function of these instructions."""
        lines = *self.allocations, *self.lines
        return "\n".join([f"define internal {head} #0 {{", *lines, "}"])

    def patched(
        self, value: Value, test: Value, other: Callable[..., Value], *values: Value
    ) -> Value:
        """Return a function of values in the lanes, few, where `test` is true."""
        slot = self.allocate(value.dtype, value.lanes)
        self.store(value, slot)
        with self.only_if(self.any(test)):
            inputs = (test.where(v, v.like(0)) for v in values)
            self.store(test.where(other(*inputs), value), slot)
        return self.load(slot, value.dtype, value.lanes)

    @contextlib.contextmanager
    def only_if(self, test: Value) -> Iterator[None]:
        """Skip the instructions that are written in this context if `test` is false."""
        then, end = self.name("then"), self.name("end")
        self.branch(test, then, end)
        self.label(then)
        yield
        self.jump(end)
        self.label(end)


def divided(x: Value, y: Value, part: int) -> Value:
    """Return the quotient (0) or the remainder (1) of integers as XLA does.

    The quotient is towards 0. A division by 0 gives -1 and `x`, and none overflows.
    """
    parts = _quotient, _remainder
    is_constant = not y.text.startswith("%")  # by which LLVM multiplies instead
    if is_constant or not (x.lanes or y.lanes):
        return parts[part](x, y)

    # Processors divide lane by lane, by so many instructions that LLVM would take
    # minutes for 500 divisions in one function. It merges calls for the same numbers.
    def both(x: Value, y: Value) -> list[Value]:
        return [of(x, y) for of in parts]

    return x.code.function("divided", both, x, y, inlined=False)[part]


def _quotient(x: Value, y: Value) -> Value:
    safe, by_zero, overflow = _safe_divisor(x, y)
    result = x.code.op("sdiv" if x.kind == "i" else "udiv", x, safe)
    result = by_zero.where(x.like(~x.dtype.type(0)), result)
    return overflow.where(x, result) if overflow is not None else result


def _remainder(x: Value, y: Value) -> Value:
    safe, by_zero, overflow = _safe_divisor(x, y)
    result = x.code.op("srem" if x.kind == "i" else "urem", x, safe)
    result = by_zero.where(x, result)
    return overflow.where(0, result) if overflow is not None else result


def _safe_divisor(x: Value, y: Value) -> tuple[Value, Value, Value | None]:
    """Return a divisor with a defined result, and where it is not `y`."""
    by_zero, overflow = y.equals(0), None
    unsafe = by_zero
    if x.kind == "i":
        overflow = y.equals(-1) & x.equals(np.iinfo(x.dtype).min)
        unsafe = by_zero | overflow
    code = x.code
    test, one, y = code.together(unsafe, y.like(1), y)
    text = code.register(f"select {test}, {one}, {y}", "safe")
    return y.changed(text=text), by_zero, overflow


def shift(name: str, x: Value, y: Value) -> Value:
    """Shift by `shl`, `lshr` or `ashr`; by the width or more, shift out all bits."""
    code, most = x.code, x.bits - 1
    if y.number is not None and 0 <= y.number <= most:
        return code.op(name, x, y)
    inside = y.view(y.dtype.str.replace("i", "u")) <= most
    test, y, other = code.together(inside, y, y.like(most))
    safe = y.changed(text=code.register(f"select {test}, {y}, {other}", "safe"))
    result = code.op(name, x, safe)
    return result if name == "ashr" else inside.where(result, x.like(0))


def _converted(value: Value, dtype: np.dtype) -> Value:
    code, kind = value.code, value.kind
    if dtype == value.dtype:
        return value
    if dtype.kind == "b":
        return value.compare("ne", 0)
    if kind == "f" and dtype.kind in "iu":
        return code.saturate(value, dtype)
    bits = 8 * dtype.itemsize
    if kind == "f":
        return code.convert_by(
            "fpext" if bits > value.bits else "fptrunc", value, dtype
        )
    if dtype.kind == "f":
        return code.convert_by("sitofp" if kind == "i" else "uitofp", value, dtype)
    if bits == value.bits:
        return value.changed(dtype=dtype)
    widen = "sext" if kind == "i" else "zext"
    return code.convert_by("trunc" if bits < value.bits else widen, value, dtype)


def _double_bits(number: Any) -> int:
    """Return the bits of the double by which LLVM's text writes a float."""
    return struct.unpack("<Q", struct.pack("<d", float(number)))[0]


class Machine(NamedTuple):
    """The processor for which kernels are compiled."""

    triple: str
    cpu: str
    features: str

    @property
    def vector_bytes(self) -> int:
        """The size of a vector register."""
        enabled = self.features.split(",")
        if "+avx512f" in enabled:
            return 64
        return 32 if "+avx2" in enabled else 16


class Engine:
    """Machine code, which is freed when the last reference to it is dropped."""

    def __init__(self, text: str, machine: Machine):
        llvm, target = binding(), _target(machine)
        # With the sizes and alignments of types that the machine code will assume.
        layout = f'target datalayout = "{target.target_data}"'
        module = llvm.parse_assembly(f"{layout}\n{text}")
        module.triple = machine.triple
        module.verify()
        passes = llvm.create_pass_builder(
            target, llvm.create_pipeline_tuning_options(speed_level=3)
        )
        passes.getModulePassManager().run(module, passes)
        self._engine = llvm.create_mcjit_compiler(module, target)
        for function in module.functions:
            prefix, _, name = function.name.partition(".")
            if prefix == "libm":
                address = llvm.address_of_symbol(name)
                if address is None:
                    raise value_error(
                        "kernel",
                        f"C's library of this system has no function `{name}`.",
                        "Sweep `fn` itself.",
                    )
                self._engine.add_global_mapping(function, address)
        self._engine.finalize_object()

    def address(self, function: str) -> int:
        """Return the address of a function."""
        return self._engine.get_function_address(function)

    def variable(self, name: str) -> int:
        """Return the address of a global variable."""
        return self._engine.get_global_value_address(name)


@ft.cache
def binding() -> Any:
    """Return the bindings of LLVM, ready to compile for this processor."""
    llvm = optional("kernel", "llvmlite.binding", "kernels")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@ft.cache
def this_machine() -> Machine:
    """Return the processor of this process."""
    llvm = binding()
    features = llvm.get_host_cpu_features().flatten()
    return Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def _target(machine: Machine) -> Any:
    target = binding().Target.from_triple(machine.triple)
    return target.create_target_machine(
        opt=3, cpu=machine.cpu, features=machine.features
    )


def attributes(machine: Machine) -> str:
    """Return the attributes of the functions of a kernel.

    Vectors that are kept on the stack take twice as long across two lines of the cache.
    """
    size = machine.vector_bytes
    return (
        f'attributes #0 = {{ nounwind alignstack={size} "no-trapping-math"="true" '
        f'"prefer-vector-width"="{8 * size}" }}'
    )
