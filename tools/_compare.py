"""Compare two records, entry by entry."""

import fnmatch
import math
from pathlib import Path

import numpy as np

ACCEPTED = Path(__file__).with_name("accepted.txt")
COSTS = (
    *("flops", "transcendentals", "bytes", "temporary", "arguments", "outputs"),
    "peak",
)


def report(before, now, sections):
    """Print what differs, and return how many differences are not accepted."""
    there, here = before["machine"], now["machine"]
    other = [
        f"{k} {there.get(k)} -> {here[k]}" for k in here if here[k] != there.get(k)
    ]
    if other:
        print(f"Another machine or version ({', '.join(other)}): no programs are")
        print("compared, and numbers to rounding. See tools/README.md for the way out.")
    lost, accepted = 0, _accepted()
    for section in sections:
        if section == "programs" and other:
            continue
        rows = list(_differences(section, before[section], now[section], bool(other)))
        for name, fails, text in rows:
            reason = _reason(accepted, section, name)
            mark = "  " if not fails else "ok" if reason else "!!"
            print(f"{mark} {section}: {name}: {text}{f' ({reason})' if reason else ''}")
            lost += mark == "!!"
        both = before[section].keys() & now[section].keys()
        same = len(both - {name for name, _, _ in rows})
        print(f"{section}: {same} of {len(before[section])} are the same")
    return lost


def _accepted():
    """Return the patterns of `accepted.txt` with their reasons."""
    rows = []
    for line in ACCEPTED.read_text().splitlines():
        if line and not line.startswith("#"):
            section, _, rest = line.partition(": ")
            pattern, _, reason = rest.partition(" -- ")
            rows.append((section, pattern.strip(), reason.strip() or "accepted"))
    return rows


def _reason(accepted, section, name):
    for of, pattern, reason in accepted:
        if of == section and (name == pattern or fnmatch.fnmatchcase(name, pattern)):
            return reason
    return ""


def _differences(section, before, now, other):
    """Yield (name, whether something is lost, what differs) of a section."""
    compare = COMPARE[section]
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            yield name, "error" in new, f"new {new if 'error' in new else ''}".strip()
        elif new is None:
            yield name, True, "missing"
        elif "error" in new:
            yield name, "error" not in old, f"fails with {new['error']}"
        elif "error" in old:
            yield name, False, "failed before"
        else:
            for fails, text in compare(old, new, other):
                yield name, fails, text


def _programs(old, new, other):
    if len(old) != len(new):
        few = len(new) > len(old) or not new
        yield few, f"{len(old)} programs before, {len(new)} now"
    for before, after in zip(old, new, strict=False):
        changed = [
            (after.get(cost, 0) > before.get(cost, 0), cost)
            for cost in COSTS
            if after.get(cost, 0) != before.get(cost, 0)
        ]
        texts = [
            f"{cost} {before.get(cost, 0):,} -> {after.get(cost, 0):,}"
            for _, cost in changed
        ]
        if any(larger for larger, _ in changed):
            yield True, f"LARGER: {', '.join(texts)}"
        elif changed:
            yield False, f"smaller: {', '.join(texts)}"
        elif before["text"] != after["text"]:
            yield False, "same costs, other text"


def _values(old, new, other):
    rtol = old["rtol"] * (10 if other else 1)
    leaves, others = old["leaves"], new["leaves"]
    if leaves.keys() != others.keys():
        yield True, f"outputs {sorted(leaves)} before, {sorted(others)} now"
        return
    for path, before in leaves.items():
        after = others[path]
        form = [k for k in ("array", "size") if before.get(k) != after.get(k)]
        if form:
            yield True, f"{path} {before.get(form[0])} -> {after.get(form[0])}"
            continue
        # Of a sum, relative to the largest that numbers of this norm can have.
        one = before["norm"] / math.sqrt(max(1, before["size"]))
        scales = {"first": one, "sum": before["norm"] * math.sqrt(before["size"])}
        for what in ("first", "sum", "norm"):
            scale = np.maximum(np.abs(before.get(what, 0)), scales.get(what, 0))
            a, b = np.array(before.get(what, 0)), np.array(after.get(what, 0))
            if not np.all((np.abs(b - a) <= rtol * scale) | (a == b) | _both_nan(a, b)):
                yield True, f"{path} {what} {a.tolist()} -> {b.tolist()}"


def _both_nan(a, b):
    return np.isnan(a) & np.isnan(b)


def _spaces(old, new, other):
    for what in sorted(old.keys() | new.keys()):
        a, b = old.get(what), new.get(what)
        if a == b:
            continue
        if what == "coordinates":
            yield from _coordinates(a, b, 1 if old["design"] else 0, other)
        elif what == "swept floats" and np.allclose(a, b, rtol=1e-6, atol=1e-6):
            continue
        else:
            yield True, f"{what} {a} -> {b}"


def _coordinates(old, new, ulps, other):
    for path in sorted(old.keys() | new.keys()):
        a, b = old.get(path), new.get(path)
        if a == b:
            continue
        kinds = [next(iter(x)) if isinstance(x, dict) else "" for x in (a, b)]
        if kinds[0] != kinds[1] or not kinds[0].startswith("float"):
            yield True, f"{path} {a} -> {b}"
            continue
        left, right = (np.array(x[kinds[0]], kinds[0]) for x in (a, b))
        if left.shape != right.shape:
            yield True, f"{path} has the shape {right.shape}, not {left.shape}"
            continue
        allowed = ulps * np.spacing(np.abs(left))
        if other:
            allowed = np.maximum(allowed, 1e-6 * np.maximum(np.abs(left), 1e-3))
        off = np.abs(right - left)
        if np.any(off > allowed):
            i = np.unravel_index(np.argmax(off - allowed), off.shape)
            yield True, f"{path} at {[*map(int, i)]} {left[i]} -> {right[i]}"


def _planted(old, new, other):
    was, is_now = old["told by"], new["told by"]
    if was != is_now:
        text = f"told by {', '.join(was) or 'none'} -> {', '.join(is_now) or 'none'}"
        yield bool(was) and not is_now, text
    if old["false alarms"] != new["false alarms"]:
        more = set(new["false alarms"]) - set(old["false alarms"])
        yield bool(more), f"false alarms {old['false alarms']} -> {sorted(more)}"


COMPARE = {
    "programs": _programs,
    "values": _values,
    "spaces": _spaces,
    "planted": _planted,
}
