"""Requests that cannot be, clients that are slow or many, runs that go away: a clear status each, no 500, and it goes on."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.base.errors import EvaluationError
from kgdist.cli import serve as serve_command
from kgdist.serve import app as app_module
from kgdist.serve import gatherer
from tests.patience import patience
from tests.serve.rig import PATIENCE, TOKEN, Served, served, trained, until

GOOD = {"head": "e1", "relation": "r1"}
REFUSED: list[tuple[str, Any, int, str]] = [
    ("/predict", b"{", 400, "is not JSON"),
    ("/predict", b"", 400, "is not JSON"),
    ("/predict", b"\xff\xfe", 400, "is not JSON"),
    ("/predict", b"[" * 100_000, 400, "nested too deeply"),
    ("/predict", b'{"k": ' + b"9" * 5000 + b"}", 400, "is not JSON that can be read: a number has thousands of digits"),
    ("/predict", b"[1]", 400, "must be a JSON object"),
    ("/predict", {"questions": {}}, 400, "a list of JSON objects"),
    ("/predict", {"questions": [GOOD, 3]}, 400, "a list of JSON objects"),
    ("/predict", {"questions": [GOOD] * 300}, 400, "--max_questions"),
    ("/predict", {"questions": [GOOD] * 256, "k": 1000}, 400, "50,000 answers"),
    ("/predict", {**GOOD, "heads": "e2"}, 400, "not 'heads'"),
    ("/predict", {"head": "e1"}, 400, "give two of"),
    ("/predict", {**GOOD, "tail": "e1"}, 400, "give two of"),
    ("/predict", {**GOOD, "head": 7}, 400, "must be a name"),
    ("/predict", {**GOOD, "head": ["e1"]}, 400, "must be a name"),
    ("/predict", {**GOOD, "k": 10**9}, 400, "--max_k"),
    ("/predict", {**GOOD, "k": True}, 400, "--max_k"),
    ("/predict", {**GOOD, "k": 1.5}, 400, "--max_k"),
    ("/predict", {**GOOD, "exclude_known": "yes"}, 400, "true or false"),
    ("/predict", {**GOOD, "head": "nobody"}, 404, "no entity is called 'nobody'"),
    ("/predict", {**GOOD, "relation": "e1"}, 404, "no relation is called 'e1'"),
    ("/predict", b'{"head": "\\ud800", "relation": "r1"}', 404, "no entity is called"),
    ("/predict", {**GOOD, "head": "e\0\n"}, 404, "no entity is called"),
    ("/predict", b" " * 300_000, 413, "--max_body"),
    ("/predict?head=e1&relation=r1&k=" + "9" * 30, None, 400, "--max_k"),
    ("/predict?head=%ff%00&relation=r1", None, 404, "no entity is called"),
    ("/predict?head=e1&head=e2&relation=r1", None, 400, "'head' is given more than once"),
    ("/entities?q=a&q=b", None, 400, "'q' is given more than once"),
    ("/facts?entity=e1&entity=e2", None, 400, "'entity' is given more than once"),
    ("/predict", {"questions": [], "heads": "e2"}, 400, "not 'heads'"),
    ("/similar", {"entity": "e1", "relation": "r1"}, 400, "of an entity, or of a relation"),
    ("/similar", {"entity": "e1", "measure": "strange"}, 400, "measure must be"),
    ("/similar", {"entity": "e1", "measure": ["l2"]}, 400, "measure must be"),
    ("/score", GOOD, 400, "tail is missing"),
    ("/explain", {**GOOD, "tail": "e99"}, 404, "no entity is called 'e99'"),
    ("/facts", None, 400, "takes the name of an entity"),
    ("/facts?entity=e77", None, 404, "no entity is called 'e77'"),
    ("/entities?q=a&k=0", None, 400, "--max_k"),
    ("/entities?kind=thing", None, 400, "kind must be"),
    ("/nothing", None, 404, "Not Found"),
    ("/healthz", b"x", 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused(server: Served, path: str, body: Any, status: int, text: str) -> None:
    found, answer = server.ask(path, body)
    assert (found, text in answer["error"]) == (status, True), answer


@pytest.mark.parametrize("path", ["/predict?head=e1&relation=r1", "/score?head=e1&relation=r1&tail=e2", "/similar?entity=e1"])
def test_the_head_of_an_answer_is_that_of_the_answer(server: Served, path: str) -> None:
    with server.raw() as line:
        line.sendall(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        said = b"".join(iter(lambda: line.recv(4096), b""))
    assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"\r\n\r\n"), said


def test_unknown_names_are_answered_with_near_ones(server: Served) -> None:
    status, answer = server.ask("/predict", {**GOOD, "head": "E12 "})
    assert status == 404 and "e12" in answer["near"]


def test_nothing_was_a_fault_of_the_server(server: Served) -> None:
    """After all requests before: the server answers, nothing is held, and no status was 500."""
    assert server.ask("/predict", GOOD)[0] == 200
    until(lambda: server.app.inside == 0)
    assert server.app.room == server.app.hints == server.gatherer.waiting() == 0
    assert {status for _, status in server.app.statuses} <= {200, 400, 404, 405, 408, 413}


def test_clients_that_reset_with_requests_waiting_are_no_fault(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    monkeypatch.setattr(app_module.log, "error", lambda text, *words: errors.append(text % words))
    body = json.dumps(GOOD).encode()
    request = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for _ in range(20):
        with server.raw() as line:
            line.sendall(3 * request)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
    until(lambda: server.app.inside == 0)
    assert server.ask("/predict", GOOD)[0] == 200 and not errors


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 50,
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\ncontent-length: -4\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(server: Served, head: bytes) -> None:
    with server.raw() as line:
        line.sendall(head)
        assert line.recv(4096).startswith((b"HTTP/1.1 400", b"HTTP/1.1 40"))
    assert server.ask("/healthz")[0] == 200


def test_a_page_elsewhere_cannot_ask_under_another_name(server: Served) -> None:
    assert server.ask("/predict?head=e1&relation=r1", None, Host="strange.example")[0] == 403
    assert server.ask("/predict?head=e1&relation=r1", None, Host=f"localhost:{server.port}")[0] == 200


def test_only_who_has_the_token_may_ask(run: Path) -> None:
    with served(run, TOKEN.encode()) as server:
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/predict?head=e1&relation=r1", "/entities?q=e", "/metrics", "/facts?entity=e1"):
                assert server.ask(path, None, **wrong)[0] == 401
            assert server.ask("/healthz", None, **wrong) == (200, {"status": "ok"})
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert server.ask("/predict?head=e1&relation=r1", None, **right)[0] == 200
        assert server.ask("/healthz", None, **right)[1]["entities"] == 30


def closed(line: socket.socket) -> bytes:
    """All that comes until the other side has closed."""
    found = b""
    try:
        while piece := line.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def test_slow_clients_are_not_waited_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.serve.listener.GRACE", 0.2)
    with served(run, timeout=0.5, max_questions=5000) as server:
        silent, half_head, half_body, deaf = (server.raw() for _ in range(4))
        half_head.sendall(b"GET /healthz HTTP/1.1\r\nhost: local")
        half_body.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        many = json.dumps({"questions": [GOOD] * 1600, "k": 30}).encode()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(many) + many)
        began = time.monotonic()
        assert closed(silent) == b""
        assert closed(half_head).startswith(b"HTTP/1.1 408 ")
        assert closed(half_body).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < PATIENCE / 2
        until(lambda: server.app.inside == 0 and not server.server.server_state.connections)
        assert server.app.room == 0
        with server.raw() as line:  # a head without end
            line.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
            assert b"431" in closed(line)[:20]
        for each in (silent, half_head, half_body, deaf):
            each.close()


def test_a_thousand_connections(run: Path) -> None:
    with served(run, timeout=60) as server:
        lines = [server.raw() for _ in range(1000)]
        for line in lines:
            line.sendall(b"GET /score?head=e1&relation=r1&tail=e2 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert {line.recv(4096)[:12] for line in lines} == {b"HTTP/1.1 200"}
        for line in lines:
            line.close()
        until(lambda: not server.server.server_state.connections)


def test_too_many_at_once_are_asked_to_come_again(run: Path) -> None:
    with served(run, max_requests=2, batch_wait=300) as server:
        found: list[int] = []
        clients = [threading.Thread(target=lambda: found.append(server.ask("/predict", GOOD)[0])) for _ in range(6)]
        for each in clients:
            each.start()
        for each in clients:
            each.join(timeout=PATIENCE)
        assert sorted(set(found)) == [200, 503] and found.count(200) >= 2
        assert server.ask("/predict", GOOD)[0] == 200


def test_an_answer_that_is_late_or_fails_is_told_to_its_client_alone(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = gatherer.compute

    def failing(live: Any, questions: Any) -> Any:
        if questions[0].what == "relation":
            raise EvaluationError("a score is not a number")
        if questions[0].what == "score":
            raise MemoryError
        return compute(live, questions)

    monkeypatch.setattr(gatherer, "compute", failing)
    assert server.ask("/predict", {"head": "e1", "tail": "e2"}) == (422, {"error": "a score is not a number"})
    assert server.ask("/score", {**GOOD, "tail": "e2"})[0] == 503
    assert server.ask("/predict", {"questions": [GOOD, {"head": "e1", "tail": "e2"}]})[0] == 422
    assert server.ask("/predict", GOOD)[0] == 200


def test_a_run_that_is_trained_again_is_taken_over_without_a_gap(tmp_path: Path) -> None:
    run = trained(tmp_path)
    other = trained(tmp_path, "--seed", "9")
    with served(run) as server:
        old, found, end = server.ask("/predict", GOOD)[1], list[Any](), threading.Event()

        def client() -> None:
            while not end.is_set():
                found.append(server.ask("/predict", GOOD))

        thread = threading.Thread(target=client)
        thread.start()
        for file in other.glob("*.npy"):
            shutil.copy(file, run / "new")
            (run / "new").rename(run / file.name)
        until(lambda: server.current.taken_over)
        new = server.ask("/predict", GOOD)[1]
        end.set()
        thread.join(timeout=PATIENCE)
        assert new != old and {status for status, _ in found} == {200}
        assert all(answer in (old, new) for _, answer in found)

        for file in run.glob("*_entity.npy"):  # one that diverged
            rows = np.load(file)
            np.save(run / "new.npz.tmp.npy", np.full_like(rows, np.nan))
            (run / "new.npz.tmp.npy").rename(file)
        until(lambda: server.current._refused != server.current.live.stamp)
        assert server.ask("/predict", GOOD) == (200, new)
        shutil.rmtree(run)
        until(lambda: not server.current._refused)
        assert server.ask("/predict", {**GOOD, "exclude_known": True})[0] == 200
        assert server.ask("/explain", {**GOOD, "tail": "e3"})[0] == 200
        assert server.current.taken_over == 1


def test_without_its_data_a_run_is_asked_all_the_same(tmp_path: Path) -> None:
    run = trained(tmp_path)
    shutil.rmtree(tmp_path / "data")
    with served(run) as server:
        (answer, *_) = server.ask("/predict", GOOD)[1]["answers"]
        assert "probability" not in answer and "known" not in answer
        status, told = server.ask("/predict", {**GOOD, "exclude_known": True})
        assert status == 409 and "--data_path" in told["error"]
        assert server.ask("/facts?entity=e1")[1]["facts"] == []
        assert server.ask("/explain", {**GOOD, "tail": "e2"})[1]["nearest_facts"] == []


@pytest.mark.slow
def test_sigterm_answers_what_is_inside(run: Path) -> None:
    command = [sys.executable, "-m", "kgdist.cli.serve", str(run), "--port", "0", "--num_thread", "1", "--batch_wait", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert "answers" in line, process.stderr.read()
            port = int(line.split(" answers")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as asked:
                asked.sendall(b"GET /predict?head=e1&relation=r1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
                time.sleep(0.3)  # it is inside, and waits for others
                process.terminate()
                assert closed(asked).startswith(b"HTTP/1.1 200")
            assert process.wait(timeout=patience(30)) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize("case", ["port", "token", "host", "run"])
def test_what_cannot_be_served_is_one_line(case: str, server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = tmp_path / "token"
    short.write_text("short\n")
    words, text = {
        "port": (["--port", str(server.port)], f"--port: {server.port} is in use on 127.0.0.1"),
        "token": (["--token_file", str(short)], "--token_file"),
        "host": (["--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached by others: give --token_file"),
        "run": (["--port", "0"], "no such run folder"),
    }[case]
    assert serve_command.main([str(tmp_path / "none"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and text in line
