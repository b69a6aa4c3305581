"""A DistTensor is a NumPy array whose rows lie elsewhere: under any program of reads and writes, of any dtype, in any place."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import UsageError
from kgdist.distributed.rows import NAMES
from kgdist.distributed.storage import Storage
from kgdist.distributed.tensor import DistTensor
from tests.distributed.places import PLACES, Place

NODES, EDGES = (4, 0, 7, 1), (5, 9, 0, 6)
COUNT = sum(NODES)
# What NumPy has not is held by a dtype that has all of its numbers.
NUMPY: dict[torch.dtype, Any] = {torch.bfloat16: np.float32} | {
    dtype: np.dtype(name) for dtype, name in NAMES.items() if name != "bfloat16"
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]


@pytest.fixture
def there(place: Place) -> Any:
    with place(NODES, EDGES) as storage:
        yield storage


def same(tensor: torch.Tensor, array: np.ndarray) -> None:
    assert tuple(tensor.shape) == array.shape
    assert np.array_equal(tensor.to(torch.float32).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy(), array)


def keys(count: int) -> st.SearchStrategy[Any]:
    """Rows in every way that they can be said."""
    number = st.integers(-count, count - 1)
    end = st.none() | st.integers(-2 * count, 2 * count)
    lists = st.lists(number, max_size=2 * count)
    masks = st.lists(st.booleans(), min_size=count, max_size=count)
    return st.one_of(
        number,
        number.map(np.int32),
        number.map(torch.tensor),
        st.builds(slice, end, end, st.sampled_from([None, 1, 2, -1, -3])),
        lists,
        lists.map(lambda ids: np.array(ids, np.int32)),
        lists.map(lambda ids: torch.tensor(ids, dtype=torch.int64)),
        masks,
        masks.map(np.array),
        masks.map(torch.tensor),
    )


def for_numpy(key: Any) -> Any:
    """The same rows for an array; one row is a list of one."""
    if isinstance(key, torch.Tensor):
        key = key.numpy()
    if not isinstance(key, slice) and np.ndim(key) == 0:
        return [int(key)]
    return np.array(key, np.int64) if isinstance(key, list) and not (key and isinstance(key[0], bool)) else key


@st.composite
def programs(draw: st.DrawFn) -> tuple[torch.dtype, tuple[int, ...], list[tuple[Any, Any]]]:
    """A dtype, the shape of a row, and what is read (None) or written, a number or rows from this seed on."""
    dtype = draw(st.sampled_from(list(NAMES)))
    row_shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    acts = st.tuples(keys(COUNT), st.none() | st.integers(0, 100) | st.integers(0, 100).map(float) | st.just("rows"))
    return dtype, row_shape, draw(st.lists(acts, max_size=8))


def test_any_program_does_what_it_does_to_an_array(there: Storage) -> None:
    @given(program=programs())
    @settings(max_examples=50, deadline=None)
    def run(program: Any) -> None:
        dtype, row_shape, acts = program
        tensor, array = DistTensor((COUNT, *row_shape), dtype), np.zeros((COUNT, *row_shape), NUMPY[dtype])
        for step, (key, value) in enumerate(acts):
            where = for_numpy(key)
            if value is None:
                same(tensor[key], array[where])
            elif value == "rows":
                rows = np.arange(array[where].size).reshape(array[where].shape) + step
                tensor[key] = torch.from_numpy(rows) if step % 2 else rows
                array[where] = rows.astype(NUMPY[dtype])
            else:
                tensor[key] = value
                array[where] = value
        same(tensor[:], array)
        assert tensor.count_nonzero() == np.count_nonzero(array)

    run()


@pytest.mark.parametrize("dtype", [dtype for dtype in NAMES if dtype.is_floating_point])
def test_no_bit_is_lost(there: Storage, dtype: torch.dtype) -> None:
    tensor = DistTensor((COUNT, 2), dtype)
    values = torch.tensor([[float("nan"), -0.0], [float("inf"), torch.finfo(dtype).tiny]], dtype=dtype)
    tensor[[5, 0]] = values
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    assert torch.equal(tensor[[5, 0]].view(bits), values.view(bits))


def test_what_is_read_is_a_copy(there: Storage) -> None:
    tensor = DistTensor((COUNT, 2), torch.float32)
    for key in (slice(0, 3), [0, 1], 0, slice(None)):
        tensor[key].fill_(7)
    assert not tensor[:].any()


def test_rows_are_sent_for_before_they_are_needed(there: Storage) -> None:
    tensor = DistTensor((COUNT, 2), torch.float16)
    tensor[:] = torch.arange(2 * COUNT).reshape(COUNT, 2)
    coming = [tensor.prefetch(ids) for ids in ([11, 0, 5], torch.tensor([5, 5]), slice(3, 7))]
    for rows, ids in zip(coming, ([11, 0, 5], [5, 5], slice(3, 7)), strict=True):
        assert torch.equal(rows(), tensor[ids])


def test_what_was_written_since_is_read(there: Storage) -> None:
    tensor = DistTensor((12, 2), torch.float32, "later")
    rows = [11, 0, 5]
    coming = tensor.prefetch(rows)
    tensor[rows] = 1
    assert (tensor[rows] == 1).all() and (coming() == 1).all(), "rows that were sent for before are not taken for these"
    tensor.prefetch(rows)  # and nobody comes for them
    tensor[rows] = 2
    assert (tensor[rows] == 2).all() and (tensor.prefetch(rows)() == 2).all()


def test_shape_dtype_length_and_owners(there: Storage) -> None:
    tensor = DistTensor((COUNT, 3), torch.int16, "x")
    assert (tensor.shape, tensor.dtype, tensor.name, len(tensor)) == ((COUNT, 3), torch.int16, "x", COUNT)
    assert tensor.part_policy.policy_str == "node~_N"
    assert DistTensor((sum(EDGES),), torch.bool).part_policy.policy_str == "edge~_N:_E:_N"
    assert "x" in repr(tensor)


def test_owners_make_their_rows(there: Storage) -> None:
    asked = []

    def numbered(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        asked.append(shape)
        return torch.arange(shape[0] * 2, dtype=dtype).reshape(shape)

    tensor = DistTensor((COUNT, 2), torch.float64, init_func=numbered)
    expected = [torch.arange(2 * count, dtype=torch.float64).reshape(count, 2) for count in NODES]
    assert torch.equal(tensor[:], torch.cat(expected)) and asked == [(count, 2) for count in NODES]


@pytest.mark.parametrize(
    "wrong", [lambda s, d: torch.zeros(1, dtype=d), lambda s, d: torch.zeros(s, dtype=torch.int8), lambda s, d: 3]
)
def test_an_initialiser_that_gives_something_else_is_refused(there: Storage, wrong: Any) -> None:
    with pytest.raises(UsageError, match="its init_func gave"):
        DistTensor((COUNT, 2), torch.float64, init_func=wrong)
    with pytest.raises(UsageError, match=r"init_func\(shape, dtype\) failed, for \[4, 2\] and float64: TypeError: ones"):
        DistTensor((COUNT, 2), torch.float64, init_func=torch.ones)  # which knows a dtype by its name alone


def test_a_name_means_the_same_rows(there: Storage) -> None:
    first = DistTensor((COUNT,), torch.int32, "shared")
    first[3] = 9
    assert DistTensor((COUNT,), torch.int32, "shared", init_func=lambda s, d: torch.ones(s, dtype=d))[3].tolist() == [9]
    for shape, dtype in (((COUNT, 1), torch.int32), ((COUNT,), torch.int64), ((sum(EDGES),), torch.int32)):
        with pytest.raises(UsageError, match="'shared' is there already"):
            DistTensor(shape, dtype, "shared")


def test_rows_go_with_the_last_who_names_them(there: Storage) -> None:
    first, second = (DistTensor((COUNT,), torch.int32, "t") for _ in range(2))
    first[:] = 1
    del first
    gc.collect()
    assert second[0].item() == 1
    del second
    gc.collect()
    assert not DistTensor((COUNT,), torch.int32, "t")[:].any()
    DistTensor((COUNT,), torch.int32, "kept", persistent=True)[:] = 2
    gc.collect()
    assert DistTensor((COUNT,), torch.int32, "kept")[0].item() == 2


def test_those_without_names_are_different(there: Storage) -> None:
    one, other = DistTensor((COUNT,), torch.int8), DistTensor((COUNT,), torch.int8)
    one[:] = 1
    assert one.name != other.name and not other[:].any()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_masks_are_united(there: Storage, dtype: torch.dtype) -> None:
    one, other = DistTensor((COUNT,), dtype), DistTensor((COUNT,), dtype)
    one[[0, 5]] = 1
    other[[5, 11]] = 1
    both = one | other
    assert torch.nonzero(both[:]).flatten().tolist() == [0, 5, 11] and both.dtype == dtype and both.count_nonzero() == 3
    assert one.count_nonzero() == other.count_nonzero() == 2
    for wrong in (DistTensor((COUNT, 1), dtype), DistTensor((sum(EDGES),), dtype), torch.zeros(COUNT, dtype=dtype), 1):
        with pytest.raises(UsageError, match="united|differ"):
            one | wrong  # type: ignore[operator]


def test_the_rows_of_this_machine_can_be_written(there: Storage) -> None:
    tensor = DistTensor((COUNT, 2), torch.float32)
    tensor[:] = torch.arange(2 * COUNT).reshape(COUNT, 2)
    start, stop = tensor.part_policy.range(tensor.part_policy.part)
    assert torch.equal(tensor.local_partition, tensor[start:stop])
    tensor.local_partition[0] = -1
    assert tensor[start].tolist() == [[-1, -1]]


ARITHMETIC = {
    "+": lambda t: t + 1,
    "1 -": lambda t: 1 - t,
    "*=": lambda t: t.__imul__(2),
    "@": lambda t: t @ t,
    "<": lambda t: t < 3,
    "==": lambda t: t == 3,
    "-": lambda t: -t,
    "float": lambda t: float(t),
    "bool": lambda t: bool(t),
    "loop": lambda t: list(t),
    "np.asarray": lambda t: np.asarray(t),
    "torch.sum": lambda t: torch.sum(t),
    "torch.cat": lambda t: torch.cat([t, t]),
    "nn": lambda t: torch.nn.Linear(2, 2)(t),
}


@pytest.mark.parametrize("what", ARITHMETIC)
def test_arithmetic_is_refused_in_words(there: Storage, what: str) -> None:
    with pytest.raises((UsageError, TypeError), match="read some first|must be Tensor"):
        ARITHMETIC[what](DistTensor((COUNT, 2), torch.float32))


@pytest.mark.parametrize("name", ["sum", "mean", "numpy", "to", "T"])
def test_methods_of_tensors_are_refused_in_words(there: Storage, name: str) -> None:
    tensor = DistTensor((COUNT, 2), torch.float32)
    with pytest.raises(AttributeError, match=f"no {name} of rows that lie on several machines; read some first"):
        getattr(tensor, name)
    assert not hasattr(tensor, "nonsense")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (COUNT, f"row {COUNT} is not there, there are {COUNT} rows"),
        (-COUNT - 1, f"row -{COUNT + 1} is not there"),
        ([0, COUNT], "is not there"),
        (np.zeros(COUNT - 1, bool), f"a mask of shape \\({COUNT - 1},\\)"),
        (torch.zeros(COUNT + 1, dtype=torch.bool), "a mask of shape"),
        (True, "a mask of shape"),
        ((0, 1), "rows alone can be chosen"),
        (None, "rows alone can be chosen"),
        (..., "rows alone can be chosen"),
        (1.5, "not by a float"),
        ("a", "not by a str"),
        ([0.5], "by whole numbers"),
        (["a"], "by whole numbers"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 is too large"),
        ([[0, 1]], "in one dimension"),
        ([[0], [1, 2]], "not by a list"),
        (slice("a", None), "is not a slice of rows"),
        (slice(0, 3, 0), "is not a slice of rows"),
        ({1, 2}, "not by a set"),
    ],
)
def test_rows_that_are_none_are_refused(there: Storage, key: Any, message: str) -> None:
    tensor = DistTensor((COUNT, 2), torch.float32, "t")
    with pytest.raises(UsageError, match=f"DistTensor 't': .*{message}"):
        tensor[key]
    with pytest.raises(UsageError, match=message):
        tensor[key] = 1
    assert not tensor[:].any()


@pytest.mark.parametrize("value", [torch.ones(3, 2), np.ones(3), "x", [[1, 2], [3]], None, {}, torch.ones(2, 2, 2)])
def test_values_that_do_not_fit_are_refused(there: Storage, value: Any) -> None:
    tensor = DistTensor((COUNT, 2), torch.float32, "t")
    with pytest.raises(UsageError, match="DistTensor 't': .* cannot be written into rows of shape \\(2, 2\\)"):
        tensor[[0, 1]] = value
    with pytest.raises(UsageError, match="read first"):
        tensor[[0, 1]] = tensor
    with pytest.raises(UsageError, match="300 does not fit into int8|cannot be converted"):
        DistTensor((COUNT,), torch.int8)[0] = 300


FITTING = (7, np.int64(7), np.uint64(7), 7.0, torch.tensor(7.0), [7], np.array([7]), True)
TOO_WIDE = (
    300,
    -1,
    np.int64(300),
    np.array([1, 300]),
    [300, 1],
    torch.tensor([300, 1]),
    np.uint64(2**64 - 1),
    1.5,
    torch.inf,
    1e30,
)


def test_numbers_that_integers_do_not_hold_are_refused(there: Storage) -> None:
    tensor = DistTensor((COUNT, 2), torch.uint8, "t")
    for value in FITTING:
        tensor[0] = value
        assert tensor[0].tolist() in ([[7, 7]], [[1, 1]])
    tensor[0] = 7
    for wide in (*TOO_WIDE, torch.inf, torch.nan, 1 + 2j):
        with pytest.raises(UsageError, match="DistTensor 't': .*(does not fit into uint8|complex)"):
            tensor[0] = wide
    assert tensor[0].tolist() == [[7, 7]]
    long = DistTensor((COUNT,), torch.int64)
    long[0] = 2.0**62
    with pytest.raises(UsageError, match="does not fit into int64"):
        long[0] = 2.0**63
    assert long[0].tolist() == [2**62]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"shape": (COUNT + 1, 2)},
            f"{COUNT + 1} rows are as many as no type of the graph has; there are {COUNT} nodes of type _N",
        ),
        ({"shape": 3}, "a shape is its number of rows"),
        ({"shape": ()}, "a shape is its number of rows"),
        ({"shape": (COUNT, -1)}, "a row has at least one number"),
        ({"shape": (COUNT, 0)}, "a row has at least one number"),
        ({"dtype": torch.complex64}, "its dtype is one of torch.bool, "),
        ({"dtype": float}, "its dtype is one of"),
        ({"name": ""}, "a name is a text"),
        ({"shape": (COUNT + 0.5, 2)}, "a shape is its number of rows"),
        ({"part_policy": "node~_N"}, r"part_policy is what g.get_node_partition_policy\(type\) gives, not 'node~_N'"),
        ({"init_func": 5}, "init_func is a function of"),
        ({"name": 7}, "a name is a text"),
        ({"persistent": True}, "give a persistent tensor a name"),
    ],
)
def test_tensors_that_cannot_be_are_refused(there: Storage, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DistTensor(**{"shape": (COUNT, 2), "dtype": torch.float32} | given)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_number_of_rows_that_means_two_types_is_refused(place: Place) -> None:
    with place((2, 3), (4, 1)) as storage:
        with pytest.raises(
            UsageError, match="5 rows could be the nodes of type _N .* edges of type .*; say which by part_policy"
        ):
            DistTensor((5,), torch.float32)
        _, edges = storage.policies
        tensor = DistTensor((5,), torch.float32, part_policy=edges)
        tensor[4] = 1
        assert tensor.part_policy == edges and tensor[:].tolist() == [0, 0, 0, 0, 1]
        with pytest.raises(UsageError, match="6 rows, but there are 5 edges"):
            DistTensor((6,), torch.float32, part_policy=edges)


def test_without_a_graph_there_are_no_rows() -> None:
    with pytest.raises(UsageError, match="open a DistGraph first"):
        DistTensor((3,), torch.float32)
