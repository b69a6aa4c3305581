"""The table of what launcher and agents say is what they do, and lets nothing else through."""

from __future__ import annotations

import inspect
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import ProtocolError
from kgdist.runtime import protocol
from kgdist.runtime.agent.agent import Agent
from kgdist.runtime.processes.pipes import Bell
from kgdist.runtime.protocol import ANSWERS, COMMANDS, EVENTS, SCRIPT_HEARS, SCRIPT_SAYS, command_of, event_of, word_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def values(shape: Any) -> st.SearchStrategy[Any]:
    """JSON of a shape."""
    if isinstance(shape, dict):
        return st.fixed_dictionaries({key: values(inner) for key, inner in shape.items()})
    if isinstance(shape, list):
        return st.lists(values(shape[0]), max_size=3)
    if isinstance(shape, tuple):
        return st.tuples(*map(values, shape)).map(list)
    if shape in (object, dict):
        return JSON if shape is object else st.dictionaries(st.text(max_size=5), JSON, max_size=3)
    return st.from_type(shape).filter(lambda value: value == value)


COMMAND = st.sampled_from(sorted(COMMANDS)).flatmap(lambda name: values(COMMANDS[name]).map(lambda fields: {"do": name} | fields))


def test_every_command_is_a_method_with_its_fields_and_the_docstring_has_all() -> None:
    for name, shape in COMMANDS.items():
        assert list(inspect.signature(getattr(Agent, name)).parameters)[1:] == list(shape), name
    first, _, second = (protocol.__doc__ or "").partition("    event     the agent...\n")
    rows = [re.findall(r"^    (\w+) ", half, re.MULTILINE) for half in (first.partition("    command ")[2], second)]
    assert rows[0] == list(COMMANDS) and sorted(rows[1]) == sorted(set(EVENTS) - set(ANSWERS) | {"hello"})
    answers = re.findall(r"^.{60,}? {2,}([a-z]+(?:[,;] [a-z]+)*)$", first, re.MULTILINE)
    told = {word for answer in answers for word in re.split("[,;] ", answer)}
    assert set(ANSWERS) - {"hello"} <= told <= set(EVENTS)


def test_no_event_is_called_like_a_word_between_an_agent_started_by_hand_and_its_launcher() -> None:
    words = {"enlist", "here", "gone", "left", "log", "wait", "welcome", "refused", "bye", "close", "over", "lost"}
    assert not words & set(EVENTS)


@given(COMMAND)
def test_a_command_arrives_as_it_was_sent(message: dict[str, Any]) -> None:
    name, fields = command_of(json.loads(json.dumps(message)))
    assert {"do": name} | fields == message


@given(COMMAND, JSON, st.data())
def test_what_is_no_command_is_refused(message: dict[str, Any], junk: Any, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["less", "more", "other", "name"]))
    if kind == "more":
        message["more"] = junk
    elif kind == "name":
        message["do"] = junk
    else:
        key = data.draw(st.sampled_from(sorted(message)))
        if kind == "less":
            del message[key]
        else:
            message[key] = junk
    try:
        name, fields = command_of(message)
    except ProtocolError as error:
        assert "is kgdist the same everywhere?" in str(error) and len(str(error)) < 200
    else:
        assert name in COMMANDS and fields.keys() == COMMANDS[name].keys()


@given(st.sampled_from(sorted(EVENTS)).flatmap(lambda name: st.tuples(st.just(name), values(EVENTS[name]))))
def test_texts_of_events_are_fit_for_a_terminal(event: tuple[str, Any]) -> None:
    name, value = event
    found = event_of(name, value)
    if name in protocol.NUMBERS:
        assert found is value
    elif isinstance(found, str):
        assert all(letter.isprintable() or letter == "\t" for letter in found)


@pytest.mark.parametrize(("name", "value"), [("x", 1), ("arrived", "1"), ("saved", {}), ("checked", {"problems": [1]})])
def test_what_is_no_event_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match="in words that are not ours"):
        event_of(name, value)


def test_an_agent_without_a_job_refuses_what_needs_one() -> None:
    partner: Any = SimpleNamespace(bell=Bell())
    agent = Agent(partner)
    assert agent.stop(leave=True) is None  # there is nothing to stop
    for ask in (lambda: agent.train(0), lambda: agent.release(5, 0), lambda: agent.keep([], []), lambda: agent.open("", None)):
        with pytest.raises(ProtocolError, match="before it has said what the job is"):
            ask()


LINES = {"says": SCRIPT_SAYS, "hears": SCRIPT_HEARS}
WORD = st.sampled_from(sorted(LINES)).flatmap(
    lambda way: st.sampled_from(sorted(LINES[way])).flatmap(lambda name: values(LINES[way][name]).map(lambda v: (way, {name: v})))
)


@given(WORD, JSON)
def test_a_word_on_the_line_of_a_script_is_one_of_ours_or_refused(word: tuple[str, dict[str, Any]], junk: Any) -> None:
    way, message = word
    table = LINES[way]
    assert word_of(json.loads(json.dumps(message)), table) == next(iter(message.items()))
    for wrong in ({**message, "more": junk}, {}, {"x": junk}):
        with pytest.raises(ProtocolError, match="is not one of our words"):
            word_of(wrong, table)
