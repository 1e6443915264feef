"""From a program of scalars to the code of a block of lanes.

A block runs the whole program for a number of points, its lanes. Numbers that do not
depend on the point are kept once, all others in vectors. A loop whose lanes take
different numbers of steps goes on until all have finished, and keeps the carries of
those that have; a branch is skipped if no lane takes it. The mask of lanes is passed
down, so that a loop inside of another never runs for a lane that has finished.

If the program has one loop whose number of steps depends on the point, with nothing
but arithmetic before and after it, lanes that have finished take the next points,
while the others go on. This costs as much as some steps, so it is done when the lanes
that wait have missed as many.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import value_error
from .elementary import FUNCTIONS, calls_c, threefry
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
    operands, block = program.operands, program.block
    inputs = [_argument(code, "%operands", k) for k in range(len(operands))]
    outputs = [_argument(code, "%results", k) for k in range(len(results))]
    code.emit("%stop = load ptr, ptr @stop")
    for operand, base in zip(operands, inputs, strict=True):
        if not operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                writer.values[scalar] = _load(code, base, scalar.dtype, at)
    before, loop, after = _parts(block, writer.varying)
    pool = _Pool(writer, refills=loop is not None)
    code.jump("fill")
    code.label("fill")
    points = pool.take()
    for operand, base in zip(operands, inputs, strict=True):
        if operand.lanes:
            for at, scalar in enumerate(operand.scalars):
                places = points * len(operand.scalars) + at
                writer.values[scalar] = _gather(code, base, scalar.dtype, places)
    writer.steps(before, pool.fresh)
    if loop is not None:
        used = {*_read_by([loop, *after]), *block.outputs}
        pool.keep([s for s in writer.values if s in writer.varying and s in used])
        moved = sum(len(o.scalars) for o in operands) + sum(r.size for r in results)
        pool.run(loop, _work(before) + _work(after) + _MEMORY * moved)
    writer.steps(after, None)
    scalars = iter(block.outputs)
    for result, base in zip(results, outputs, strict=True):
        for at in range(result.size):
            value = code.spread(writer.read(next(scalars)))
            places = points * result.size + at
            _scatter(code, base, value, places, pool.finished)
    code.branch(pool.has_more(), "fill", "end")
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


def _addresses(code: Code, base: str, kind: str, places: Value) -> str:
    return code.register(f"getelementptr {kind}, ptr {base}, {places}")


def _gather(code: Code, base: str, dtype: np.dtype, places: Value) -> Value:
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


def _scatter(
    code: Code, base: str, value: Value, places: Value, mask: Value | None
) -> None:
    width, kind = code.width, _memory(code, value.dtype)
    vector, name = f"<{width} x {kind}>", code.suffix(kind)
    function = f"@llvm.masked.scatter.{name}.v{width}p0"
    arguments = vector, f"<{width} x ptr>", f"<{width} x i1>"
    code.declarations.add(f"declare void {function}({', '.join(arguments)})")
    addresses = _addresses(code, base, kind, places)
    value = value.to("uint8") if value.dtype == _BOOL else value
    mask = code.spread(code.constant(True, bool)) if mask is None else mask
    code.emit(f"call void {function}({value}, <{width} x ptr> {addresses}, {mask})")


# What a step takes, in vector operations of arithmetic, about: elementary functions,
# those of C's library, random words, numbers that are read or written lane by lane, and
# the turns of a loop.
_FUNCTION, _IN_C, _DRAW, _MEMORY, _TURNS = 20, 500, 120, 32, 8


def _work(steps: Iterable[Any]) -> int:
    """Estimate how long steps take."""

    def of(step: Any) -> int:
        match step:
            case Operation():
                name = step.primitive
                if calls_c(name, step.output.dtype):
                    return _IN_C
                return _FUNCTION if name in FUNCTIONS or name == "rem" else 1
            case Draw():
                return _DRAW
            case Loop():
                return _TURNS * (_work(step.test.steps) + _work(step.body.steps))
            case Choice():
                return sum(_work(branch.steps) for branch in step.branches)
            case _:
                return 1

    return sum(map(of, steps))


def _blocks_of(step: Any) -> list[Block]:
    """Return the blocks within a step."""
    match step:
        case Loop():
            return [step.test, step.body]
        case Choice():
            return step.branches
        case _:
            return []


def _all(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield steps and those within them."""
    for step in steps:
        yield step
        for block in _blocks_of(step):
            yield from _all(block.steps)


def _read_by(steps: Iterable[Any]) -> Iterator[Scalar]:
    """Yield the scalars that steps read."""
    for step in _all(steps):
        match step:
            case Operation() | Draw():
                yield from step.inputs
            case Store():
                yield from (step.place, step.value)
            case Load():
                yield step.place
            case Loop():
                yield from step.init
            case Choice():
                yield step.which
        for block in _blocks_of(step):
            yield from block.outputs


def _parts(
    block: Block, varying: Collection[Scalar]
) -> tuple[list[Any], Loop | None, list[Any]]:
    """Return the loop whose lanes are refilled, and the steps before and after it."""
    steps = block.steps
    places = [k for k, step in enumerate(steps) if isinstance(step, Loop)]
    if len(places) == 1 and steps[places[0]].test.outputs[0] in varying:
        k = places[0]
        before, after = steps[:k], steps[k + 1 :]
        # Other loops and tables would run for all lanes, to refill some.
        inside = _all([*before, *after])
        if not any(isinstance(step, Loop | Store) for step in inside):
            return before, steps[k], after
    return steps, None, []


class _Pool:
    """The points of a block's lanes, which take others as they finish.

    The lanes that have a new point are `fresh`, and those that have done theirs
    `finished`; `None` stands for all lanes.
    """

    def __init__(self, writer: "_Writer", refills: bool):
        self.writer, self.code, self.refills = writer, writer.code, refills
        self.fresh: Value | None = None
        self.finished: Value | None = None
        self.next, self.limit, self.missed = (
            self.code.allocate("i64", zeros=True) for _ in range(3)
        )
        self.points = self.code.allocate(self.code.type(_INDEX, True), zeros=True)
        self.busy = self.code.allocate(self.code.type(_BOOL, True), zeros=True)
        self.num_points = Value(self.code, "%n", _INDEX)

    def take(self) -> Value:
        """Return the points of the lanes: the next for those that are not busy."""
        code, width = self.code, self.code.width
        begin = code.load(self.next, _INDEX)
        if not self.refills:
            # The last block overlaps the one before, and writes the same values again.
            last = self.num_points - width
            code.store(begin + width, self.next)
            return (begin < last).where(begin, last) + code.each_lane(range(width))
        free = ~code.load(self.busy, _BOOL, True)
        bits = code.mask_bits(free)
        before = code.each_lane([2**k - 1 for k in range(width)], bits.dtype)
        place = begin + (bits & before).call("ctpop").to(_INDEX)
        self.fresh = free & (place < self.num_points)
        code.store(begin + bits.call("ctpop").to(_INDEX), self.next)
        points = self.fresh.where(place, code.load(self.points, _INDEX, True))
        code.store(points, self.points)
        return points

    def has_more(self) -> Value:
        """Return whether points are left."""
        return self.code.load(self.next, _INDEX) < self.num_points

    def keep(self, scalars: Sequence[Scalar]) -> None:
        """Give the lanes that are not fresh their own values back."""
        for scalar in scalars:
            value = self.writer.read(scalar)
            slot = self.code.allocate(value.type, zeros=True)
            self.writer.values[scalar] = self._kept(value, slot)

    def _kept(self, value: Value, slot: str) -> Value:
        assert self.fresh is not None
        old = self.code.load(slot, value.dtype, True)
        value = self.fresh.where(value, old)
        self.code.store(value, slot)
        return value

    def run(self, loop: Loop, work: int) -> None:
        """Write the loop, which ends when a refill costs less than to wait.

        `work` is that of a refill.
        """
        code, width = self.code, self.code.width
        slots = [
            code.allocate(code.type(s.dtype, True), zeros=True) for s in loop.carry
        ]
        for init, slot in zip(loop.init, slots, strict=True):
            self._kept(code.spread(self.writer.read(init)), slot)
        of_turn = _work([*loop.test.steps, *loop.body.steps])
        limit = code.constant(width * work // max(1, of_turn), _INDEX)
        without_end = np.iinfo(_INDEX).max
        code.store(self.has_more().where(limit, without_end), self.limit)
        code.store(code.constant(0, _INDEX), self.missed)

        def goes_on(active: Value) -> Value:
            bits = code.mask_bits(active)
            code.store(active, self.busy)
            missed = code.load(self.missed, _INDEX)
            missed = missed + (width - bits.call("ctpop").to(_INDEX))
            code.store(missed, self.missed)
            return bits.compare("ne", 0) & (missed <= code.load(self.limit, _INDEX))

        self.writer.loop(loop, slots, None, goes_on)
        self.finished = ~code.load(self.busy, _BOOL, True)


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
                    slots = self._slots(step.carry)
                    self._keep(slots, step.carry, step.init)
                    self.loop(step, slots, mask, self.code.any)
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
        test = self.read(loop.test.outputs[0])
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
        kinds = [self.code.type(s.dtype, s in self.varying) for s in scalars]
        return [self.code.allocate(kind) for kind in kinds]

    def _keep(
        self, slots: Sequence[str], marked: Sequence[Scalar], scalars: Sequence[Scalar]
    ) -> None:
        for slot, mark, scalar in zip(slots, marked, scalars, strict=True):
            value = self.as_marked(mark, self.read(scalar))
            self.code.store(value, slot)

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
