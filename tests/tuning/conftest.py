"""A bench without others' runtimes, which take seconds to start, and few repeats."""

import pytest

from dgconv.bench import forms
from dgconv.tuning import planning, steps
from tests.tuned_networks import shades, trained_network


@pytest.fixture(scope="session")
def data():
    return shades()


@pytest.fixture(scope="session")
def trained(data):
    return trained_network(data)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(forms, "RUNTIMES", [])
    monkeypatch.setattr(steps, "REPEATS", 1)
    monkeypatch.setattr(planning, "REPEATS", 1)
    monkeypatch.setattr(planning, "PAYS", 1000.0)  # so small a network gains little, which is not the point here
