"""The plan of a script: the same after its journey as JSON; ranks and servers are numbered through all machines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError
from kgdist.options.parse import parse_tool
from kgdist.options.tools import LaunchOptions
from kgdist.runtime.agent.script_site import FLOW, Tap
from kgdist.runtime.cluster.script_plan import ScriptPlan, argv_of
from kgdist.runtime.ip_config import Machine

MACHINES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda servers: [Machine("127.0.0.1", 30000 + 10 * n, count, n) for n, count in enumerate(servers)]
)


@given(MACHINES, st.integers(1, 4), st.integers(0, 3))
def test_a_plan_survives_its_journey_and_every_number_is_given_once(
    machines: list[Machine], trainers: int, samplers: int
) -> None:
    options = LaunchOptions(command="python3 x.py", num_trainers=trainers, num_samplers=samplers, extra_envs=("A=b=c", "D="))
    plan = ScriptPlan(options, machines, "run", 1, "", argv_of(options), security="curve", keys=["a", "b"])
    back = ScriptPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert back == plan and back.again().attempt == 2
    count = len(machines)
    assert [rank for n in range(count) for rank in plan.ranks(n)] == list(range(plan.trainers))
    assert [server for n in range(count) for server in plan.servers(n)] == list(range(len(plan.addresses)))
    assert plan.clients == trainers * count * (1 + samplers) and len(plan.describe()) == 1 + count
    assert all(machines[rank // trainers].name in plan.named(rank) for rank in range(plan.trainers))


def test_the_documents_command_line_means_what_it_says() -> None:
    words = (
        "--workspace ~/workspace/ --num_trainers 1 --num_samplers 0 --num_servers 1 --part_config 4part_data/ogbn-products.json"
    )
    options = parse_tool("launch", [*words.split(), "--ip_config", "ip_config.txt", "python3 train_dist.py --graph-name 'a b'"])
    assert argv_of(options) == ["python3", "train_dist.py", "--graph-name", "a b"]
    assert (options.path, options.num_servers, options.part_config) == ("~/workspace/", 1, "4part_data/ogbn-products.json")
    assert parse_tool("launch", ["--num_clients", "2", "x"]).num_trainers == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], '--command: give the command of the script, in quotes, as the last word: "python3 train.py"'),
        (["python3 'x"], '--command: No closing quotation: "python3 \'x"'),
        (["--extra_envs", "A=1", "python3 x.py"], "--extra_envs: expected NAME=VALUE, not 'python3 x.py'; another option ends"),
        (["'python3 x.py'"], "--command: 'python3 x.py' is one word, so no program: take away the inner quotes"),
        (['"python3 x.py"'], "--command: 'python3 x.py' is one word, so no program"),
        (["A=1 python3 x.py"], "--command: no shell reads it, so 'A=1' is not a variable: give it by --extra_envs"),
        (["cd x && python3 y.py"], "--command: no shell reads it, so '&&' has no meaning: give a shell of your own, bash -c '"),
        (["cd x; python3 y.py"], "--command: no shell reads it, so 'x;' has no meaning"),
        (["python3 x.py > log"], "--command: no shell reads it, so '>' has no meaning"),
        (["python3 x.py 2>&1"], "--command: no shell reads it, so '2>&1' has no meaning"),
        (["python3 x.py | tee log"], "--command: no shell reads it, so '|' has no meaning"),
        (["python3 x.py &"], "--command: no shell reads it, so '&' has no meaning"),
        (["source env"], "--command: no shell reads it, so 'source' has no meaning"),
        (["--num_trainers", "0", "x"], "--num_trainers: must be an integer >= 1"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], line: str) -> None:
    with pytest.raises(OptionError) as caught:
        argv_of(parse_tool("launch", words))
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'cd x && python3 y.py > log'",
        "python3 -c 'import a; a.b()'",
        "python3 x.py '&&' 'a;'",
        "'./my tool/run'",
        "x.py a|b",
    ],
)
def test_what_needs_no_shell_is_taken(command: str) -> None:
    assert argv_of(parse_tool("launch", [command]))


def test_a_tap_lets_through_what_flows_slowly_and_no_more_of_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("kgdist.runtime.agent.script_site.time.monotonic", lambda: now[0])
    tap = Tap(FLOW)
    assert sum(tap.lets(1024) for _ in range(5000)) == FLOW // 1024
    now[0] += 0.5
    assert sum(tap.lets(1024) for _ in range(5000)) == FLOW // 2048
    now[0] += 100
    assert sum(tap.lets(1024) for _ in range(5000)) == FLOW // 1024
