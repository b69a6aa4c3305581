"""Random programs on tables that come and go, and what NumPy makes of the same."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from kgdist.kvstore.catalogue import DTYPES, TableSpec
from kgdist.kvstore.tables import MemoryTables, TableMemory, Update

POLICIES = {"entity": np.array([0, 7, 12]), "node:a": np.array([0, 5, 5]), "edge:a:b:c": np.array([0, 1, 40])}
SHAPES = [(), (1,), (3,), (2, 2), (5,)]
NAMES = ["x", "y.z", "labels"]

Step = tuple[Any, ...]


def services(rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """What machines answer; `rows` is theirs to tell of."""

    def echo(args: dict[str, Any], arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        return [np.tile(array, args["times"]) for array in arrays]

    def fail(args: dict[str, Any], arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        raise ValueError(args["why"])

    return {"echo": echo, "fail": fail, "known": lambda args, arrays: [rows[name] for name in args["names"]]}


@st.composite
def programs(draw: st.DrawFn, most: int = 25, *, raw: bool = False) -> list[Step]:
    """(what, name, ...): whether it can be done is for whoever runs it to see. `raw`: all tables are."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, most))):
        what = draw(st.sampled_from(["add", "add", "drop", "assign", "assign", "range", "push", "pull", "ahead", "block", "ask"]))
        name, seed = draw(st.sampled_from(NAMES)), draw(st.integers(0, 1 << 30))
        if what == "add":
            optimizer = None if raw else draw(st.sampled_from([None, None, "sgd", "adagrad", "adam", "adagrad_row"]))
            dtype = "float32" if optimizer else draw(st.sampled_from(list(DTYPES)))
            spec = TableSpec(name, draw(st.sampled_from(list(POLICIES))), dtype, draw(st.sampled_from(SHAPES)), optimizer,
                             by_owner=draw(st.booleans()))  # fmt: skip
            steps.append((what, name, spec))
        else:
            steps.append((what, name, seed))
    return steps


def some_rows(spec: TableSpec, rows: int, random: np.random.Generator) -> torch.Tensor:
    """Of any bits where nobody looks into them, NaN among them."""
    if spec.dtype == "bool":
        return torch.from_numpy(random.integers(0, 2, (rows, *spec.row_shape)).astype(np.bool_))
    if not spec.raw:
        return torch.from_numpy(random.standard_normal((rows, *spec.row_shape)).astype(np.float32))
    bits = random.integers(0, 256, rows * spec.row_bytes, np.uint8)
    return spec.tensor_of(bits.view(spec.storage).reshape(rows, *spec.row_shape))


def bits_of(rows: torch.Tensor) -> np.ndarray:
    """The same bits, the same answer: NaN equals itself."""
    return (rows.view(torch.int16) if rows.dtype is torch.bfloat16 else rows).contiguous().numpy().reshape(-1).view(np.uint8)


class Model:
    """NumPy's idea of it: name -> spec and rows. Steps of optimisers are those of a MemoryTables, which others check."""

    def __init__(self, twin: MemoryTables) -> None:
        self.twin, self.specs, self.rows = twin, dict[str, TableSpec](), dict[str, torch.Tensor]()

    def check(self, tables: Any, name: str, ids: np.ndarray) -> None:
        """That these tables' rows are those of the model."""
        found = tables.pull(name, torch.from_numpy(ids))
        self.equal(name, found, self.rows[name][ids])

    def equal(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        spec = self.specs[name]
        assert found.dtype == spec.torch_dtype and found.shape == (len(expected), *spec.row_shape)
        if spec.raw:
            np.testing.assert_array_equal(bits_of(found), bits_of(expected))
        else:
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def run(program: list[Step], tables: Any, model: Model, make: Any, unmake: Any) -> None:
    """Do it with `tables` and the model; `make(spec)` and `unmake(name)` see to the servers and to `tables`."""
    asked = []
    for what, name, given in program:
        if what == "add":
            if name not in model.specs:
                make(given)
                rows = int(POLICIES[given.policy][-1])
                model.specs[name], model.rows[name] = given, given.zeros(rows)
                model.twin.add(TableMemory.allocate(given, rows))
            continue
        random, spec = np.random.default_rng(given), model.specs.get(name)
        if what == "ask":
            arrays = [random.integers(0, 9, random.integers(0, 50)).astype(each) for each in (np.int64, np.bool_, np.uint8)]
            machine, times = int(random.integers(0, 2)), int(random.integers(0, 4))
            asked.append((tables.ask(machine, "echo", {"times": times}, arrays), [np.tile(array, times) for array in arrays]))
            asked.append((tables.ask(machine, "fail", {"why": f"no {given}"}), None))
            continue
        if spec is None:
            with contextlib.suppress(Exception):
                tables.pull(name, torch.zeros(1, dtype=torch.int64))
                raise AssertionError(f"{name} is not there")
            continue
        count = len(model.rows[name])
        ids = random.integers(0, count, random.integers(0, 3 * count + 1)) if count else np.empty(0, np.int64)
        if what == "drop":
            unmake(name)
            model.twin.drop(name)
            del model.specs[name], model.rows[name]
        elif what == "assign":
            values = some_rows(spec, len(ids), random)
            tables.assign(name, torch.from_numpy(ids), values)
            for row, value in zip(ids, values, strict=True):
                model.rows[name][row] = value
        elif what == "range":
            start, stop = sorted(random.integers(0, count + 1, 2).tolist())
            values = some_rows(spec, stop - start, random)
            tables.assign(name, slice(start, stop), values)
            model.rows[name][start:stop] = values
        elif what == "push" and not spec.raw:
            ids = np.unique(ids)
            width = int(np.prod(spec.row_shape))
            grads = torch.from_numpy(random.standard_normal((len(ids), width)).astype(np.float32))
            model.twin.assign(name, slice(0, count), model.rows[name])
            for each in (tables, model.twin):
                each.push({name: Update(ids, grads.clone())}, 0.1)
            tables.flush()
            model.rows[name] = model.twin.block(name, 0, count).clone()
        elif what == "ahead":
            tables.ahead({name: ids})
            model.check(tables, name, ids)
        elif what == "block":
            start, stop = sorted(random.integers(0, count + 1, 2).tolist())
            model.equal(name, tables.block(name, start, stop), model.rows[name][start:stop])
        else:
            model.check(tables, name, ids)
    for asking, expected in asked:
        settle(asking, expected)
    for name, rows in model.rows.items():
        model.check(tables, name, np.arange(len(rows)))


def settle(asking: Any, expected: list[np.ndarray] | None) -> None:
    """The answer is this; or, for None, that it failed."""
    if expected is None:
        try:
            asking.result()
        except Exception as error:
            assert "ValueError: no " in str(error)
        else:
            raise AssertionError("it was answered")
        return
    found = asking.result()
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
