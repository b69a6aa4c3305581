"""What trainers do together: whoever comes, in whatever order, all get the same answer, or one error names who is at odds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.runtime.cluster.agreement import Agreement, Call

NAMES = st.sampled_from(["", "a", "b"])


def between(trainers: int) -> Agreement:
    return Agreement(trainers, "trainer {}".format)


def table(name: str, width: int = 2, dtype: str = "<f4", init: str = "") -> dict[str, Any]:
    return {"name": name, "spec": {}, "arrays": {"": [dtype, [width]]}, "bounds": [0, 3, 5], "init": init}


@given(st.integers(1, 4), st.lists(NAMES, max_size=8), st.data())
def test_calls_complete_in_order_whoever_comes_first(trainers: int, names: list[str], data: st.DataObject) -> None:
    agreement, done, at = between(trainers), list[str](), [0] * trainers
    while len(done) < len(names):
        ready = [rank for rank in range(trainers) if at[rank] == len(done)]  # the others wait for an answer
        rank = data.draw(st.sampled_from(ready))
        calls = agreement.ask(Call(rank, at[rank], "barrier", {"name": names[at[rank]]}))
        at[rank] += 1
        assert (calls is None) == (min(at) == len(done))
        if calls is not None:
            assert sorted(call.rank for call in calls) == list(range(trainers)) and not agreement.missing
            done.append(calls[0].value["name"])
        else:
            assert agreement.missing == [rank for rank in range(trainers) if at[rank] == len(done)]
    assert done == names


@given(st.integers(2, 4), NAMES, NAMES, st.data())
def test_two_that_differ_are_both_named(trainers: int, one: str, other: str, data: st.DataObject) -> None:
    ranks = data.draw(st.permutations(range(trainers)))
    agreement = between(trainers)
    agreement.ask(Call(ranks[0], 0, "create", table(one or "x")))
    with pytest.raises(KgdistError) as caught:
        agreement.ask(Call(ranks[1], 0, "barrier", {"name": other}))
    assert f"trainer {ranks[0]} makes" in str(caught.value) and f"trainer {ranks[1]} is at" in str(caught.value)


@given(st.lists(st.sampled_from(["", "no room"]), min_size=1, max_size=4))
def test_what_one_cannot_do_is_told_to_all_and_is_no_difference(problems: list[str]) -> None:
    agreement = between(len(problems))
    for rank, problem in enumerate(problems):
        calls = agreement.ask(Call(rank, 0, "barrier", {"name": "", "problem": problem}))
    assert calls is not None
    failed = [f"trainer {rank}: {problem}" for rank, problem in enumerate(problems) if problem]
    assert agreement.problem(calls) == (failed[0] if failed else "")


@pytest.mark.parametrize("first", ["ends", "waits"])
def test_one_that_has_ended_while_others_wait_is_named(first: str) -> None:
    agreement = between(2)
    words = "trainer 1 has ended, and trainer 0 is at the barrier 'b' and waits for it"
    if first == "ends":
        agreement.end(1)
        with pytest.raises(KgdistError, match=words):
            agreement.ask(Call(0, 0, "barrier", {"name": "b"}))
    else:
        agreement.ask(Call(0, 0, "barrier", {"name": "b"}))
        assert agreement.missing == [1] and agreement.waiting == "trainer 0 is at the barrier 'b'"
        with pytest.raises(KgdistError, match=words):
            agreement.end(1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=12))
def test_tables_are_shared_by_name_until_nobody_needs_them_and_numbers_are_not_used_again(
    program: list[tuple[str, bool]],
) -> None:
    agreement, users, numbers = between(1), dict[str, int](), set[int]()
    for name, makes in program:
        if makes:
            made, problem = agreement.create([Call(0, 0, "create", table(name, init="f"))])
            assert not problem and (made.number in numbers) == (users.get(name, 0) > 0)
            numbers.add(made.number)
            users[name] = users.get(name, 0) + 1
            other, problem = agreement.create([Call(0, 0, "create", table(name, 3))])
            assert problem == f"{name!r} is there already, as <f4[5, 2], not <f4[5, 3]; take another name"
            assert other.users == users[name]
        else:
            gone = agreement.drop(name)
            assert (gone is not None) == (users.get(name, 0) == 1)
            users[name] = max(0, users.get(name, 0) - 1)
