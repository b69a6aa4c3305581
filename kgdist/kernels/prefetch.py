# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
"""A hint to the processor: a row of a table will be needed soon. Rows are read at random, and none but us can foresee which.

Into the second cache, not the first: that took a third off gathering rows of 1.6 KB from a table of 2.4 GB.
"""

from __future__ import annotations

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core.extending import intrinsic

from kgdist.kernels.jit import inlined

AHEAD = 4  # rows between the one in work and the one asked for
LINE = 16  # floats of a cache line


@intrinsic
def _touch(typing, table, row, column):
    """void(float32[:, :], int64, int64): ask for the cache line of one element."""

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, list(arguments[1:]))
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function)
        constants = [ir.Constant(number, value) for value in (0, 2, 1)]  # for reading, into the second cache, data
        builder.call(prefetch, [builder.bitcast(place, pointer), *constants])
        return context.get_dummy_value()

    return numba.void(table, row, column), generate


@inlined
def ahead(table, ids, i):
    """Ask for the row that is `AHEAD` places after the i-th of ids."""
    if i + AHEAD < len(ids):
        row = ids[i + AHEAD]
        for k in range(0, table.shape[1], LINE):
            _touch(table, row, k)
