"""On a busy machine, threads that wait for each other give way to one."""

import pytest
import torch

from dgconv import deploy
from dgconv.deploy.run import company
from dgconv.models import create_model


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(company.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_for_a_while_after_several_were_slow(clock, two_threads):
    threads = company.Company()
    assert threads.threads() == 2
    threads.slowed_down(0.5)
    assert threads.threads() == 1
    clock[0] += company.ALONE_FOR * 0.5 - 0.1
    assert threads.threads() == 1
    clock[0] += 0.2
    assert threads.threads() == 2


def test_a_program_is_told_by_the_native_code(clock, two_threads):
    prepared = deploy.prepare(create_model("condensenet20_dgc", stages=(1,), growth=(4,)).eval())
    x = torch.rand(1, 3, 16, 16)
    prepared(x)
    if prepared._whole is None:
        pytest.skip("no native kernels")
    layout = prepared._whole._last[1]
    layout._company, used = company.Company(), []

    def slow_run(program, x, y, arena, chosen, threads, seconds):
        used.append(threads)
        return 0.01 if threads > 1 else 0.0

    layout._run = slow_run
    for _ in range(3):
        prepared(x)
    clock[0] += 1
    prepared(x)
    assert used == [2, 1, 1, 2]
