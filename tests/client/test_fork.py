"""Forked and spawned children of a process with a run: whole scripts, with warnings as errors, and their messages."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from client.router import pushed
from processes import DEADLINE, clean_environ, start

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from client.router import Message, Router, Row

    from trackside.wire import Identity

FORK_WARNS = "ignore:This process:DeprecationWarning"
"""From Python 3.12 on, os.fork warns of any thread, and the client has one."""


class Sent(NamedTuple):
    """The messages of one session; *end* is the status and cause of its end, if it reported one."""

    identity: Identity
    rows: list[Row]
    end: tuple[str, str] | None


@pytest.fixture
def trained(router: Router, tmp_path: Path) -> Callable[..., list[Sent]]:
    """A function that runs a script until it exits without an error, and returns the messages of each session."""

    def run(code: str, **environ: str) -> list[Sent]:
        script, errors = tmp_path / "train.py", tmp_path / "errors"
        script.write_text(textwrap.dedent(code))
        with errors.open("w") as file:
            process = start(
                [sys.executable, "-W", "error", "-W", FORK_WARNS, str(script)],
                env=clean_environ({"TRACKSIDE_ENDPOINT": router.endpoint, "PLACE": str(tmp_path), **environ}),
                stderr=file,
                nursery="torch" in code,
            )
        try:
            reported = serve(router, process)
        finally:
            process.kill()
            process.wait()
        assert (errors.read_text(), process.returncode) == ("", 0)
        return [sent(messages) for messages in reported.values()]

    return run


def serve(router: Router, process: subprocess.Popen[bytes]) -> dict[bytes, list[Message]]:
    """Welcome and acknowledge everything until a process has ended; return the messages of each session."""
    reported: dict[bytes, list[Message]] = {}
    until = time.monotonic() + DEADLINE
    while True:
        ended = process.poll() is not None
        message = router.next(within=0.1)
        if message is not None:
            reported.setdefault(message.session, []).append(message)
            router.answer(message, "welcome" if message.kind == "hello" else "ack", message.number)
        elif ended:
            return reported
        if time.monotonic() > until:
            pytest.fail(f"the script hangs; it has sent {reported}")


def sent(messages: list[Message]) -> Sent:
    """Return the messages of a session; count a batch once that was resent because its acknowledgement was late."""
    hello = next(message for message in messages if message.kind == "hello")
    end = next(((message.body.status, message.body.cause) for message in messages if message.kind == "bye"), None)
    return Sent(hello.body.identity, pushed({message.number: message for message in messages}.values()), end)


LOADER = """
import os, torch, trackside

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        trackside.push(step=index, loaded=index)
        return torch.tensor(float(index))

def begin(worker):
    if os.environ.get("ASKED"):
        with trackside.init(f"worker-{worker}") as run:
            run.push(step=worker, asked=1.0)

if __name__ == "__main__":
    if os.environ.get("OPENED"):
        trackside.init("parent")
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=os.environ["METHOD"], worker_init_fn=begin
    )
    for step, batch in enumerate(loader):
        trackside.push(step=step, loss=batch[0])
"""
LOSSES = [(step, {"loss": 4.0 * step}) for step in range(10)]


METHODS = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.only_soak)]

PATIENT = {
    "TRACKSIDE_FLUSH_TIMEOUT": "60"
}  # a worker ends only when what it pushed has arrived, also on a busy machine


@pytest.mark.parametrize(
    ("method", "opened", "asked"),
    [
        ("fork", "1", "1"),
        ("spawn", "", ""),
        pytest.param("fork", "", "", marks=pytest.mark.only_soak),
        pytest.param("fork", "1", "", marks=pytest.mark.only_soak),
        pytest.param("spawn", "1", "1", marks=pytest.mark.only_soak),
    ],
)
def test_pushes_of_a_dataset_in_a_data_loaders_workers_are_dropped_unless_these_ask_for_a_run(
    trained: Callable[..., list[Sent]], method: str, opened: str, asked: str
) -> None:
    found = trained(LOADER, METHOD=method, OPENED=opened, ASKED=asked, **PATIENT)
    own = {one.identity.name: one.rows for one in found if one.identity.name.startswith("worker-")}
    assert own == ({f"worker-{rank}": [(rank, {"asked": 1.0})] for rank in range(2)} if asked else {})
    assert [one.rows for one in found if one.identity.name not in own] == [LOSSES]
    assert len({one.identity.run for one in found}) == len(found)


def test_without_workers_what_a_dataset_pushes_is_the_runs(trained: Callable[..., list[Sent]]) -> None:
    [one] = trained(
        """
        import torch, trackside

        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                trackside.push(step=index, loaded=index)
                return torch.tensor(float(index))

        for batch in torch.utils.data.DataLoader(Numbers()):
            pass
        """
    )
    assert one.rows == [(index, {"loaded": index}) for index in range(4)]


@pytest.mark.parametrize("method", METHODS)
def test_the_workers_of_a_pool_have_no_part_in_their_parents_run(
    trained: Callable[..., list[Sent]], method: str
) -> None:
    parent, *workers = sorted(
        trained(
            """
            import multiprocessing, os, trackside

            def load(index):
                trackside.push(step=index, loaded=index)
                return index

            if __name__ == "__main__":
                run = trackside.init("parent")
                pool = multiprocessing.get_context(os.environ["METHOD"]).Pool(2)
                for step, loaded in enumerate(pool.imap(load, range(40))):
                    trackside.push(step=step, loss=loaded)
                pool.close()
                pool.join()
            """,
            METHOD=method,
        ),
        key=lambda one: one.identity.name,
    )
    assert parent.rows == [(step, {"loss": step}) for step in range(40)]
    # A process that inherits nothing and is no data loader's cannot know of the parent's run: it opens its own.
    loaded = sorted(row for worker in workers for row in worker.rows)
    assert loaded == ([] if method == "fork" else [(index, {"loaded": index}) for index in range(40)])
    assert len({one.identity.run for one in (parent, *workers)}) == 1 + len(workers)
    assert {one.end for one in (parent, *workers)} == {("finished", "")}


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_asks_for_a_run_reports_how_it_ended(trained: Callable[..., list[Sent]], method: str) -> None:
    children = trained(
        """
        import io, multiprocessing, os, sys, trackside

        def train(name):
            sys.stderr = io.StringIO()
            trackside.init(name).push(loss=0.5)
            if name == "exits":
                sys.exit(3)
            if name == "raises":
                raise ValueError("a")

        if __name__ == "__main__":
            trackside.init("parent")
            context = multiprocessing.get_context(os.environ["METHOD"])
            for name in ("exits", "raises", "ends"):
                try:
                    raise OSError("the parent handles this while it forks")
                except OSError:
                    child = context.Process(target=train, args=(name,))
                    child.start()
                child.join()
        """,
        METHOD=method,
    )
    assert {one.identity.name: one.end for one in children} == {
        "parent": ("finished", ""),
        "exits": ("failed", "exit status 3"),
        "raises": ("failed", "ValueError: a"),
        "ends": ("finished", ""),
    }


def test_an_object_with_a_run_may_be_given_to_a_spawned_process(trained: Callable[..., list[Sent]]) -> None:
    found = trained(
        """
        import multiprocessing, trackside

        class Trainer:
            def __init__(self):
                self.run = trackside.init("parent")
                self.batches = self.run.data([1.0])

            @trackside.phase("eval")
            def evaluate(self):
                for step, loss in enumerate(self.batches):
                    self.run.push(step=step, loss=loss)

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=Trainer().evaluate)
            child.start()
            child.join()
        """
    )
    assert [one.rows for one in sorted(found, key=lambda one: len(one.rows))] == [[], [(0, {"loss": 1.0})]]
    assert [one.end for one in found] == [("finished", "")] * 2


def test_ranks_that_torch_spawns_are_one_run_without_configuration(trained: Callable[..., list[Sent]]) -> None:
    ranks = trained(
        """
        import os, torch.distributed, torch.multiprocessing, trackside

        def train(rank):
            meeting = f"file://{os.environ['PLACE']}/meeting"
            torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=meeting)
            for step in range(100):
                trackside.push(step=step, loss=rank)
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            torch.multiprocessing.spawn(train, nprocs=2)
        """
    )
    assert sorted((one.identity.rank, one.identity.world) for one in ranks) == [(0, 2), (1, 2)]
    assert len({one.identity.run for one in ranks}) == 1
    for one in ranks:
        assert one.rows == [(step, {"loss": one.identity.rank}) for step in range(100)]


def test_forking_in_the_midst_of_a_push_neither_hangs_nor_doubles_nor_loses(
    trained: Callable[..., list[Sent]], count: Callable[[int, int], int]
) -> None:
    rounds = count(20, 300)
    found = trained(
        """
        import os, random, sys, threading, trackside

        sys.setswitchinterval(1e-6)
        rounds = int(os.environ["ROUNDS"])
        together = threading.Barrier(2)
        heavy = {f"layer/{number}": 1.0 for number in range(100)}

        def work():
            for number in range(rounds * 100):
                if number % 100 == 0:
                    together.wait()
                trackside.push(heavy if number % 10 == 0 else {}, step=number, loss=number)

        trackside.init("parent")
        thread = threading.Thread(target=work)
        thread.start()
        for number in range(rounds):
            together.wait()
            for _ in range(random.randrange(3000)):
                pass
            child = os.fork()
            if child == 0:
                trackside.push(heavy, step=0, loss=-1.0, text="no number")
                trackside.finish("failed")
                if number % 10 == 0:
                    trackside.init(f"child-{number}").push(step=number, loss=-2.0)
                    sys.exit(0)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        thread.join()
        """,
        ROUNDS=str(rounds),
    )
    by_name = {one.identity.name: one.rows for one in found}
    parent = by_name.pop("parent")
    assert [(step, values["loss"], len(values)) for step, values in parent] == [
        (number, number, 101 if number % 10 == 0 else 1) for number in range(rounds * 100)
    ]
    assert by_name == {f"child-{number}": [(number, {"loss": -2.0})] for number in range(0, rounds, 10)}


@pytest.mark.parametrize("imported", ["", "import trackside.default_run"], ids=["patched first", "imported first"])
def test_under_gevent_a_push_waits_for_nothing_and_all_of_them_arrive(
    trained: Callable[..., list[Sent]], imported: str, count: Callable[[int, int], int]
) -> None:
    pytest.importorskip("gevent")
    steps = count(100, 2000)
    [one] = trained(
        f"""
        {imported}
        from gevent import monkey
        monkey.patch_all()
        import gevent, trackside

        run = trackside.init()
        others = []
        gevent.spawn(lambda: others.append(1))
        for step in range({steps}):
            run.push(step=step, loss=0.5)
            gevent.sleep(0)
        while not run.queue.session.greeted:
            gevent.sleep(0.01)
        trackside.push(step={steps}, loss=len(others))
        """
    )
    assert one.rows == [(step, {"loss": 0.5}) for step in range(steps)] + [(steps, {"loss": 1.0})]
    assert one.end == ("finished", "")
