"""From a program of scalars to the code of a block of lanes.

A block runs the whole program for a number of points, its lanes. Numbers that do not
depend on the point are kept once, all others in vectors. A loop whose lanes take
different numbers of steps goes on until all have finished, and keeps the carries of
those that have; a branch is skipped if no lane takes it. The mask of lanes is passed
down, so that a loop inside of another never runs for a lane that has finished. Lanes
that have finished the program's only loop take other points (`pool`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .elementwise import ELEMENTWISE
from .llvm import Code, Value
from .pool import Pool, parts_of, steps_of_refill
from .scalars import (
    Block,
    Choice,
    Fail,
    Load,
    Loop,
    Operation,
    Program,
    Scalar,
    Store,
    within,
)

_BOOL, _INT, _INDEX = np.dtype(bool), np.dtype("int32"), np.dtype("int64")
# So many operations of a branch take as long as to ask whether a lane takes it.
_MOST_IN_LINE = 16


class Result(NamedTuple):
    """An array of results: the dtype, and how many numbers it has for a point."""

    dtype: np.dtype
    size: int


def kernel_code(program: Program, results: Sequence[Result], code: Code) -> str:
    """Return the LLVM function that computes a program for `n` points.

    Its arguments are the addresses of the operands and of the results, the number of
    points, at least 1, and it returns 1 if it was stopped.
    """
    writer = _Writer(code, program)
    operands, block = program.operands, program.block
    inputs = [_argument(code, "%operands", k) for k in range(len(operands))]
    outputs = [_argument(code, "%results", k) for k in range(len(results))]
    code.emit("%stop = load ptr, ptr @stop")
    for operand, base in zip(operands, inputs, strict=True):
        if not operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                writer.values[scalar] = _load(code, base, scalar.dtype, at)
    before, loop, after = parts_of(block, writer.varying)
    pool = Pool(code, refills=loop is not None)
    code.jump("fill")
    code.label("fill")
    points = pool.take()
    if program.raisers:
        writer.failed = pool.kept(code.constant(0, _INT))[1]
    for operand, base in zip(operands, inputs, strict=True):
        if operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                places = points * len(operand.scalars) + at
                writer.values[scalar] = _gather(code, base, scalar.dtype, places)
    writer.steps(before, pool.fresh)
    if loop is not None:
        used = {x for x in within([loop, after, block.outputs]) if type(x) is Scalar}
        used &= writer.varying
        for scalar, value in writer.values.items():
            if scalar in used:
                writer.values[scalar], _ = pool.kept(value)
        slots = [pool.kept(writer.read(scalar))[1] for scalar in loop.init]
        moved = sum(len(o.scalars) for o in operands) + sum(r.size for r in results)
        pool.begin(steps_of_refill(before, loop, after, moved))
        writer.loop(loop, slots, None, pool.goes_on)
    writer.steps(after, pool.finished())
    if writer.failed:
        writer.values[program.failure] = code.load(writer.failed, _INT, lanes=True)
    scalars = iter(block.outputs)
    for result, base in zip(results, outputs, strict=True):
        for at in range(result.size):
            value = code.spread(writer.read(next(scalars)))
            places = points * result.size + at
            _scatter(code, base, value, places, pool.finished())
    code.branch(pool.has_more(), "fill", "end")
    code.label("end")
    code.emit("ret i32 0")
    code.label("stopped")
    code.emit("ret i32 1")
    parts = [
        "@stop = global ptr null",
        *(text for text, *_ in code.functions.values()),
        code.definition("i32 @kernel(ptr %operands, ptr %results, i64 %n)"),
        *sorted(code.declarations),
    ]
    return "\n".join(parts)


def _argument(code: Code, base: str, place: int) -> str:
    """Return the address of an array."""
    slot = code.register(f"getelementptr ptr, ptr {base}, i64 {place}")
    return code.register(f"load ptr, ptr {slot}")


def _in_memory(dtype: np.dtype) -> np.dtype:
    """Return the dtype of numbers in memory, where a bool is a byte."""
    return np.dtype("uint8") if dtype == _BOOL else dtype


def _load(code: Code, base: str, dtype: np.dtype, place: int) -> Value:
    stored = _in_memory(dtype)
    kind = code.type(stored)
    address = code.register(f"getelementptr {kind}, ptr {base}, i64 {place}")
    return code.load(address, stored).to(dtype)


def _addresses(
    code: Code, base: str, dtype: np.dtype, places: Value
) -> tuple[str, str]:
    """Return the type and the register of addresses, one for each lane."""
    text = f"getelementptr {code.type(dtype)}, ptr {base}, {places}"
    return f"<{code.width} x ptr>", code.register(text)


def _gather(code: Code, base: str, dtype: np.dtype, places: Value) -> Value:
    stored = _in_memory(dtype)
    kind, end = code.type(stored, True), code.suffix(stored, True)
    all_lanes = code.spread(code.constant(True, bool))
    text = code.call(
        kind,
        f"@llvm.masked.gather.{end}.v{code.width}p0",
        _addresses(code, base, stored, places),
        (all_lanes.type, all_lanes.text),
        (kind, "zeroinitializer"),
    )
    return Value(code, code.register(text), stored, lanes=True).to(dtype)


def _scatter(
    code: Code, base: str, value: Value, places: Value, mask: Value | None
) -> None:
    value = value.to(_in_memory(value.dtype))
    mask = code.spread(code.constant(True, bool)) if mask is None else mask
    text = code.call(
        "void",
        f"@llvm.masked.scatter.{code.suffix(value.dtype, True)}.v{code.width}p0",
        (value.type, value.text),
        _addresses(code, base, value.dtype, places),
        (mask.type, mask.text),
    )
    code.emit(text)


class _Writer:
    """The values of scalars, as their code is written."""

    def __init__(self, code: Code, program: Program):
        self.code = code
        self.values: dict[Scalar, Value] = {}
        self.can_fail = bool(program.raisers)
        of_points = [o for o in program.operands if o.lanes]
        self.varying = {s for operand in of_points for s in operand.scalars}
        self.varying_tables: set[object] = set()
        before = -1
        # A carry may depend on the point only from a later step on.
        while before < (before := len(self.varying) + len(self.varying_tables)):
            self._mark(program.block.steps)
        self.memory: dict[object, str] = {}
        self.failed = ""  # where the number of the first error of each lane is

    def _mark(self, steps: Sequence[Any]) -> None:
        """Add the scalars that depend on the point, in a pass over the steps."""
        for step in steps:
            match step:
                case Operation():
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
        # A lane that has failed leaves every `while`: its value may never end one.
        if self.can_fail and not loop.ends:
            self.varying.add(loop.test.outputs[0])
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

    def as_marked(self, scalar: Scalar, value: Value | None = None) -> Value:
        """Return a value, by default its own, as a vector if `scalar` varies."""
        value = self.read(scalar) if value is None else value
        return self.code.spread(value) if scalar in self.varying else value

    def steps(self, steps: Sequence[Any], mask: Value | None) -> None:
        """Write the code of steps; `mask` has the lanes whose results are used."""
        for step in steps:
            match step:
                case Operation():
                    inputs = self.code.together(*map(self.read, step.inputs))
                    found = ELEMENTWISE[step.primitive](*inputs, **step.params)
                    found = found if isinstance(found, list) else [found]
                    self.values |= zip(step.outputs, found, strict=True)
                case Store():
                    address, varying = self._address(step)
                    value = self.read(step.value)
                    value = self.code.spread(value) if varying else value
                    self.code.store(value, address)
                case Load():
                    address, varying = self._address(step)
                    value = self.code.load(address, step.table.dtype, varying)
                    self.values[step.output] = value
                case Loop():
                    slots = self._slots(step.carry)
                    for slot, mark, scalar in zip(
                        slots, step.carry, step.init, strict=True
                    ):
                        self.code.store(self.as_marked(mark, self.read(scalar)), slot)
                    self.loop(step, slots, mask, self.code.any)
                case Choice():
                    self._choice(step, mask)
                case Fail():
                    self._fail(step, mask)

    def _fail(self, step: Fail, mask: Value | None) -> None:
        """Note the number of an error in the lanes that have none from before."""
        first = self.code.load(self.failed, _INT, lanes=True)
        fails = self.read(step.test) & first.equals(0)
        fails = fails if mask is None else fails & mask
        self.code.store(fails.where(self.read(step.number), first), self.failed)

    def _address(self, step: Store | Load) -> tuple[str, bool]:
        """Return the address of a number in a table.

        Its index is a constant or the count of a scan, which all lanes share.
        """
        table = step.table
        varying = table.identity in self.varying_tables
        kind = self.code.type(table.dtype, varying)
        if table.identity not in self.memory:
            slot = self.code.allocate(table.dtype, varying, table.size)
            self.memory[table.identity] = slot
        index = self.read(step.place)
        assert not index.lanes
        base = self.memory[table.identity]
        text = f"getelementptr {kind}, ptr {base}, {index}"
        return self.code.register(text), varying

    def loop(
        self,
        loop: Loop,
        slots: Sequence[str],
        mask: Value | None,
        goes_on: Callable[[Value], Value],
    ) -> None:
        """Write a loop, whose carry is in memory; `goes_on` gets its active lanes."""
        code = self.code
        head, body, end = (code.name(stem) for stem in ("head", "body", "end"))
        code.jump(head)
        code.label(head)
        self._poll()
        self._recall(slots, loop.carry)
        self.steps(loop.test.steps, mask)
        test = self.as_marked(loop.test.outputs[0])
        if self.can_fail and not loop.ends:
            test = test & code.load(self.failed, _INT, lanes=True).equals(0)
        # Values of lanes that are off must not keep a loop going.
        active = test & mask if test.lanes and mask is not None else test
        code.branch(goes_on(active), body, end)
        code.label(body)
        self.steps(loop.body.steps, active if test.lanes else mask)
        new = [*map(self.read, loop.body.outputs)]
        if test.lanes:
            old = [self.values[s] for s in loop.carry]
            new = [active.where(n, o) for n, o in zip(new, old, strict=True)]
        for slot, scalar, value in zip(slots, loop.carry, new, strict=True):
            code.store(self.as_marked(scalar, value), slot)
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
        return [self.code.allocate(s.dtype, s in self.varying) for s in scalars]

    def _recall(self, slots: Sequence[str], scalars: Sequence[Scalar]) -> None:
        for slot, scalar in zip(slots, scalars, strict=True):
            lanes = scalar in self.varying
            self.values[scalar] = self.code.load(slot, scalar.dtype, lanes)

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
                        value = test.where(value, code.load(slot, out.dtype, True))
                    code.store(value, slot)
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


# So many vectors keep the processor busy while it waits for a result, until the numbers
# of a step no longer fit into its registers. With 4, 2 and 1 of them the equations of
# Lorenz take 5.1, 6.8 and 12.2 ms, those of four bodies 17.0, 12.8 and 13.0.
_MANY, _FEW, _LONG_CARRY = 4, 2, 8


def lanes_of(program: Program, vector_bytes: int) -> int:
    """Return the number of lanes of a block, for vectors of `float32`."""
    loops = (x for x in within(program.block) if isinstance(x, Loop))
    is_long = any(len(loop.carry) > _LONG_CARRY for loop in loops)
    return (_FEW if is_long else _MANY) * vector_bytes // 4
