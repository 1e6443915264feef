"""From a program of scalars to the code of a block of lanes.

A block runs the whole program for a number of points, its lanes. Numbers that do not
depend on the point are kept once, all others in vectors. A loop whose lanes take
different numbers of steps goes on until all have finished, and keeps the carries of
those that have; a branch is skipped if no lane takes it. The mask of lanes is passed
down, so that a loop inside of another never runs for a lane that has finished.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import value_error
from .elementary import threefry
from .elementwise import ELEMENTWISE
from .llvm import Code, Value
from .scalars import (
    Block,
    Choice,
    Draw,
    Load,
    Loop,
    Operation,
    Program,
    Scalar,
    Store,
    Table,
)

_BOOL, _INDEX = np.dtype(bool), np.dtype("int64")
# A short branch is cheaper than a jump.
_MOST_IN_LINE = 16
_MOST_BYTES = 256 * 1024


class Result(NamedTuple):
    """An array of results: the dtype, and how many numbers it has for a point."""

    dtype: np.dtype
    size: int


def kernel_code(program: Program, results: Sequence[Result], code: Code) -> str:
    """Return the LLVM function that computes a program for `n` points.

    Its arguments are the addresses of the operands and of the results, the number of
    points, at least as many as a block has lanes, and it returns 1 if it was stopped.
    """
    writer = _Writer(code, program)
    operands = program.operands
    inputs = [_argument(code, "%operands", k) for k in range(len(operands))]
    outputs = [_argument(code, "%results", k) for k in range(len(results))]
    code.emit("%stop = load ptr, ptr @stop")
    code.emit(f"%last = sub i64 %n, {code.width}")
    for operand, base in zip(operands, inputs, strict=True):
        if not operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                writer.values[scalar] = _load(code, base, scalar.dtype, at)
    first = code.allocate("i64")
    code.emit(f"store i64 0, ptr {first}")
    code.jump("blocks")
    code.label("blocks")
    code.emit(f"%begin = load i64, ptr {first}")
    code.emit("%more = icmp slt i64 %begin, %n")
    code.emit("br i1 %more, label %block, label %end")
    code.label("block")
    # The last block overlaps the one before, and writes the same values again.
    code.emit("%full = icmp slt i64 %begin, %last")
    code.emit("%at = select i1 %full, i64 %begin, i64 %last")
    for operand, base in zip(operands, inputs, strict=True):
        if operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                places = _places(code, len(operand.scalars), at)
                writer.values[scalar] = _gather(code, base, scalar.dtype, places)
    writer.steps(program.block.steps, None)
    scalars = iter(program.block.outputs)
    for result, base in zip(results, outputs, strict=True):
        for at in range(result.size):
            value = code.spread(writer.read(next(scalars)))
            _scatter(code, base, value, _places(code, result.size, at))
    code.emit(f"%next = add i64 %begin, {code.width}")
    code.emit(f"store i64 %next, ptr {first}")
    code.jump("blocks")
    code.label("end")
    code.emit("ret i32 0")
    code.label("stopped")
    code.emit("ret i32 1")
    return "\n".join(
        [
            "@stop = global ptr null",
            *(text for text, _ in code.functions.values()),
            "define internal i32 @kernel(ptr %operands, ptr %results, i64 %n) #0 {",
            *code.allocations,
            *code.lines,
            "}",
            *sorted(code.declarations),
        ]
    )


def _argument(code: Code, base: str, place: int) -> str:
    """Return the address of an array."""
    slot = code.register(f"getelementptr ptr, ptr {base}, i64 {place}")
    return code.register(f"load ptr, ptr {slot}")


def _memory(code: Code, dtype: np.dtype) -> str:
    """Return the type of a dtype in memory, where a bool is a byte."""
    return "i8" if dtype == _BOOL else code.type(dtype)


def _load(code: Code, base: str, dtype: np.dtype, place: int) -> Value:
    kind = _memory(code, dtype)
    address = code.register(f"getelementptr {kind}, ptr {base}, i64 {place}")
    text = code.register(f"load {kind}, ptr {address}")
    return _from_memory(code, Value(code, text, dtype))


def _from_memory(code: Code, value: Value) -> Value:
    if value.dtype != _BOOL:
        return value
    byte = value.changed(dtype=np.dtype("uint8"))
    return byte.compare("ne", 0)


def _places(code: Code, size: int, at: int) -> str:
    """Return the indices of an element of each lane, in an array of points."""
    steps = ", ".join(f"i64 {lane * size + at}" for lane in range(code.width))
    first = code.register(f"mul i64 %at, {size}")
    first = code.spread(Value(code, first, _INDEX)).text
    return code.register(f"add <{code.width} x i64> {first}, <{steps}>")


def _addresses(code: Code, base: str, kind: str, places: str) -> str:
    indices = f"<{code.width} x i64> {places}"
    return code.register(f"getelementptr {kind}, ptr {base}, {indices}")


def _gather(code: Code, base: str, dtype: np.dtype, places: str) -> Value:
    width, kind = code.width, _memory(code, dtype)
    vector, name = f"<{width} x {kind}>", code.suffix(kind)
    function = f"@llvm.masked.gather.{name}.v{width}p0"
    arguments = f"<{width} x ptr>", f"<{width} x i1>", vector
    code.declarations.add(f"declare {vector} {function}({', '.join(arguments)})")
    addresses = _addresses(code, base, kind, places)
    text = code.register(
        f"call {vector} {function}(<{width} x ptr> {addresses}, "
        f"<{width} x i1> splat (i1 true), {vector} zeroinitializer)"
    )
    return _from_memory(code, Value(code, text, dtype, lanes=True))


def _scatter(code: Code, base: str, value: Value, places: str) -> None:
    width, kind = code.width, _memory(code, value.dtype)
    vector, name = f"<{width} x {kind}>", code.suffix(kind)
    function = f"@llvm.masked.scatter.{name}.v{width}p0"
    arguments = vector, f"<{width} x ptr>", f"<{width} x i1>"
    code.declarations.add(f"declare void {function}({', '.join(arguments)})")
    addresses = _addresses(code, base, kind, places)
    value = value.to("uint8") if value.dtype == _BOOL else value
    code.emit(
        f"call void {function}({value}, <{width} x ptr> {addresses}, "
        f"<{width} x i1> splat (i1 true))"
    )


class _Writer:
    """The values of scalars, as their code is written."""

    def __init__(self, code: Code, program: Program):
        self.code = code
        self.values: dict[Scalar, Value] = {}
        of_points = [o for o in program.operands if o.lanes]
        self.varying = {s for operand in of_points for s in operand.scalars}
        self.varying_tables: set[object] = set()
        before = -1
        # A carry may depend on the point only from a later step on.
        while before < (before := len(self.varying) + len(self.varying_tables)):
            self._mark(program.block.steps)
        self.memory: dict[object, str] = {}
        self.table_bytes = 0

    def _mark(self, steps: Sequence[Any]) -> None:
        """Add the scalars that depend on the point, in a pass over the steps."""
        for step in steps:
            match step:
                case Operation():
                    if any(s in self.varying for s in step.inputs):
                        self.varying.add(step.output)
                case Draw():
                    if any(s in self.varying for s in step.inputs):
                        self.varying.update(step.outputs)
                case Store():
                    if step.value in self.varying or step.place in self.varying:
                        self.varying_tables.add(step.table.identity)
                case Load():
                    table = step.table.identity in self.varying_tables
                    if table or step.place in self.varying:
                        self.varying.add(step.output)
                case Loop():
                    self._mark_loop(step)
                case Choice():
                    self._mark_choice(step)

    def _mark_loop(self, loop: Loop) -> None:
        self._mark(loop.test.steps)
        waits = loop.test.outputs[0] in self.varying
        carries = zip(loop.init, loop.carry, loop.body.outputs, strict=True)
        for init, carry, new in carries:
            if waits or init in self.varying or new in self.varying:
                self.varying.add(carry)
        self._mark(loop.body.steps)

    def _mark_choice(self, choice: Choice) -> None:
        for branch in choice.branches:
            self._mark(branch.steps)
        for out, *options in zip(
            choice.outputs, *(b.outputs for b in choice.branches), strict=True
        ):
            if any(s in self.varying for s in (choice.which, *options)):
                self.varying.add(out)

    def read(self, scalar: Scalar) -> Value:
        """Return the value of a scalar."""
        if scalar.known is not None:
            return self.code.constant(scalar.known, scalar.dtype)
        return self.values[scalar]

    def as_marked(self, scalar: Scalar, value: Value) -> Value:
        """Return a value as a vector if `scalar` depends on the point."""
        return self.code.spread(value) if scalar in self.varying else value

    def steps(self, steps: Sequence[Any], mask: Value | None) -> None:
        """Write the code of steps; `mask` has the lanes whose results are used."""
        for step in steps:
            match step:
                case Operation():
                    inputs = self.code.together(*map(self.read, step.inputs))
                    function = ELEMENTWISE[step.primitive]
                    self.values[step.output] = function(*inputs, **step.params)
                case Draw():
                    words = map(self.read, step.inputs)
                    draws = self.code.function("threefry", threefry, *words)
                    self.values |= zip(step.outputs, draws, strict=True)
                case Store():
                    address, varying = self._address(step)
                    value = self.read(step.value)
                    value = self.code.spread(value) if varying else value
                    self.code.emit(f"store {value}, ptr {address}")
                case Load():
                    address, varying = self._address(step)
                    kind = self.code.type(step.table.dtype, varying)
                    text = self.code.register(f"load {kind}, ptr {address}")
                    value = Value(self.code, text, step.table.dtype, varying)
                    self.values[step.output] = value
                case Loop():
                    self._loop(step, mask)
                case Choice():
                    self._choice(step, mask)

    def _address(self, step: Store | Load) -> tuple[str, bool]:
        """Return the address of a number in a table, whose index lanes share."""
        table = step.table
        varying = table.identity in self.varying_tables
        kind = self.code.type(table.dtype, varying)
        if table.identity not in self.memory:
            self.memory[table.identity] = self._table(kind, table, varying)
        index = self.read(step.place)
        base = self.memory[table.identity]
        text = f"getelementptr {kind}, ptr {base}, {index}"
        return self.code.register(text), varying

    def _table(self, kind: str, table: Table, varying: bool) -> str:
        lanes = self.code.width if varying else 1
        self.table_bytes += lanes * table.size * table.dtype.itemsize
        if self.table_bytes > _MOST_BYTES:
            raise value_error(
                "kernel",
                f"the arrays of the scans in `fn` take more than {_MOST_BYTES} bytes "
                "for a block of points, and the stack of a thread is small.",
                "Use shorter scans, or sweep `fn` itself.",
            )
        return self.code.allocate(kind, table.size)

    def _loop(self, loop: Loop, mask: Value | None) -> None:
        code = self.code
        slots = self._slots(loop.carry)
        self._keep(slots, loop.carry, loop.init)
        head, body, end = (code.name(stem) for stem in ("head", "body", "end"))
        code.jump(head)
        code.label(head)
        self._poll()
        self._recall(slots, loop.carry)
        self.steps(loop.test.steps, mask)
        test = self.read(loop.test.outputs[0])
        # Values of lanes that are off must not keep a loop going.
        active = test & mask if test.lanes and mask is not None else test
        code.branch(code.any(active), body, end)
        code.label(body)
        self.steps(loop.body.steps, active if test.lanes else mask)
        new = [*map(self.read, loop.body.outputs)]
        if test.lanes:
            old = [self.values[s] for s in loop.carry]
            new = [active.where(n, o) for n, o in zip(new, old, strict=True)]
        for slot, scalar, value in zip(slots, loop.carry, new, strict=True):
            code.emit(f"store {self.as_marked(scalar, value)}, ptr {slot}")
        code.jump(head)
        code.label(end)

    def _poll(self) -> None:
        """Leave the kernel if it was asked to stop."""
        code = self.code
        go = code.name("go")
        byte = code.register("load atomic i8, ptr %stop monotonic, align 1")
        test = Value(code, code.register(f"icmp eq i8 {byte}, 0"), _BOOL)
        code.branch(test, go, "stopped")
        code.label(go)

    def _slots(self, scalars: Sequence[Scalar]) -> list[str]:
        kinds = [self.code.type(s.dtype, s in self.varying) for s in scalars]
        return [self.code.allocate(kind) for kind in kinds]

    def _keep(
        self, slots: Sequence[str], marked: Sequence[Scalar], scalars: Sequence[Scalar]
    ) -> None:
        for slot, mark, scalar in zip(slots, marked, scalars, strict=True):
            value = self.as_marked(mark, self.read(scalar))
            self.code.emit(f"store {value}, ptr {slot}")

    def _recall(self, slots: Sequence[str], scalars: Sequence[Scalar]) -> None:
        for slot, scalar in zip(slots, scalars, strict=True):
            lanes = scalar in self.varying
            kind = self.code.type(scalar.dtype, lanes)
            text = self.code.register(f"load {kind}, ptr {slot}")
            self.values[scalar] = Value(self.code, text, scalar.dtype, lanes)

    def _choice(self, choice: Choice, mask: Value | None) -> None:
        index = self.read(choice.which)
        tests = self._tests(index, len(choice.branches))
        if index.lanes and all(map(_is_short, choice.branches)):
            self._in_line(choice, tests, mask)
            return
        code = self.code
        slots = self._slots(choice.outputs)
        for slot, out in zip(slots, choice.outputs, strict=True):
            kind = code.type(out.dtype, out in self.varying)
            code.emit(f"store {kind} zeroinitializer, ptr {slot}")
        for test, branch in zip(tests, choice.branches, strict=True):
            active = test & mask if test.lanes and mask is not None else test
            with code.only_if(code.any(active)):
                self.steps(branch.steps, active if test.lanes else mask)
                for slot, out, new in zip(
                    slots, choice.outputs, branch.outputs, strict=True
                ):
                    value = self.as_marked(out, self.read(new))
                    if test.lanes:
                        text = code.register(f"load {value.type}, ptr {slot}")
                        value = test.where(value, value.changed(text=text))
                    code.emit(f"store {value}, ptr {slot}")
        self._recall(slots, choice.outputs)

    def _in_line(
        self, choice: Choice, tests: Sequence[Value], mask: Value | None
    ) -> None:
        for branch in choice.branches:
            self.steps(branch.steps, mask)
        for out, *options in zip(
            choice.outputs, *(b.outputs for b in choice.branches), strict=True
        ):
            value = self.read(options[-1])
            for test, option in zip(tests[:-1], options[:-1], strict=True):
                value = test.where(self.read(option), value)
            self.values[out] = self.as_marked(out, value)

    def _tests(self, index: Value, count: int) -> list[Value]:
        """Return whether each branch is taken; XLA takes the last out of range."""
        if index.dtype == _BOOL:
            return [~index, index]
        tests = [index.equals(k) for k in range(count - 1)]
        others = tests[0]
        for test in tests[1:]:
            others = others | test
        return [*tests, ~others]


def _is_short(branch: Block) -> bool:
    """Return whether a branch may run also for lanes that do not take it."""
    simple = all(isinstance(step, Operation) for step in branch.steps)
    return simple and len(branch.steps) <= _MOST_IN_LINE


# Measured: more vectors keep the processor busy while it waits for a result, until
# the numbers of a step no longer fit into its registers.
_MANY, _FEW, _LONG_CARRY = 4, 2, 8


def lanes_of(program: Program, vector_bytes: int) -> int:
    """Return the number of lanes of a block, for vectors of `float32`."""
    is_long = _longest_carry(program.block.steps) > _LONG_CARRY
    return (_FEW if is_long else _MANY) * vector_bytes // 4


def _longest_carry(steps: Sequence[Any]) -> int:
    longest = 0
    for step in steps:
        if isinstance(step, Loop):
            inner = _longest_carry([*step.test.steps, *step.body.steps])
            longest = max(longest, len(step.carry), inner)
        elif isinstance(step, Choice):
            inner = (_longest_carry(branch.steps) for branch in step.branches)
            longest = max(longest, *inner)
    return longest
