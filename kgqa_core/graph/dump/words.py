"""Memory read and written by address in compiled code, a byte, a word or a vector at a time.

Addresses, not arrays: numba counts references to every array that it passes on, which costs more than what is done with
it here. Whoever calls keeps the arrays alive, and PADDING bytes behind the data: reads do not look where it ends. Words
are little-endian, as on every machine that numba's wheels are built for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PADDING = 64  # bytes behind the data that may be read
VECTOR = 16  # bytes that one comparison looks at: SSE2 and NEON have them everywhere


def _inline(function: Callable[..., Any]) -> Any:
    """Return numba's intrinsic of ``function``; its type is Any: callers are compiled, and pass other arguments."""
    return intrinsic(function)


def _pointer(builder: Any, args: Any, to: ir.Type) -> Any:
    return builder.inttoptr(builder.add(args[0], args[1]), to.as_pointer())


def _load(bits: int) -> Any:
    """Return an intrinsic (base, offset) -> the unsigned number of so many bits there, as int64."""

    def load(typingctx: Any, base: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = builder.load(_pointer(builder, args, ir.IntType(bits)), align=1)
            return found if bits == 64 else builder.zext(found, ir.IntType(64))

        return (types.uint64 if bits == 64 else types.int64)(types.int64, types.int64), codegen

    return _inline(load)


def _store(bits: int) -> Any:
    """Return an intrinsic (base, offset, value) that writes the value's lowest bits there."""

    def store(typingctx: Any, base: Any, offset: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            cut = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
            builder.store(cut, _pointer(builder, args, ir.IntType(bits)), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), codegen

    return _inline(store)


load_byte, load_half, load_word = _load(8), _load(32), _load(64)  # 8, 32 and 64 bits; load_word gives uint64
store_byte, store_half, store_word = _store(8), _store(32), _store(64)


def _find_in_vector(builder: Any, args: Any, is_hit: Any) -> Any:
    """Build code that returns how many bytes before the first hit in a vector (VECTOR where there is none)."""
    vector = ir.VectorType(ir.IntType(8), VECTOR)
    data = builder.load(_pointer(builder, args, vector), align=1)

    def splat(value: int) -> Any:
        return ir.Constant(vector, [ir.Constant(ir.IntType(8), value)] * VECTOR)

    hits = builder.bitcast(is_hit(builder, data, splat), ir.IntType(VECTOR))
    wide = builder.or_(builder.zext(hits, ir.IntType(64)), ir.Constant(ir.IntType(64), 1 << VECTOR))
    return builder.cttz(wide, cgutils.true_bit)


@_inline
def literal_run(typingctx: Any, base: Any, offset: Any) -> Any:
    """Return how many of the VECTOR bytes may stand in a literal as they are: ASCII, none of ``"\\``, CR, LF."""

    def is_hit(builder: Any, data: Any, splat: Any) -> Any:
        hits = builder.icmp_signed("<", data, splat(0))
        for byte in b'"\\\r\n':
            hits = builder.or_(hits, builder.icmp_unsigned("==", data, splat(byte)))
        return hits

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _find_in_vector(builder, args, is_hit)

    return types.int64(types.int64, types.int64), codegen


@_inline
def iri_run(typingctx: Any, base: Any, offset: Any) -> Any:
    """Return how many of the VECTOR bytes may stand in an IRI as they are: ASCII, no space, none of ``<>"{}|^`\\``."""

    def is_hit(builder: Any, data: Any, splat: Any) -> Any:
        hits = builder.icmp_signed("<=", data, splat(0x20))  # signed: bytes beyond ASCII are below zero
        for byte in b'<>"\\^`':
            hits = builder.or_(hits, builder.icmp_unsigned("==", data, splat(byte)))
        return builder.or_(hits, builder.icmp_unsigned("<", builder.sub(data, splat(0x7B)), splat(3)))  # { | }

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _find_in_vector(builder, args, is_hit)

    return types.int64(types.int64, types.int64), codegen
