"""The budget of memory: what is counted, what is given up, who waits, and who is refused."""

import threading
import weakref

import pytest
import torch
from torch import nn

from dgconv import deploy
from dgconv.deploy.run.budget import BESIDE, BUDGET, Budget, bytes_of
from dgconv.errors import UserError

MIB = 1 << 20
FLOATS = MIB // 4  # in a MiB


def test_an_arena_is_used_again_and_counted_once():
    budget = Budget(4 * MIB)
    first = budget.take(FLOATS)
    budget.give_back(first)
    second = budget.take(FLOATS - 100)
    assert second == first
    assert budget.use == (MIB + BESIDE, 4 * MIB)


def test_what_was_used_least_recently_goes_first():
    budget, dropped = Budget(4 * MIB + BESIDE), []
    for name in "abc":
        budget.keep(name, MIB, lambda name=name: dropped.append(name))
    budget.was_used("a")
    budget.take(2 * FLOATS)
    assert dropped == ["b"]
    assert budget.use.peak == 4 * MIB + BESIDE


def test_what_has_no_room_is_given_up_at_once():
    budget, dropped = Budget(MIB + BESIDE), []
    budget.take(FLOATS)
    budget.keep("layout", 100, lambda: dropped.append("layout"))
    assert dropped == ["layout"]


def test_a_call_waits_until_there_is_room():
    budget = Budget(2 * MIB + BESIDE)
    held, taken = budget.take(2 * FLOATS), threading.Event()
    waiting = threading.Thread(target=lambda: (budget.take(FLOATS), taken.set()))
    waiting.start()
    assert not taken.wait(0.05)
    budget.give_back(held)
    assert taken.wait(30)
    waiting.join()
    assert budget.use.peak <= 2 * MIB + BESIDE


def test_what_is_given_up_is_gone_at_once():
    """Whoever had it may not have noticed yet that it is done."""
    budget = Budget(2 * MIB + BESIDE)
    address = budget.take(FLOATS)
    memory = weakref.ref(budget._taken[address])
    budget.give_back(address)
    assert memory() is not None
    budget.take(2 * FLOATS)
    assert memory() is None


def test_a_call_that_never_has_room_is_refused():
    with pytest.raises(UserError, match=r"needs 8\.1 MiB of memory .* the budget is 1\.0 MiB; .* set DGCONV_MEMORY"):
        Budget(MIB).take(8 * FLOATS)


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("512M", 512 * MIB), ("2g", 2048 * MIB), ("1GiB", 1 << 30)])
def test_sizes_in_words(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["0", "-1", "much", "1.5G", "²", "9" * 30, "G"])
def test_sizes_that_are_none(text):
    with pytest.raises(UserError, match="such as 2000000000, 512M or 2G"):
        bytes_of(text)


def test_a_report_tells_the_peak():
    model = deploy.prepare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval())
    model(torch.zeros(1, 3, 16, 16))
    assert 0 < BUDGET.use.peak <= BUDGET.use.limit
    assert str(BUDGET.use) in str(model.report())
