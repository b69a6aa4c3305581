"""Whole numbers come as anything that is one, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.integers import distinct, int64, integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.int8)])
def test_an_integer_comes_in_any_dress(value: Any) -> None:
    assert integer("n", value, 0, 3) == 3 and type(integer("n", value)) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, torch.tensor(True), 3.0, np.float64(3), torch.tensor(3.0), "3", None, [3], torch.tensor([1, 2]), {}]
)
def test_what_is_none_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^n: must be an integer >= 0 and <= 9, not ") as error:
        integer("n", value, 0, 9)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [((4, None), "an integer >= 4, not 3"), ((None, 2), "an integer <= 2, not 3"), ((0, 2), ">= 0 and <= 2, not 3")],
)
def test_bounds_are_said(bounds: tuple[int | None, int | None], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        integer("n", 3, *bounds)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_numbers_keep_their_value_as_int64(dtype: str) -> None:
    most = min(int(np.iinfo(dtype).max), 2**63 - 1)
    values = np.array([0, 7, most], dtype)
    assert int64(values, "ids").dtype == np.int64 and int64(values, "ids").tolist() == [0, 7, most]
    assert dtype != "int64" or int64(values, "ids") is values


def test_numbers_beyond_int64_are_refused() -> None:
    with pytest.raises(UsageError, match="ids: 18446744073709551615 is too large"):
        int64(np.array([1, 2**64 - 1], np.uint64), "ids")


@given(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 9)))
def test_each_is_there_once_and_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))
