"""What launcher and agents say to each other: lines of JSON, over pipes, SSH or a connection of kgdist-server. No processes here.

The launcher's lines are commands, {"do": name, field: value, ...}; an agent's are events, {name: value}. `command_of` and
`event_of` let through what stands in the two tables and nothing else, so that who reads a message need not doubt it. Shapes are
those of `fits`: a type, [shape] for a list, a tuple of shapes for a list of just those, {key: shape} for an object.

    command   the agent is to...                                                           it answers
    beat      know that the launcher lives (every second or more often)
    place     find so many free ports in a row, and make a pair of keys                    placed
    check     say what keeps the job from running there, and which checkpoints it has      checked
    open      take the run folder (a new one if `run` is empty), fill rows, start servers   opened; ready
    bring     let rows start at these numbers, in base64: int64 rows of a table, float32 values      brought
    train     start the trainers                                                           progress, arrived, trained
    release   let trainers that wait at `step` go on
    save      write a checkpoint, or the best rows                                         saved
    keep      remove all checkpoints but these
    send      keep files of the run folder in the storage, all or those that are text      sent
    best      take the best rows, or only see whether they are whole (`trial`)             loaded
    task      let trainers rank a share of a split, or write the embeddings of all         result, finished
    write     write JSON into the run folder
    append    add a line to a file of the run folder
    stop      let trainers end before their next step; `leave`: and not evaluate either    trained
    memory    say how much its processes hold                                              memory
    port      find a port that is free there                                               port
    launch    start the trainers of a script, which meet at this address and port          call, line, exit
    serve     start its servers                                                            served
    make      allocate a table's part, let servers map it, and the first of them fill it   made
    drop      give a table up
    reply     answer what trainers have called for
    leave     let its servers end                                                          exit
    end       leave

    event     the agent...
    hello     is there: the first word
    beat      lives, and what it is at: verb, of what, and a number that grows as long as something is done
    failed    is at its end; `recoverable`: another attempt may fare better
    say       has a line for the user
    progress  steps of each trainer, positives of all, float[4] sums of losses
    arrived   its trainers wait at this step
    trained   its trainers have trained to the end, with so many steps each
    result    ranks of a share (kgdist.evaluation.shared)
    finished  a trainer has done its task, or why not
    call      a trainer of a script asks for what all of them do together, drops a table, or (an encoder's) has saved a checkpoint
    line      a process of a script has printed this
    exit      a process of a script has ended with that code (< 0: by a signal), or is about to because of an error
    made      a table's part is there, or why not
    served    its servers can be reached
    interrupt somebody has pressed Ctrl-C there
"""

from __future__ import annotations

from typing import Any

from kgdist.base.errors import ProtocolError
from kgdist.runtime.processes.pipes import readable

JSON = object
STALL = 300.0  # seconds in which whoever is at something gets on with it, where no option says otherwise
NAMED = 30.0  # seconds without that, after which it is said
COMMANDS: dict[str, dict[str, Any]] = {
    "beat": {},
    "place": {"ports": int, "secure": bool},
    "check": {"plan": dict, "machine": int, "lease": int | float, "run": str, "debug": bool, "copied": bool},
    "open": {"run": str, "resume": int | None},
    "bring": {"table": str, "rows": str, "values": str},
    "train": {"lowered": int},
    "release": {"step": int, "lowered": int},
    "save": {"step": int, "meta": dict, "best": bool},
    "keep": {"steps": [int], "best": [int]},
    "send": {"rows": bool},
    "best": {"step": int, "trial": bool},
    "task": {"what": {"what": str, "number": int}, "ranks": [int]},
    "write": {"name": str, "value": JSON},
    "append": {"name": str, "line": str},
    "stop": {"leave": bool},
    "memory": {},
    "port": {},
    "launch": {"address": str, "port": int},
    "serve": {},
    "make": {"number": int, "value": dict},
    "drop": {"number": int},
    "reply": {"calls": [(int, int)], "table": int, "problem": str},
    "leave": {},
    "end": {},
}
ANSWERS: dict[str, Any] = {  # events that are waited for
    "hello": {"version": str},
    "placed": {"port": int, "key": str},
    "checked": {"problems": [str], "checkpoints": [(int, str, dict, int)], "graph": str},
    "opened": str,
    "ready": bool,
    "brought": bool,
    "saved": {"problem": str},
    "loaded": {"problem": str},
    "sent": {"problem": str},
    "memory": int,
    "port": int,
}
EVENTS: dict[str, Any] = ANSWERS | {
    "beat": JSON,  # another release, which is not known to be one yet, may say it otherwise: `DOING`
    "failed": {"what": str, "recoverable": bool, "code": int},
    "say": str,
    "progress": {"steps": [int], "positives": int, "sums": [float]},
    "arrived": int,
    "trained": [int],
    "finished": {"rank": int, "task": int, "problem": str},
    "result": JSON,
    "interrupt": bool,
    "call": {"rank": int, "number": int, "what": str, "value": dict},
    "line": {"who": str, "text": str, "error": bool},
    "exit": {"who": str, "rank": int, "code": int, "why": str, "early": bool},
    "made": {"number": int, "problem": str},
    "served": bool,
}
# What a process of a script says to its agent, and that to it, on their line.
SCRIPT_SAYS: dict[str, Any] = {
    "hello": {"pid": int},
    "call": {"number": int, "what": str, "value": dict},
    "ready": bool,
    "beat": bool,
    "made": {"number": int, "problem": str},
    "raised": str,
}
SCRIPT_HEARS: dict[str, Any] = {
    "job": dict,
    "reply": {"number": int, "value": dict, "problem": str},
    "make": {"number": int, "value": dict, "handles": dict, "fill": bool},
    "drop": int,
    "leave": bool,
}
CREATE: dict[str, Any] = {"name": str, "spec": dict, "arrays": dict, "bounds": [int], "init": str}
DOING = (str, str, int)
Doing = tuple[str, str, int]
NUMBERS = ("progress", "result", "call")  # which no terminal sees


def command_of(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the fields of a command. Raises ProtocolError."""
    fields = {key: value for key, value in message.items() if key != "do"}
    name = message.get("do")
    shape = COMMANDS.get(name) if isinstance(name, str) else None
    if shape is None or fields.keys() != shape.keys() or not fits(fields, shape):
        raise ProtocolError(f"the launcher asks for {name!r:.60} in words that are not ours; is kgdist the same everywhere?")
    return str(name), fields


def event_of(name: str, value: Any) -> Any:
    """The value of an event, every text in it fit for a terminal. Raises ProtocolError."""
    if name not in EVENTS or not fits(value, EVENTS[name]):
        raise ProtocolError(f"says {cleaned(name)!r:.60} in words that are not ours; is kgdist the same everywhere?")
    return value if name in NUMBERS else cleaned(value)


def word_of(message: dict[str, Any], table: dict[str, Any]) -> tuple[str, Any]:
    """What is said on the line of a script's process: its name in `table`, and its value. Raises ProtocolError."""
    name, value = next(iter(message.items()), ("", None))
    if len(message) != 1 or name not in table or not fits(value, table[name]):
        raise ProtocolError(f"{str(message)[:60]!r} is not one of our words; is the line of KGDIST_LINE used by something else?")
    return name, value


def fits(value: Any, shape: Any) -> bool:
    """Whether JSON is of a shape: a type; [shape] for a list of such; a tuple of shapes for a list of those; {key: shape} for an
    object that has at least these keys."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], inner) for key, inner in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return isinstance(value, list) and len(value) == len(shape) and all(map(fits, value, shape))
    return isinstance(value, shape)


def cleaned(value: Any) -> Any:
    """JSON with every text in it fit for a terminal, see `readable`."""
    if isinstance(value, str):
        return readable(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return {key: cleaned(item) for key, item in value.items()} if isinstance(value, dict) else value
