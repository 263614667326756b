"""The loop, on real digits, in small."""

import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import torch

from dgconv import create_model, dynamic_layers, load_model
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.layers import keep_count
from dgconv.layers.select import set_pruning_rate
from dgconv.runs import RunFolder
from dgconv.runs.checkpoint import load_checkpoint
from dgconv.train import Recipe, engine, evaluate, resume, side_by_side, train, train_all
from dgconv.train.diagnose import Diverged
from dgconv.train.engine import _Loader
from dgconv.train.evaluate import Evaluator
from dgconv.train.run import Run
from dgconv.train.side_by_side import Silent
from dgconv.train.stop import Stopped, StopRequest, TimeLimit, stop_requests
from dgconv.train.tables import DataTable

SMALL = {"stages": (1, 1, 1), "growth": (8, 8, 8), "image_size": 8, "batch_size": 32}


def run(folder, **options):
    return train(Recipe.of(**SMALL | options), folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error_below"),
    [("condensenet20_dgc", 30), ("condensenet20_dgcg", 30), ("condensenet20_sgc", 30), ("condensenet20", 20)],
)
def test_learns_and_repeats_its_number(tmp_path, name, error_below):
    result = run(tmp_path / "run", model=name, epochs=8, threshold_every=2)
    assert result.evaluation.error < error_below
    again = evaluate(load_model(tmp_path / "run"), result.data.test)
    assert again.loss == pytest.approx(result.evaluation.loss, rel=1e-4)  # in another memory format
    assert (again.error, again.pruned_share) == (result.evaluation.error, result.evaluation.pruned_share)
    lines = RunFolder(tmp_path / "run").metrics
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    assert lines[-1]["test_error"] == result.evaluation.error
    assert lines[-1]["train_loss"] < lines[0]["train_loss"] / 2
    if name.endswith("_dgc"):
        assert lines[-1]["pruned_share"] == pytest.approx(0.75, abs=0.02)
        assert [line["pruned_share"] for line in lines] == sorted(line["pruned_share"] for line in lines)
    if name.endswith("_dgcg"):
        assert lines[-1]["pruned_share"] == pytest.approx(0.75, abs=0.1), "measured on images it has not seen"
        assert [line["threshold"] is not None for line in lines] == [False, True] * 4


@pytest.mark.slow
def test_same_seed_same_run(tmp_path):
    first, second, other = (
        run(tmp_path / name, epochs=1, seed=seed).model.state_dict() for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_ends_at_the_full_rate(tmp_path):
    model = run(tmp_path / "run", epochs=1, pruning_rate=0.5).model
    for _, layer in dynamic_layers(model):
        assert int(layer.gate.keep) == keep_count(layer.in_channels, 0.5)


@pytest.mark.slow
def test_several_networks_one_after_another(tmp_path):
    recipes = [Recipe.of(**SMALL, epochs=1, seed=seed) for seed in (0, 1)]
    results = train_all([(recipe, tmp_path / str(recipe.training.seed)) for recipe in recipes])
    alone = run(tmp_path / "alone", epochs=1, seed=1)
    assert [result.folder.name for result in results] == ["0", "1"]
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(tensor, results[1].model.state_dict()[name]), "a network's company changes nothing"


@pytest.mark.slow
def test_a_time_limit_leaves_all_networks_to_be_resumed(tmp_path):
    """Those too that were still waiting for their turn; and what diverged is not forgotten."""
    recipes = [
        Recipe.of(**SMALL, epochs=1, learning_rate=rate, seed=seed) for rate, seed in ((1e20, 0), (0.1, 0), (0.1, 1))
    ]
    jobs = [(recipe, tmp_path / str(number)) for number, recipe in enumerate(recipes)]
    with pytest.raises(Stopped, match=r"stopped after 1e-09 minutes and saved\. .*/1, .*/2$") as stopped:
        train_all(jobs[1:], time_limit=TimeLimit(1e-9))
    assert stopped.value.folders == [folder for _, folder in jobs[1:]]
    assert stopped.value.exit_status == 0
    assert [load_checkpoint(folder).position.step for _, folder in jobs[1:]] == [1, 0]
    results = train_all(jobs[1:], resuming=True)
    alone = run(tmp_path / "alone", epochs=1, seed=1)
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(tensor, results[1].model.state_dict()[name])

    class Late(TimeLimit):
        is_over = property(lambda self: "1 begins" in notes.told)

    notes, late = Notes(), [jobs[0], (recipes[1], tmp_path / "late")]
    with pytest.raises(Stopped, match=r"(?s)/late\n.*diverged") as stopped:
        train_all(late, watcher=notes, time_limit=Late(1.0))
    assert stopped.value.folders == [tmp_path / "late"]
    assert stopped.value.exit_status == 2


def test_divergence_is_told(tmp_path):
    with pytest.raises(UserError, match=r"diverged|NaN or infinite"):
        run(tmp_path / "run", epochs=2, learning_rate=1e20)


def test_an_old_run_is_not_overwritten(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="exists and is not empty"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nor is anything added to it"
    with pytest.raises(UserError, match="file is a file"):
        run(tmp_path / "file")


def test_nor_one_that_began_until_the_folder_was_locked(tmp_path, monkeypatch):
    @contextmanager
    def locked_late(folders):
        (folders[0] / "metrics.jsonl").touch()
        yield

    monkeypatch.setattr(engine, "locked", locked_late)
    with pytest.raises(UserError, match="exists and is not empty"):
        run(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "condensenet20", "generator_weight_decay": 0.0}, "is for networks with dynamic layers"),
        ({"image_size": 2}, "cannot be trained on images of 2 x 2 pixels in batches of 32: .* `image_size`"),
        ({"image_size": 4, "batch_size": 1}, "4 x 4 pixels in batches of 1: .* `batch_size`"),
    ],
    ids=["option", "too small", "too few"],
)
def test_what_cannot_be_trained_leaves_no_folder(tmp_path, options, message):
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(UserError, match=message):
            run(tmp_path / name, **options)
    assert [folder.name for folder in tmp_path.iterdir()] == ["mine"], "which was there before"


def test_folders_may_be_strings_and_new(tmp_path):
    result = run(str(tmp_path / "new" / "run"), epochs=1)
    assert result.folder == tmp_path / "new" / "run"
    assert resume(str(tmp_path / "new" / "run")).evaluation == result.evaluation


def test_a_resumed_run_is_watched_too(tmp_path):
    jobs = [(Recipe.of(**SMALL | {"batch_size": 512}, epochs=2), tmp_path / "run")]
    with pytest.raises(Stopped):
        train_all(jobs, watcher=Notes(epochs_until_stop=1))
    notes = Notes()
    resume(tmp_path / "run", watcher=notes)
    assert notes.told == ["0 begins", (0, 2)]


class SeesLosses(Silent):
    def __init__(self) -> None:
        self.losses = []

    def step(self, index, epoch, done, loss):
        self.losses.append(loss)


def test_no_loss_is_shown_of_an_epoch_that_has_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "LOOK_EVERY", -1.0)
    watcher = SeesLosses()
    train(Recipe.of(**SMALL | {"epochs": 2, "batch_size": 512}), tmp_path / "run", watcher=watcher)
    assert len(watcher.losses) == 4, "one a step"
    assert min(watcher.losses) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("had_room", "message"),
    [
        (False, r"No space left on device\. There is no checkpoint yet.*remove the run folder and train again"),
        (True, r"No space left on device\. The last checkpoint is kept.*dgconv\.train\.resume\('.*run'\)$"),
    ],
)
def test_a_full_disk_is_told_with_what_is_kept(tmp_path, monkeypatch, had_room, message):
    """With room for one checkpoint, or none."""

    write_weights = RunFolder.write_weights

    def full(folder, tensors):
        if not had_room or folder.has_checkpoint:
            raise OSError(28, "No space left on device")
        write_weights(folder, tensors)

    monkeypatch.setattr(RunFolder, "write_weights", full)
    options = {"epochs": 3, "batch_size": 512}
    with pytest.raises(UserError, match=message) as ended:
        run(tmp_path / "run", **options)
    assert ended.value.resume == ([tmp_path / "run"] if had_room else [])
    if had_room:
        monkeypatch.undo()
        assert resume(tmp_path / "run").evaluation == run(tmp_path / "alone", **options).evaluation


def test_measured_rate_is_the_share_of_closed_gates():
    model = create_model("condensenet20_dgc", stages=(1, 1), growth=(4, 8))
    data = load_data("digits", image_size=8)
    model(next(iter(data.train.batches(256, train=True)))[0])
    kept = [keep_count(layer.in_channels, 0.75) for _, layer in dynamic_layers(model)]
    channels = [layer.in_channels for _, layer in dynamic_layers(model)]
    result = evaluate(model, data.test)
    assert result.images == 360
    assert result.pruned_share == pytest.approx(1 - sum(kept) / sum(channels))
    assert model.training, "left as it was"
    assert evaluate(model.eval(), data.test) == result, "whatever its mode was"


def test_evaluation_by_hand_and_again():
    model = create_model("condensenet20_dgc", stages=(1, 1), growth=(4, 8))
    data = load_data("digits", image_size=8)
    model(next(iter(data.train.batches(256, train=True)))[0])
    ((x, target),) = data.test.batches(360, train=False)
    with torch.no_grad():
        logits = model.eval()(x)
    place = (logits > logits.gather(1, target[:, None])).sum(1)  # 0: the answer
    evaluator = Evaluator(model)
    result = evaluator(data.test, batch_size=100)
    assert result.error == pytest.approx(100 * (place > 0).double().mean().item())
    assert result.error_top5 == pytest.approx(100 * (place > 4).double().mean().item())
    assert 0 < result.error_top5 < result.error
    assert result.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, target).item(), rel=1e-4)
    begun = evaluator.begin(data.test, batch_size=100)
    set_pruning_rate(model, 0)
    assert evaluator(data.test).pruned_share == 0, "counted anew each time"
    assert begun() == result, "whatever came in between"


def test_a_network_in_half_precision_is_judged_in_full():
    model = create_model("condensenet20_dgc", stages=(1, 1), growth=(4, 8))
    data = load_data("digits", image_size=8)
    ((x, target),) = data.test.batches(360, train=False)
    model(x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model.eval()(x.contiguous(memory_format=torch.channels_last))
    assert logits.dtype == torch.bfloat16
    loss = torch.nn.functional.cross_entropy(logits.float(), target).item()
    assert Evaluator(model, dtype=torch.bfloat16)(data.test, batch_size=360).loss == pytest.approx(loss, rel=1e-6)


def test_signals_are_the_programs_own_again_after_training():
    def own(number, frame): ...

    before = {number: signal.signal(number, own) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with stop_requests() as stop:
            assert [signal.getsignal(number) for number in before] == [stop, stop]
            assert not stop.is_made
            stop(signal.SIGTERM, None)
            assert stop.is_made
            with pytest.raises(KeyboardInterrupt):
                stop(signal.SIGINT, None)
        assert [signal.getsignal(number) for number in before] == [own, own]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_thread_trains_without_signals():
    """Python gives them to the main thread only."""

    def stops():
        with stop_requests(TimeLimit(1, began=-60)) as stop:
            return stop.is_made

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(stops).result()


def test_a_planned_stop_is_no_failure_but_a_network_that_diverged_is(tmp_path):
    limit = TimeLimit(1)
    assert not limit.is_over
    assert not TimeLimit(1, limit.began - 30).is_over
    assert TimeLimit(1, limit.began - 60).is_over
    stop = StopRequest(limit)
    assert stop.stopped([tmp_path]).exit_status == 0
    assert stop.stopped([tmp_path], [Diverged("told")]).exit_status == 2
    assert str(stop.stopped([tmp_path])).startswith("stopped after 1 minute and saved")
    stop(signal.SIGTERM, None)
    assert (stop.stopped([tmp_path]).number, stop.stopped([tmp_path]).exit_status) == (15, 128 + 15)
    assert stop.stopped([tmp_path], [Diverged("told")]).exit_status == 128 + signal.SIGTERM
    assert str(stop.stopped([tmp_path])).startswith("stopped and saved"), "the time was not over"


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_a_time_limit_lies_ahead(minutes):
    with pytest.raises(UserError, match="`stop_after` takes a number of minutes above 0, got"):
        TimeLimit(minutes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "`epochs` must be a whole number from 1 to 1000000000, got 0"),
        ({"batch_size": 0}, "`batch_size` must be a whole number from 1 to 1000000000, got 0"),
        ({"epochs": 2.5}, "`epochs` must be a whole number from 1 to 1000000000, got 2.5"),
        ({"epochs": None}, "`epochs` must be a whole number from 1 to 1000000000, got None"),
        ({"learning_rate": -1.0}, r"`learning_rate` must be a number from 0 to 1e\+30, got -1.0"),
        ({"learning_rate": 1e300}, r"`learning_rate` must be a number from 0 to 1e\+30, got 1e\+300"),
        ({"weight_decay": float("nan")}, r"`weight_decay` must be a number from 0 to 1e\+30, got nan"),
        ({"angle_weight": float("nan")}, r"`angle_weight` must be a number from 0 to 1e\+30, got nan"),
        ({"lasso_weight": float("inf")}, r"`lasso_weight` must be a number from 0 to 1e\+30, got inf"),
        ({"checkpoint_minutes": -1.0}, r"`checkpoint_minutes` must be a number from 0 to 1e\+30, got -1.0"),
        ({"momentum": 1.0}, "`momentum` must be from 0 to below 1, got 1.0"),
        ({"clip_gradients": 0.0}, r"`clip_gradients` must be above 0 and up to 1e\+30, got 0.0; leave it out"),
        ({"image_size": 0}, "`image_size` must be a whole number from 1 to 1000000, got 0"),
        ({"seed": 10**23}, "`seed` must be a whole number from -4294967296 to 4294967296, got 10000"),
    ],
)
def test_wrong_recipes(options, message):
    with pytest.raises(UserError, match=message):
        Recipe.of(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no GPU is to be seen.*Use the device cpu"):
        train(Recipe.of(**SMALL, epochs=1), tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_tensorboard_says_what_metrics_jsonl_says(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(tmp_path / "run", epochs=2)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    lines = RunFolder(tmp_path / "run").metrics
    for name in ("train_loss", "test_error", "pruned_share", "learning_rate"):
        scalars = events.Scalars(name)
        assert [scalar.value for scalar in scalars] == pytest.approx([line[name] for line in lines], rel=1e-6)
        assert [scalar.step for scalar in scalars] == [1, 2]


def test_leaves_no_thread_behind(tmp_path):
    before = set(threading.enumerate())
    run(tmp_path / "run", epochs=1)
    assert set(threading.enumerate()) <= before


class Notes(Silent):
    """What is told of several networks, in its order; Ctrl-C after some epochs."""

    def __init__(self, epochs_until_stop=None) -> None:
        self.told, self.left = [], epochs_until_stop

    def start(self, index, name, steps, done):
        self.told.append(f"{index} begins")

    def epoch(self, index, metrics):
        self.told.append((index, metrics.epoch))
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)


WITH_DROPOUT = {"model": "mobilenetv2", "width": 0.25, "image_size": 8, "batch_size": 256, "downsample": (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [SMALL, WITH_DROPOUT], ids=["dgc", "dropout"])
def test_side_by_side(tmp_path, options):
    """As a GPU has it: a step of each in turn, evaluations begun before any is waited for; stopped and resumed."""
    jobs = [(Recipe.of(**options, epochs=2, seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    first, second = Notes(epochs_until_stop=2), Notes()
    with pytest.raises(Stopped) as stopped:
        train_all(jobs, side_by_side=2, watcher=first)
    assert stopped.value.folders == [folder for _, folder in jobs]
    results = train_all(jobs, side_by_side=2, watcher=second, resuming=True)
    assert first.told == ["0 begins", "1 begins", (0, 1), (1, 1)]
    assert second.told == ["0 begins", "1 begins", (0, 2), (1, 2)]
    alone = train(jobs[1][0], tmp_path / "alone")
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(tensor, results[1].model.state_dict()[name])
    assert results[1].evaluation == alone.evaluation
    told = [RunFolder(tmp_path / name).config["environment"] for name in ("1", "alone")]
    assert [environment.get("side_by_side") for environment in told] == [2, None]


@pytest.mark.slow
def test_when_one_is_done_the_next_begins(tmp_path):
    recipes = [Recipe.of(**SMALL, epochs=epochs, seed=seed) for seed, epochs in enumerate((2, 1, 1))]
    notes = Notes()
    results = train_all([(r, tmp_path / str(r.training.seed)) for r in recipes], side_by_side=2, watcher=notes)
    assert notes.told == ["0 begins", "1 begins", (0, 1), (1, 1), "2 begins", (0, 2), (2, 1)]
    assert [result.folder.name for result in results] == ["0", "1", "2"]
    alone = run(tmp_path / "alone", epochs=1, seed=2)
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(tensor, results[2].model.state_dict()[name])


def test_a_network_alone_is_not_side_by_side_with_any(tmp_path):
    train_all([(Recipe.of(**SMALL | {"batch_size": 512}, epochs=1), tmp_path / "run")], side_by_side=4)
    assert "side_by_side" not in RunFolder(tmp_path / "run").config["environment"]


def test_a_stop_saves_what_waits_where_it_begins(tmp_path):
    jobs = [(Recipe.of(**SMALL, epochs=2, seed=seed), tmp_path / str(seed)) for seed in range(3)]
    with pytest.raises(Stopped) as stopped:
        train_all(jobs, side_by_side=2, watcher=Notes(epochs_until_stop=2))
    assert stopped.value.folders == [folder for _, folder in jobs]
    assert [load_checkpoint(folder).position.epoch for _, folder in jobs] == [1, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "condensenet20", "generator_weight_decay": 0.0}, "is for networks with dynamic layers"),
        ({"mac_budget": 0.5}, "`mac_budget` is for methods whose cost comes out of training"),
        ({"heads": 3}, "heads must divide out_channels"),
    ],
    ids=["decay", "budget", "heads"],
)
def test_mistakes_about_a_network_that_waits_are_told_at_once(tmp_path, options, message):
    notes = Notes()
    recipes = {"good": Recipe.of(**SMALL, epochs=1), "wrong": Recipe.of(**SMALL | options, epochs=1)}
    with pytest.raises(UserError, match=message):
        train_all([(recipe, tmp_path / name) for name, recipe in recipes.items()], watcher=notes)
    assert not notes.told
    assert not list(tmp_path.iterdir())


def test_a_data_set_that_is_missing_is_told_before_any_network_begins(tmp_path):
    missing = {"data": "folder", "data_dir": str(tmp_path / "nowhere")}
    jobs = [(Recipe.of(**SMALL), tmp_path / "good"), (Recipe.of(**SMALL | missing), tmp_path / "wrong")]
    notes = Notes()
    with pytest.raises(UserError, match="nowhere does not exist"):
        train_all(jobs, side_by_side=2, watcher=notes)
    assert not notes.told
    assert not list(tmp_path.iterdir())


def test_no_network_at_a_time_is_too_few(tmp_path):
    with pytest.raises(UserError, match="`side_by_side` takes a number of networks, at least 1, got 0"):
        train_all([(Recipe.of(**SMALL, epochs=1), tmp_path / "good")], side_by_side=0)


def test_so_is_a_run_that_waits_to_be_resumed_by_another_recipe(tmp_path):
    jobs = [(Recipe.of(**SMALL, epochs=epochs), tmp_path / str(epochs)) for epochs in (2, 3)]
    with pytest.raises(Stopped):
        train_all(jobs, watcher=Notes(epochs_until_stop=1))
    notes = Notes()
    with pytest.raises(UserError, match=r"checkpoint in .*/3 is from another recipe: epochs was 3, is 2"):
        train_all([(jobs[0][0], folder) for _, folder in jobs], watcher=notes, resuming=True)
    assert not notes.told


def test_a_stop_saves_each_on_its_own_stream(tmp_path, monkeypatch):
    """Else a GPU would copy the weights while steps that change them are still queued there."""
    within, saved = [], []

    @contextmanager
    def on(stream):
        within.append(stream)
        yield
        within.pop()

    monkeypatch.setattr(side_by_side, "_on", on)
    save = Run.save
    monkeypatch.setattr(Run, "save", lambda run: (saved.append(len(within)), save(run)))
    jobs = [(Recipe.of(**SMALL, epochs=2, seed=seed), tmp_path / str(seed)) for seed in range(2)]
    with pytest.raises(Stopped):
        train_all(jobs, side_by_side=2, watcher=Notes(epochs_until_stop=2))
    assert saved == [1, 1]


class SeesWhoLives(Silent):
    """How many runs hold memory when one begins, without the garbage collector."""

    def __init__(self, monkeypatch) -> None:
        self.runs, self.living = [], []
        begin = Run.__init__

        def remember(run, *args):
            begin(run, *args)
            self.runs.append(weakref.ref(run))

        monkeypatch.setattr(Run, "__init__", remember)

    def start(self, index, name, steps, done):
        self.living.append(sum(run() is not None for run in self.runs))


@pytest.mark.parametrize("learning_rate", [0.1, 1e20], ids=["done", "diverged"])
def test_what_is_over_holds_no_memory_when_the_next_begins(tmp_path, monkeypatch, learning_rate):
    options = SMALL | {"epochs": 1, "batch_size": 512, "learning_rate": learning_rate}
    jobs = [(Recipe.of(**options, seed=seed), tmp_path / str(seed)) for seed in range(4)]
    watcher = SeesWhoLives(monkeypatch)
    gc.disable()
    try:
        with nullcontext() if learning_rate < 1 else pytest.raises(Diverged):
            results = train_all(jobs, side_by_side=2, watcher=watcher)
            assert all(p.grad is None for result in results for p in result.model.parameters())
    finally:
        gc.enable()
    assert watcher.living == [1, 2, 1, 2]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_network_that_diverges_leaves_the_others_alone(tmp_path, at_once):
    good, bad = Recipe.of(**SMALL, epochs=1), Recipe.of(**SMALL, epochs=1, learning_rate=1e20)
    jobs = [(bad, tmp_path / "bad"), (good, tmp_path / "good")]
    with pytest.raises(Diverged, match=r"training diverged in epoch 1"):
        train_all(jobs, side_by_side=at_once)
    assert load_checkpoint(tmp_path / "good").position.epoch == 1
    assert not RunFolder(tmp_path / "bad").has_checkpoint


def test_each_network_that_diverges_is_told(tmp_path):
    bad = Recipe.of(**SMALL, epochs=1, learning_rate=1e20)
    with pytest.raises(Diverged, match=r"(?s)in .*/one/diverged.*\n.*in .*/two/diverged"):
        train_all([(bad, tmp_path / "one"), (bad, tmp_path / "two")])


@pytest.mark.parametrize(
    "other",
    [
        {"data": "folder"},
        {"data_dir": "elsewhere"},
        {"image_size": 8},
        {"label_column": "fine_label"},
        {"skip_corrupt_images": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_networks_share_a_data_set_if_it_is_the_same(monkeypatch, other):
    monkeypatch.setattr(DataTable, "load_images", lambda table: object())
    load = _Loader(torch.device("cpu"))
    assert load(Recipe.of(epochs=1)) is load(Recipe.of(epochs=2))
    assert load(Recipe.of(**other)) is not load(Recipe())


def test_networks_with_cutout_share_the_images_of_those_without():
    load = _Loader(torch.device("cpu"))
    plain, blanked = load(Recipe()), load(Recipe.of(cutout=8))
    assert blanked.train.images is plain.train.images
    assert (plain.train.cutout, blanked.train.cutout) == (0, 8)


def test_clipped_gradients_move_the_weights_less(tmp_path):
    options = SMALL | {"epochs": 1, "momentum": 0.0, "weight_decay": 0.0, "learning_rate": 1.0}
    recipe = Recipe.of(**options, clip_gradients=1e-3)
    trained = train(recipe, tmp_path / "run").model
    torch.manual_seed(0)
    fresh = recipe.build_model(10)
    moved = sum((a - b).square().sum() for a, b in zip(trained.parameters(), fresh.parameters(), strict=True)).sqrt()
    steps = len(recipe.load_data().train) // recipe.training.batch_size
    assert 1e-5 < moved <= 1e-3 * steps, "no step longer than the learning rate times the largest norm"
