"""Processes that are killed or stopped, and the keys and signals of whoever started the job."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from tests.family import alive, parent
from tests.faults.matrix.trial import STALL, STEPS, Never, T, Trial, case, press
from tests.faults.rig import marked

STOP, CONT = signal.SIGSTOP, signal.SIGCONT


@case("nothing", "nothing (unfailed run)", "exit 0")
def nothing(t: Trial) -> None:
    with t.two("--test"):
        t.ends()


@case("trainer-killed", "trainer kill -9", "seen 1 s, training 20 s; the others go on")
def trainer_killed(t: Trial) -> None:
    with t.two("--test"):
        t.kill("trainer-1-0")
        t.sees(r"trainer 0 was killed by signal SIGKILL.*started again", 1.0)
        t.trains(20.0, (1,))
        t.ends()
        t.check(not t.said("attempt"), "the job went back")


@case("server-killed", "server kill -9", "seen 1 s, training 60 s")
def server_killed(t: Trial) -> None:
    with t.two("--test"):
        t.kill("server-1")
        t.back("attempt 2 of", 1.0)


@case("forkserver-killed", "the process that forks trainers and servers kill -9", "seen 1 s, training 60 s")
def forkserver_killed(t: Trial) -> None:
    with t.two("--test") as job:
        forks = parent(job.trainer(1))
        t.blow(lambda: os.kill(forks, signal.SIGKILL))
        t.back("attempt 2 of", 1.0)


@case("agent-killed", "agent kill -9", "decided 20 s, training 60 s")
def agent_killed(t: Trial) -> None:
    with t.two("--test") as job:
        agent = job.agent(1)
        t.blow(lambda: os.kill(agent, signal.SIGKILL))
        t.back("attempt 2 of", 20.0)


@case("agent-killed-writing", "agent kill -9 while a checkpoint is half written", "goes on at the one before")
def agent_killed_writing(t: Trial) -> None:
    with t.two("--test", hidden_dim="400") as job:
        agent = job.agent(1)
        shard = next(t.rig.places[1].glob("*/machine_1"))
        t.wait("a half-written checkpoint", lambda: _stopped_writing(agent, shard))
        t.blow(lambda: os.kill(agent, signal.SIGKILL))
        t.sees("attempt 2 of", 20.0)
        t.trains(60.0, resumed=True)
        t.ends(test=False)  # of another dimension than the unfailed run


def _stopped_writing(agent: int, shard: os.PathLike[str]) -> bool:
    """Stop the agent if it is writing a checkpoint."""
    for _ in range(200):
        if any(name.startswith(".ckpt-") for name in os.listdir(shard)):
            os.kill(agent, STOP)
            time.sleep(0.01)
            if any(name.startswith(".ckpt-") for name in os.listdir(shard)):
                return True
            os.kill(agent, CONT)
        time.sleep(0.0002)
    return False


@case("sshd-killed", "sshd session of a machine kill -9", "decided 20 s, training 60 s")
def sshd_killed(t: Trial) -> None:
    with t.two("--test"):
        sessions = t.rig.session(1)
        t.blow(lambda: [os.kill(pid, signal.SIGKILL) for pid in sessions])
        t.back("attempt 2 of", 20.0)


@case("launcher-killed", "launcher kill -9", "all gone 2 s")
def launcher_killed(t: Trial) -> None:
    with t.two() as job:
        t.blow(job.process.kill)
        t.gone = t.wait("the end of all processes", lambda: not t.rig.left())
        t.code = job.process.wait(timeout=5)
        t.late("gone", t.gone, 2.0)


@case("launcher-stopped", "launcher SIGSTOP, SIGCONT when all is gone", "all gone T + 5 s; goes on afterwards")
def launcher_stopped(t: Trial) -> None:
    with t.two("--test") as job:
        t.blow(lambda: os.kill(job.process.pid, STOP))
        t.gone = t.wait("the end of all other processes", lambda: not job.pids())
        t.late("gone", t.gone, T + 5)
        os.kill(job.process.pid, CONT)
        t.back("attempt 2 of", 30.0)


@case("launcher-hangup", "launcher SIGHUP (terminal closed), then --resume", "all gone 10 s, saved, exit 130")
def launcher_hangup(t: Trial) -> None:
    _interrupt(t, 10.0, signal.SIGHUP)


@case("launcher-terminated", "launcher SIGTERM, then --resume", "all gone 10 s, saved, exit 130")
def launcher_terminated(t: Trial) -> None:
    _interrupt(t, 10.0, signal.SIGTERM)


@case("ctrl-c", "Ctrl-C once, then --resume", "all gone 10 s, saved, exit 130")
def ctrl_c(t: Trial) -> None:
    _interrupt(t, 10.0, signal.SIGINT)


@case("ctrl-c-twice", "Ctrl-C twice", "at once (5 s), exit 130")
def ctrl_c_twice(t: Trial) -> None:
    with t.two() as job:
        t.blow(lambda: press(job, signal.SIGINT, signal.SIGINT))
        t.leaves(130, 5.0)


def _interrupt(t: Trial, within: float, *keys: signal.Signals) -> None:
    """Leave by those signals; what was done is saved, and can be gone on with."""
    with t.machines():
        with t.job("--test") as job:
            t.begun()
            time.sleep(0.5)
            before = max(job.checkpoints(0) & job.checkpoints(1))
            t.blow(lambda: press(job, *keys))
            t.leaves(130, within)
            newest = max(job.checkpoints(0) & job.checkpoints(1))
            t.check(newest >= before and t.said("interrupted at step"), "nothing was saved")
            t.notes.append(f"saved at step {newest}")
        t.resumes()


@case("agent-stopped", "agent SIGSTOP, SIGCONT at the end", "seen 2 T + 5 s, training 60 s; what is frozen leaves when it thaws")
def agent_stopped(t: Trial) -> None:
    with t.two("--test") as job:
        agent = job.agent(1)
        t.blow(lambda: os.kill(agent, STOP))
        t.back("attempt 2 of", 2 * T + 5)
        left = marked(t.rig.mark)
        t.check(not left - {agent}, f"left besides the frozen agent: {t.rig.left()}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, CONT)
        t.gone = t.wait("the end of the agent", lambda: not alive(agent), 20.0)


@case("server-stopped", "server SIGSTOP", "seen 2 T + 5 s, training 60 s")
def server_stopped(t: Trial) -> None:
    with t.two("--test"):
        t.kill("server-1", STOP)
        t.back("attempt 2 of", 2 * T + 5)


@case("trainer-stopped", f"trainer SIGSTOP, --stall_timeout {STALL:g}", f"seen {STALL + 5:g} s, training 20 s later")
def trainer_stopped(t: Trial) -> None:
    with t.two("--test", stall_timeout=f"{STALL:g}"):
        t.kill("trainer-1-0", STOP)
        t.sees("trainer 0 has done nothing for", STALL + 5)
        t.trains(STALL + 25)
        t.ends()
        t.check(not t.said("run out of memory"), "says that memory ran out")


@case("trainer-stopped-ctrl-c", "trainer SIGSTOP, then Ctrl-C once", "all gone 10 s, saved, exit 130")
def trainer_stopped_ctrl_c(t: Trial) -> None:
    with t.two(stall_timeout=f"{STALL:g}") as job:
        before = max(job.checkpoints(0) & job.checkpoints(1))
        t.kill("trainer-1-0", STOP)
        time.sleep(0.5)
        t.blow(lambda: press(job))
        t.leaves(130, 10.0)
        newest = max(job.checkpoints(0) & job.checkpoints(1))
        t.check(newest >= before and t.said("interrupted at step"), "nothing was saved")


@case("trainer-stopped-early", "trainer SIGSTOP at the moment of an early stop", f"ends well, {STALL + 25:g} s")
def trainer_stopped_early(t: Trial) -> None:
    early = {"eval_interval": "100", "early_stop_patience": "1", "lr": "1e-12", "stall_timeout": f"{STALL:g}"}
    with t.machines(), t.job("--valid", "--test", **early) as job:
        t.first_words()
        trainer = min(job.pids("trainer-1-0"))
        t.wait("the early stop", lambda: t.said("early stop at step"))
        t.blow(lambda: os.kill(trainer, STOP))
        t.ends(test=False)
        t.again = time.monotonic() - t.at
        t.late("ended", t.again, STALL + 25)


@case("trainer-killed-testing", "trainer kill -9 in the final test", "the test is made")
def trainer_killed_testing(t: Trial) -> None:
    with t.two("--test", batch_size_eval="1") as job:
        t.wait("the end of training", lambda: all(t.find(rf"^machine_{n} .*\({STEPS}/", 0) is not None for n in range(2)))
        t.wait("a saved model", lambda: list(t.rig.places[0].glob("*/toy_*_entity.npy")) or job.process.poll() is not None)
        if t.said("Test average"):
            raise Never("the test was over before it could be struck")
        t.kill("trainer-1-0")
        t.sees(r"trainer 0 was killed by signal SIGKILL", 1.0)
        t.ends()
