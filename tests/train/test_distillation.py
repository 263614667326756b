"""Learning from another network: what is added to the loss, and what a recipe may name as teacher."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.models import create_model, load_model, save_model
from dgconv.train import Distillation, Recipe, train

TINY = {"model": "condensenet20", "stages": (1, 1, 1), "growth": (4, 4, 4), "image_size": 16, "epochs": 1}


def teacher_folder(folder, num_classes=10, **extra):
    model = create_model("condensenet20", num_classes=num_classes, stages=(1, 1, 1), growth=(4, 4, 4))
    save_model(model, folder, **extra)
    return folder


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_penalty_is_the_distance_of_softened_answers(temperature):
    teacher = nn.Linear(5, 3)
    x, logits = torch.randn(7, 5), torch.randn(7, 3, requires_grad=True)
    distillation = Distillation(teacher, weight=0.5, temperature=temperature)
    distillation.see(x, torch.zeros(7).long(), logits)
    wanted, mine = (F.softmax(values / temperature, 1) for values in (teacher(x), logits))
    distance = (wanted * (wanted / mine).log()).sum(1).mean()
    penalty = distillation.penalty()
    torch.testing.assert_close(penalty, 0.5 * temperature**2 * distance)
    penalty.backward()
    assert logits.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert distillation.penalty() is None, "taken once: the graph of a step is not kept"


def test_equal_answers_cost_nothing():
    teacher = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    distillation = Distillation(teacher)
    distillation.see(x, torch.zeros(3).long(), teacher(x).detach())
    assert float(distillation.penalty()) == pytest.approx(0, abs=1e-6)


def test_a_teacher_is_imitated(tmp_path):
    """With next to no weight on the labels (all of it on the teacher) answers come closer to the teacher's."""
    teacher = teacher_folder(tmp_path / "teacher")
    alone = train(Recipe.of(**TINY), tmp_path / "alone")
    taught = train(
        Recipe.of(**TINY, teacher=str(teacher), distillation_weight=20.0, distillation_temperature=4.0),
        tmp_path / "taught",
    )
    x = next(load_data("digits", image_size=16).test.batches(64, train=False))[0]
    with torch.no_grad():
        answers = load_model(teacher)(x).softmax(1)
        distances = [float((load_model(run.folder)(x).softmax(1) - answers).abs().sum()) for run in (alone, taught)]
    assert distances[1] < 0.7 * distances[0]


def test_refused_teachers(tmp_path):
    with pytest.raises(UserError, match="no published network"):
        train(Recipe.of(**TINY, teacher="nobody"), tmp_path / "run")
    few = teacher_folder(tmp_path / "few", num_classes=7)
    with pytest.raises(UserError, match="7 classes apart, digits has 10"):
        train(Recipe.of(**TINY, teacher=str(few)), tmp_path / "run")
    other = teacher_folder(tmp_path / "other", classes=[f"c{number}" for number in range(10)])
    with pytest.raises(UserError, match="other classes"):
        train(Recipe.of(**TINY, teacher=str(other)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
