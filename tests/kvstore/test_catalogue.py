"""What tables there are: specs as JSON, dtypes and shapes as words, numbers that mean one table, what cannot be."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import UsageError
from kgdist.kvstore.catalogue import DTYPES, Catalogue, TableSpec
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import FP32, U8
from kgdist.kvstore.optim import OPTIMIZERS
from kgdist.kvstore.tables import TableMemory
from tests.kvstore.programs import bits_of, some_rows

LAYOUT = Layout.build({"entity": 4}, {"entity": np.array([0, 5, 9]), "node:a": np.array([0, 2, 2])}, [2, 1])


@pytest.mark.parametrize("dtype", DTYPES)
@given(shape=st.lists(st.integers(1, 4), max_size=3).map(tuple), rows=st.integers(0, 6))
def test_words_are_the_same_memory_for_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], rows: int) -> None:
    spec = TableSpec("x", "entity", dtype, shape)
    assert TableSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    tensor = some_rows(spec, rows, np.random.default_rng(0))
    words, (width, code) = spec.words_of(tensor), spec.words
    assert words.shape == (rows, width) and words.dtype == (np.float32 if code == FP32 else np.uint8)
    assert code == (FP32 if spec.row_bytes % 4 == 0 else U8) and words.nbytes == rows * spec.row_bytes
    assert spec.row_bytes == math.prod(shape) * tensor.element_size()
    np.testing.assert_array_equal(words.reshape(-1).view(np.uint8), bits_of(tensor))
    memory = TableMemory.allocate(spec, rows)
    assert spec.words_of(memory.arrays[""]).shape == (rows, width) and memory.arrays.keys() == {""}
    spec.words_of(memory.arrays[""])[:] = words
    again = spec.tensor_of(memory.arrays[""])
    assert again.dtype == tensor.dtype == spec.torch_dtype == spec.zeros(1).dtype
    np.testing.assert_array_equal(bits_of(again), bits_of(tensor))


def test_rows_of_another_shape_or_dtype_have_no_words_of_this_table() -> None:
    spec = TableSpec("x", "entity", "int32", (2, 3))
    for rows in (torch.zeros(4, 6, dtype=torch.int32), torch.zeros(4, 2, 3), torch.zeros((), dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"rows of \w+\[.*\] where it has int32\[2, 3\]"):
            spec.words_of(rows)
    with pytest.raises(ValueError, match="one after another in memory"):
        spec.words_of(torch.zeros(4, 3, 2, dtype=torch.int32).transpose(1, 2))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "complex64"}, "no table is of complex64: use one of bool"),
        ({"row_shape": (3, 0)}, "holds nothing"),
        ({"row_shape": (1 << 25,)}, "longer than a message of 64 MiB"),
        ({"dtype": "float16", "optimizer": "sgd"}, "changes rows of float32, not of float16"),
        ({"settings": {"eps": 1e-3}}, "where there is none"),
        ({"optimizer": "adamw"}, "no optimiser adamw: adagrad_row"),
        ({"optimizer": "adam", "settings": {"beta3": 0.5}}, "no setting beta3: beta1, beta2, eps"),
        ({"optimizer": "adam", "settings": {"beta1": 1.0}}, "beta1 is 1.0, and must be from 0 to 0.99999"),
        ({"optimizer": "adagrad", "settings": {"eps": 0}}, "eps is 0.0, and must be from 1e-10 to 1"),
        ({"optimizer": "adagrad", "settings": {"eps": math.nan}}, "eps is nan"),
        ({"optimizer": "sgd", "settings": {"eps": 1e-3}}, "no setting eps: there are none"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        TableSpec("x", "entity", **given)  # type: ignore[arg-type]


def test_a_catalogue_grows_and_shrinks() -> None:
    catalogue = Catalogue(LAYOUT)
    assert list(catalogue) == ["entity"] and catalogue["entity"].number == 0 and not catalogue["entity"].spec.raw
    catalogue.declare("edge", np.array([0, 1, 40]))
    catalogue.declare("edge", np.array([0, 1, 40]))
    listed = catalogue.add(TableSpec("w", "edge", "int8", (3,)), 7)
    assert (listed.number, listed.rows, listed.width, listed.dtype) == (7, 40, 3, U8)
    assert [listed.served(server) for server in range(3)] == [(0, 0), (0, 1), (1, 40)]  # by owner
    shared = catalogue.add(TableSpec("v", "edge", by_owner=False), 8)
    assert [shared.served(server) for server in range(3)] == [(0, 1), (0, 1), (1, 40)] and len(shared.targets(0)) == 2
    with pytest.raises(UsageError, match="a table w already"):
        catalogue.add(TableSpec("w", "entity"), 9)
    with pytest.raises(UsageError, match="its number 7 is that of w"):
        catalogue.add(TableSpec("u", "entity"), 7)
    with pytest.raises(UsageError, match="nobody declared whose rows are other: entity, node:a, edge"):
        catalogue.add(TableSpec("u", "other"), 9)
    with pytest.raises(UsageError, match="4,194,304 at most"):
        catalogue.add(TableSpec("u", "entity", "uint8", ((4 << 20) + 1,)), 9)
    with pytest.raises(UsageError, match="with other ranges"):
        catalogue.declare("edge", np.array([0, 2, 40]))
    with pytest.raises(UsageError, match="3 machines, but 2"):
        catalogue.declare("more", np.array([0, 2, 40, 41]))
    with pytest.raises(UsageError, match="cannot be"):
        catalogue.declare("more", np.array([0, 9, 4]))
    assert catalogue.drop("w").number == 7 and "w" not in catalogue and list(catalogue.numbered) == [0, 8]
    with pytest.raises(UsageError, match="no table w: entity, v"):
        catalogue.drop("w")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_memory_of_a_table_has_room_for_its_optimiser(optimizer: str) -> None:
    spec = TableSpec("x", "entity", "float32", (2, 3), optimizer)
    memory = TableMemory.allocate(spec, 5)
    rule = spec.rule()
    assert rule is not None
    assert {key: array.shape for key, array in memory.arrays.items() if key} == {key: (5, w) for key, w in rule.widths(6).items()}
