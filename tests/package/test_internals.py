"""Names and texts of other packages on which the package depends still exist.

`docs/how_it_works.md` lists these uses. Each test fails if a release renames what one
of them reads, which would otherwise only make a message or a time worse.
"""

import concurrent.futures as cf
import dis
import io
import logging
import multiprocessing
import pathlib
import re

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept


def test_xla_has_the_pass_that_sweeps_switch_off():
    lowered = jax.jit(lambda x: jnp.exp(jnp.sin(x))).lower(jnp.ones((2048, 2048)))
    split = 'outer_dimension_partitions":["'  # over threads
    if split not in lowered.compile().as_text():
        pytest.skip("XLA has one thread")
    off = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
    assert split not in lowered.compile(off).as_text()


def test_a_compiled_program_raises_the_internal_error_about_nan():
    with jax.debug_nans(True):
        program = jax.jit(jnp.log).lower(-1.0).compile()
        with pytest.raises(Exception, match="nan") as caught:
            program(-1.0)
    assert type(caught.value).__name__ == "InternalFloatingPointError"


def test_the_text_of_an_allocation_that_fails():
    def fn(x):
        return jnp.sort(x * jax.lax.iota(jnp.float32, 2**46))[3]  # 256 TiB

    with pytest.raises(ep.SweepError, match="not enough memory for a batch of 1 point"):
        ep.sweep(fn, ep.Linspace(0, 1, 2), batch_size=1)


def test_the_logger_and_the_text_of_a_callback_that_raises(caplog):
    def fail(x):
        raise ValueError("these words")

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    program = jax.jit(lambda x: jax.pure_callback(fail, shape, x))
    with caplog.at_level(logging.ERROR, "jax._src.callback"):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(program(1.0))
    logged = [r for r in caplog.records if r.name == "jax._src.callback"]
    assert any("callback failed" in record.getMessage() for record in logged)
    assert "ValueError: these words" in str(caught.value).splitlines()


def test_the_text_of_a_loop_whose_parts_do_not_fit():
    for cond, body in (
        (lambda x: x, lambda x: x),
        (lambda x: x < 1, lambda x: (x, x)),
        (lambda x: x < 1, lambda x: x.astype(int)),
    ):
        with pytest.raises(TypeError, match="while_loop|_fun"):
            jax.lax.while_loop(cond, body, jnp.zeros(()))


def test_a_missing_key_raises_in_the_module_whose_frames_are_read():
    def where(call):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            call()
        trace, found = caught.value.__traceback__, []
        while trace is not None:
            scope = trace.tb_frame
            found.append((scope.f_globals["__name__"], scope.f_locals.get("key", 0)))
            trace = trace.tb_next
        return found, str(caught.value)

    found, text = where(lambda: jr.normal(None))
    assert "NoneType" in text
    assert ("jax._src.random", None) in [(m[:15], key) for m, key in found]
    found, _ = where(lambda: eqx.nn.Dropout(0.5)(jnp.ones(3)))
    assert [key for m, key in found if m.startswith("equinox.")][-1] is None


def test_the_texts_of_missing_modes_of_differentiation():
    @jax.custom_vjp
    def reverse(x):
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, g: (g,))
    with pytest.raises(TypeError, match="(?i)forward-mode"):
        jax.jvp(reverse, (1.0,), (1.0,))
    loop = lambda x: jax.lax.while_loop(lambda x: x < 2, lambda x: 2 * x, x)  # noqa: E731
    with pytest.raises(ValueError, match="(?i)reverse-mode"):
        jax.grad(loop)(1.0)


def test_the_structs_of_the_foreign_function_interface():
    """Their version, and the function by which `error_if` raises."""
    path = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    found = re.findall(r"^#define XLA_FFI_API_M..OR (\d+)$", path.read_text(), re.M)
    assert found[0] == "0" and 3 <= int(found[1]) <= 5
    jaxpr = jax.make_jaxpr(lambda x: eqx.error_if(x, x < 0, "negative"))(1.0)
    assert "<function _error.<locals>.raises" in str(jaxpr)


def test_wrappers_of_mapped_functions_are_recognisable():
    def fn(x):
        return x

    assert type(eqx.filter_vmap(fn)).__name__ == "_VmapWrapper"
    wrapped = jax.vmap(fn)
    codes = [getattr(c.cell_contents, "__code__", None) for c in wrapped.__closure__]
    assert "vmap_f" in [code.co_name for code in codes if code is not None]


def test_names_of_instructions():
    """Each version of CPython may rename them."""
    names = {i.opname for i in dis.get_instructions("a.b")}
    assert {"LOAD_NAME", "LOAD_ATTR"} <= names
    code = compile("def f(x): return a.b(x)", "", "exec").co_consts[0]
    names = {i.opname for i in dis.get_instructions(code)}
    assert "LOAD_GLOBAL" in names and names & {"LOAD_ATTR", "LOAD_METHOD"}


def test_executors_have_their_workers_and_their_start_method():
    with cf.ThreadPoolExecutor(3) as pool:
        assert pool._max_workers == 3
    spawn = multiprocessing.get_context("spawn")
    with cf.ProcessPoolExecutor(2, spawn) as pool:  # starts none before a task
        assert (pool._max_workers, pool._mp_context) == (2, spawn)
        assert pool._processes == {}


def test_tqdm_has_its_open_bars_and_its_lock():
    from tqdm import std

    with std.tqdm(total=1, file=io.StringIO()) as bar:
        assert bar in std.tqdm._instances
    lock = std.tqdm.get_lock()
    lock.acquire()
    lock.release()


def test_grain_reads_many_records():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(list(range(9))).map(lambda x: 2 * x)
    assert [*data._getitems([1, 3])] == [2, 6]


def test_a_state_without_an_entry_raises_the_marker_of_its_index():
    layer, other = (eqx.nn.StateIndex(jnp.zeros(2)) for _ in range(2))
    with pytest.raises(KeyError) as caught:
        eqx.nn.State(layer).get(other)
    assert caught.value.args == (other.marker,)


def test_parts_of_a_tree_structure():
    structure = jtu.tree_structure({"a": (1, 2)})
    assert structure.node_data() == (dict, ["a"])
    assert structure.children()[0].node_data()[0] is tuple


def test_primitives_can_have_jaxprs_that_need_no_lowering():
    """JAX 0.12 asks each primitive whether its parameters have to be lowered first."""
    if jax.__version_info__ >= (0, 12):
        assert callable(jax.extend.core.Primitive("example").is_high)


def test_fields_of_equations_that_fingerprints_read():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x))(jnp.ones(3)).jaxpr
    (eqn,) = jaxpr.eqns
    assert hasattr(eqn.ctx, "manager") and eqn.source_info.traceback is not None
    assert eqn.outvars[0].aval.str_short() == "float32[3]"


def test_equinox_makes_the_objects_that_fingerprints_leave_out():
    """They differ in each trace, but the programs must be one."""

    def sweep():
        ep.sweep(lambda x: eqx.error_if(x, x > 7183, "large"), ep.Linspace(0, 1, 7))

    sweep()
    with ept.assert_compiles(at_most=0):
        sweep()


def test_jax_has_its_configuration_and_its_event_of_compilation():
    assert "jax_enable_x64" in jax.config.values
    with pytest.raises(AssertionError), ept.assert_compiles(at_most=0):
        jax.jit(lambda x: x * np.float32(1.7183))(1.0)


def test_a_notebook_is_recognised():
    shell = pytest.importorskip("ipykernel.zmqshell")
    assert shell.ZMQInteractiveShell.__name__ == "ZMQInteractiveShell"


def test_an_index_out_of_bounds_is_described_with_its_shape():
    from jax.experimental import checkify

    check = checkify.checkify(lambda x: x[jnp.int32(5)], errors=checkify.index_checks)
    error, _ = jax.jit(check)(jnp.zeros(3))
    assert re.search(r"shape \(3,\)", error.get())


def test_effects_tell_which_references_a_jaxpr_makes_and_writes():
    ref = jax.new_ref(jnp.ones(3))

    def fn(x):
        own = jax.new_ref(x)
        ref[...] += own[...]
        jax.ref.addupdate(ref, 0, x)
        return jax.lax.axis_index("lanes")

    made = jax.make_jaxpr(fn, axis_env=[("lanes", 2)])(1.0)
    names = {type(effect).__name__ for effect in made.effects}
    assert {"NamedAxisEffect", "InternalMutableArrayEffect"} <= names
    assert {"WriteEffect", "AccumEffect"} <= names
    inner = getattr(made, "jaxpr", made)
    written = [
        effect.input
        for eqn in inner.eqns
        for effect in eqn.effects
        if type(effect).__name__ in ("WriteEffect", "AccumEffect")
    ]
    assert written and all(v is inner.constvars[0] for v in written)
    assert inner.eqns[0].primitive.name == "new_ref"


def test_jax_registers_how_primitives_use_keys():
    from jax.experimental.key_reuse._core import key_reuse_signatures

    assert {jax.lax.cond_p, jax.lax.while_p} <= set(key_reuse_signatures)
    key = jr.key(0, impl="rbg")
    drawn = jax.make_jaxpr(lambda k: (jr.bits(k), jr.gamma(k, 1.0)))(key)
    for name in ("random_bits", "random_gamma"):
        assert name in str(drawn)
