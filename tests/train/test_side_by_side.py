"""Whose turn it is, and what is done before a step, with runs and a clock that are made up."""

from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from dgconv.train import side_by_side
from dgconv.train.metrics import EVALUATING
from dgconv.train.side_by_side import AHEAD, FinishedRun, Queue, Silent, _Due, _UnderWay
from dgconv.train.stop import StopRequest


class Sketch:
    """Stands in for a run that goes on with its second epoch, and notes before which step what is done to it."""

    def __init__(self, number, steps=10, checkpoint_minutes=5.0, evaluates=False):
        self.recipe = SimpleNamespace(title="its title")
        self.training = SimpleNamespace(epochs=2, compile=False, checkpoint_minutes=checkpoint_minutes)
        self.steps_per_epoch, self.evaluates = steps, evaluates
        self.position = SimpleNamespace(epoch=1, step=0)
        self.first_step_seconds, self.mean_loss = None, number + 0.5
        self.model, self.data, self.evaluation, self.folder = (f"{part} {number}" for part in "mdef")
        self.writer, self.device = SimpleNamespace(wait=lambda: None), torch.device("cpu")
        self.checked, self.saved = [], []

    steps_done = property(lambda self: self.steps_per_epoch + self.position.step)

    def advance(self):
        for _ in range(self.steps_per_epoch):
            self.position.step += 1
            self.first_step_seconds = 3.0
            yield None
        if self.evaluates:
            yield EVALUATING
            self.position.step = 0
            yield None

    def check_finite(self):
        self.checked.append(self.position.step)

    def save(self):
        self.saved.append(self.position.step)


class Hears(Silent):
    def __init__(self) -> None:
        self.starts, self.first_steps, self.steps = [], [], []

    def start(self, *told):
        self.starts.append(told)

    def first_step(self, *told):
        self.first_steps.append(told)

    def step(self, *told):
        self.steps.append(told)


@pytest.fixture
def queue_of(monkeypatch):
    """Makes a queue for which every turn takes a second."""
    seconds = count()
    monkeypatch.setattr(side_by_side, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    def make(*runs, at_once=2, watcher=None):
        queue = Queue([None] * len(runs), None, at_once, watcher or Silent(), torch.device("cpu"), ExitStack())
        queue.begin = runs.__getitem__
        return queue

    return make


def stop_if(condition):
    class Request(StopRequest):
        is_made = property(lambda self: condition())

    return Request()


def test_looks_and_checkpoints_come_at_their_times(queue_of, monkeypatch):
    monkeypatch.setattr(side_by_side, "LOOK_EVERY", 2.5)
    hears = Hears()
    runs = [Sketch(0, checkpoint_minutes=9.0), Sketch(1, checkpoint_minutes=4.5 / 60)]
    queue = queue_of(*runs, watcher=hears)
    assert not queue.drive(StopRequest())
    for run in runs:
        assert run.checked == [2, 5, 8], "every third second"
        assert run.saved == [4, 9], "every fifth, as the one in the greater hurry wants it"
    assert hears.starts == [(0, "its title", 20, 10), (1, "its title", 20, 10)]
    assert hears.first_steps == [(0, 3.0, False), (1, 3.0, False)]
    assert hears.steps == [(number, 1, done, number + 0.5) for done in (12, 15, 18) for number in (0, 1)]
    assert queue.results[1] == FinishedRun("m 1", "d 1", "e 1", "f 1")


class Draws(Sketch):
    """One random number a step."""

    def advance(self):
        self.drawn = []
        for step in super().advance():
            self.drawn.append(torch.rand(()).item())
            yield step


def test_each_goes_on_with_its_own_random_numbers(queue_of):
    torch.manual_seed(0)
    alone = [torch.rand(()).item() for _ in range(10)]
    torch.manual_seed(0)
    runs = [Draws(0), Draws(1)]
    queue_of(*runs).drive(StopRequest())
    assert [run.drawn for run in runs] == [alone, alone]


def test_a_network_is_not_saved_while_it_is_evaluated(queue_of):
    run = Sketch(0, steps=2, checkpoint_minutes=0.0, evaluates=True)
    assert not queue_of(run).drive(StopRequest())
    assert run.saved == [0, 1, 2, 0], "but before, and at once afterwards"


def test_no_first_step_is_told_of_a_run_that_goes_on_after_its_last(queue_of):
    hears = Hears()
    queue_of(Sketch(0, steps=0, evaluates=True), watcher=hears).drive(StopRequest())
    assert hears.first_steps == []


def test_a_stop_waits_for_an_evaluation_under_way(queue_of):
    run = Sketch(0, steps=2, evaluates=True)
    queue = queue_of(run)
    assert queue.drive(stop_if(lambda: queue.under_way[0].is_evaluating))
    assert run.saved == [0], "in the next epoch"


def test_a_stop_after_all_is_done_is_none(queue_of):
    queue = queue_of(Sketch(0))
    assert not queue.drive(stop_if(lambda: queue.results))


def test_a_stop_between_two_networks_leaves_the_second_alone(queue_of):
    hears = Hears()
    queue = queue_of(Sketch(0), Sketch(1), at_once=1, watcher=hears)
    assert queue.drive(stop_if(lambda: queue.results))
    assert [number for number, *_ in hears.starts] == [0]
    assert list(queue.waiting) == [1]


class Step:
    """Stands in for the event behind a step on a GPU."""

    def __init__(self):
        self.is_done = False

    def query(self):
        return self.is_done


def test_on_a_gpu_none_waits_for_another():
    """A network gets steps until enough are queued; what reads results waits until none is."""
    position = SimpleNamespace(step=1)
    one = _UnderWay(SimpleNamespace(position=position, steps_per_epoch=9), iter(()), None)
    steps = [Step() for _ in range(AHEAD)]
    nothing, look = _Due(), _Due(look=True)
    for step in steps:
        assert one.is_ready(nothing)
        one.queued.append(step)
    assert not one.is_ready(nothing)
    steps[1].is_done = True  # a stream is in order, so this cannot be all
    assert not one.is_ready(nothing)
    steps[0].is_done = True
    assert one.is_ready(nothing)
    assert not one.is_ready(look)
    assert not one.is_ready(nothing)  # the look is still due
    for step in steps:
        step.is_done = True
    assert one.is_ready(nothing)
    assert one.due == look
    one.due = nothing
    for at_end, evaluating in ((9, False), (1, True)):
        position.step, one.is_evaluating = at_end, evaluating
        one.queued.append(Step())
        assert not one.is_ready(nothing)
        one.queued[0].is_done = True
        assert one.is_ready(nothing)
