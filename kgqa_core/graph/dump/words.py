"""Reading bytes a word or a vector at a time in compiled code: what numba has no spelling for.

All of these read past ``index`` without looking where the array ends: the caller keeps PADDING bytes behind its data.
Words are little-endian, as on every machine that numba's wheels are built for.
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


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, to: ir.Type) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


@_inline
def load_word(typingctx: Any, array: Any, index: Any) -> Any:
    """Return the 8 bytes from ``index`` on as one uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _pointer(context, builder, signature.args[0], args[0], args[1], ir.IntType(64))
        return builder.load(where, align=1)

    return types.uint64(array, types.int64), codegen


@_inline
def store_word(typingctx: Any, array: Any, index: Any, word: Any) -> Any:
    """Write a uint64 to the 8 bytes from ``index`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _pointer(context, builder, signature.args[0], args[0], args[1], ir.IntType(64))
        builder.store(args[2], where, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


@_inline
def load_byte(typingctx: Any, array: Any, index: Any) -> Any:
    """Return the byte at ``index``, which is never negative."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = _pointer(context, builder, signature.args[0], args[0], args[1], ir.IntType(8))
        return builder.zext(builder.load(where), ir.IntType(64))

    return types.int64(array, types.int64), codegen


def _find_in_vector(context: Any, builder: Any, signature: Any, args: Any, is_hit: Any) -> Any:
    """Build code that returns how many bytes before the first hit in a vector (VECTOR where there is none)."""
    vector = ir.VectorType(ir.IntType(8), VECTOR)
    where = _pointer(context, builder, signature.args[0], args[0], args[1], vector)
    data = builder.load(where, align=1)

    def splat(value: int) -> Any:
        return ir.Constant(vector, [ir.Constant(ir.IntType(8), value)] * VECTOR)

    hits = builder.bitcast(is_hit(builder, data, splat), ir.IntType(VECTOR))
    wide = builder.or_(builder.zext(hits, ir.IntType(64)), ir.Constant(ir.IntType(64), 1 << VECTOR))
    return builder.cttz(wide, cgutils.true_bit)


@_inline
def literal_run(typingctx: Any, array: Any, index: Any) -> Any:
    """Return how many of the VECTOR bytes may stand in a literal as they are: ASCII, none of ``"\\``, CR, LF."""

    def is_hit(builder: Any, data: Any, splat: Any) -> Any:
        hits = builder.icmp_signed("<", data, splat(0))
        for byte in b'"\\\r\n':
            hits = builder.or_(hits, builder.icmp_unsigned("==", data, splat(byte)))
        return hits

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _find_in_vector(context, builder, signature, args, is_hit)

    return types.int64(array, types.int64), codegen


@_inline
def iri_run(typingctx: Any, array: Any, index: Any) -> Any:
    """Return how many of the VECTOR bytes may stand in an IRI as they are: ASCII, no space, none of ``<>"{}|^`\\``."""

    def is_hit(builder: Any, data: Any, splat: Any) -> Any:
        hits = builder.icmp_signed("<=", data, splat(0x20))  # signed: bytes beyond ASCII are below zero
        for byte in b'<>"\\^`':
            hits = builder.or_(hits, builder.icmp_unsigned("==", data, splat(byte)))
        return builder.or_(hits, builder.icmp_unsigned("<", builder.sub(data, splat(0x7B)), splat(3)))  # { | }

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _find_in_vector(context, builder, signature, args, is_hit)

    return types.int64(array, types.int64), codegen
