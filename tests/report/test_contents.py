"""What goes into a report, against where it comes from."""

import base64
import io
import math
import shutil
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from PIL import Image

from dgconv import count_macs, create_model
from dgconv.analysis.trained_run import TrainedRun
from dgconv.data.sample import sample
from dgconv.errors import UserError
from dgconv.models import save_model
from dgconv.report import curves, gather, render
from dgconv.report.page import duration, millions
from dgconv.runs import RunFolder
from dgconv.runs.metrics import read_metrics
from dgconv.train import Recipe, train
from dgconv.train.evaluate import evaluate
from dgconv.train.recipe_files import load_recipe, reported_of


@pytest.mark.slow
def test_results(contents, report_runs):
    for section, run in zip(contents.sections, report_runs, strict=True):
        last, result = read_metrics(run.folder)[-1], section.result
        assert result.error == last["test_error"] == evaluate(run.model, run.data.test).error
        assert result.pruned_share == last["pruned_share"]
        assert result.epochs == last["epoch"]
        assert result.seconds == sum(line["seconds"] for line in read_metrics(run.folder))
        images = next(sample(run.data.test, 256)) if run.has_global_gate else None
        for convention in ("paper", "authors"):
            count = count_macs(run.model, run.input_size, convention, images)
            assert result.cost.macs[convention] == count.macs
            assert result.cost.dense_macs[convention] == count.dense_macs
        assert result.cost.parameters == sum(p.numel() for p in run.model.parameters())
        assert result.reported is None, "the paper knows nothing of digits"
        assert section.missing == []


@pytest.mark.slow
def test_runs_of_one_name_are_told_apart(bare_folder, changed_folder):
    recipe = TrainedRun(bare_folder).recipe
    runs = [changed_folder(recipe.changed(epochs=3 + number), name=f"try{number}") for number in range(8)]
    runs.append(changed_folder(recipe.changed(seed=5), name="other"))
    contents = gather(runs, figures=())
    name = runs[0].recipe.title
    assert [section.title for section in contents.sections[:8]] == [f"{name} (try{number})" for number in range(8)]
    assert contents.sections[8].title == runs[8].recipe.title
    page = render(contents)
    for number in range(9):
        assert page.count(f'class="swatch run-{number}"') == 3, "in the table, above the curves and above its own part"
        assert f".run-{number} {{" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet_resnet18_dgc", "cifar10_condensenet86_dgc"])
def test_results_beside_the_paper(name, changed_folder):
    recipe, reported = load_recipe(name), reported_of(name)
    model = recipe.build_model(10 if "cifar" in name else 1000)
    run = changed_folder(recipe, model=model.config, input_size=list(model.input_size))
    contents = gather([run], figures=())
    result = contents.sections[0].result
    assert result.reported == reported
    assert result.error_difference == pytest.approx(run.error - reported.error)
    figure = reported.macs or reported.saving
    ours = result.cost.macs.values() if reported.macs else map(result.cost.saving, result.cost.macs)
    assert result.agreement.difference == min((100 * (value / figure - 1) for value in ours), key=abs)
    assert abs(result.agreement.difference) < 0.5, "the counted networks are the paper's"
    page = render(contents)
    for value, text in [
        (reported.error, f"{reported.error:.2f} %"),
        (result.error_difference, f"{result.error_difference:+.2f}"),
        (figure, millions(figure) if reported.macs else f"{figure:.2f}x fewer"),
        (result.agreement.difference, f"{result.agreement.difference:+.2f} %"),
    ]:
        assert f'data-value="{value}">{text}</td>' in page


@pytest.mark.slow
def test_layers(contents, report_runs):
    for section, run in zip(contents.sections, report_runs, strict=True):
        table, count = section.layers, run.macs("paper")
        assert [(row.name, row.macs, row.dense_macs) for row in table.layers] == [
            (layer.name, layer.macs, layer.dense_macs) for layer in count.layers
        ]
        assert table.images_recorded == len(run.data.test)
        kept = {row.name: row.kept_share for row in table.layers if row.kept_share is not None}
        assert kept == {name: 1 - layer.pruned_share for name, layer in run.recording.layers.items()}
        if not run.has_global_gate:
            assert set(kept.values()) == {0.25}

        assert all(row.seconds > 0 for row in table.layers)
        for row in table.layers:
            if row.name in kept:
                assert 0 < row.deciding < row.seconds
            else:
                assert row.deciding is None
        assert table.times.in_layers == pytest.approx(sum(row.seconds for row in table.layers))
        assert table.times.in_layers < table.times.call < 0.1


def test_curves(contents, report_runs):
    titles = [chart.title for chart in contents.charts]
    assert titles == ["Error, %, log scale", "Loss, log scale", "Share of the channels left out", "Learning rate"]
    for number, run in enumerate(report_runs):
        lines = read_metrics(run.folder)
        for chart, keys in zip(
            contents.charts, ("test_error", "test_loss", "pruned_share", "learning_rate"), strict=True
        ):
            (solid,) = (curve for curve in chart.curves if curve.run == number and not curve.dashed)
            assert solid.values == [line[keys] for line in lines]
            assert solid.epochs == [1, 2, 3]


def test_a_curve_on_paper():
    """Where its points lie; what is not finite breaks the line."""
    lines = [{"epoch": n, "learning_rate": value} for n, value in enumerate([100.0, 50.0, math.nan, 0.0], start=1)]
    (chart,) = curves.draw_charts([lines])
    width, height = curves.RIGHT - curves.LEFT, curves.BOTTOM - curves.TOP
    x = [curves.LEFT + width * n / 4 for n in range(1, 5)]
    path = chart.curves[-1].path
    assert path == (
        f"M{x[0]:.1f} {curves.TOP:.1f}h0L{x[1]:.1f} {curves.TOP + height / 2:.1f}M{x[3]:.1f} {curves.BOTTOM:.1f}h0"
    )
    assert chart.curves[-1].values == [100.0, 50.0, None, 0.0]


@pytest.mark.parametrize("high", [1e-5, 0.1, 0.75, 1, 3, 92.2, 150, 1e6])
def test_ticks(high):
    numbers = curves.ticks(high)
    steps = {round((b - a) / numbers[1], 6) for a, b in pairwise(numbers)}
    assert numbers[0] == 0
    assert numbers[-2] < high <= numbers[-1] * (1 + 1e-9)
    assert steps == {1}
    assert len(numbers) <= curves.TICKS + 1


@pytest.mark.parametrize(("low", "high"), [(0.01, 60), (1.3, 1.4), (0.3, 0.3), (1e-6, 1e3), (1, 10), (9, 9), (87, 89)])
def test_log_ticks(low, high):
    numbers = curves.log_ticks(low, high)
    assert numbers == sorted(set(numbers)), "rising, none twice"
    assert 2 <= len(numbers) <= 10
    assert all(low <= number <= high for number in numbers) or numbers[0] <= low <= high <= numbers[-1]
    assert numbers[-1] / numbers[0] <= max(10, high / low), "little room above and below the curves"


def test_pictures(contents):
    of_head, of_global = ([picture.name for picture in section.pictures] for section in contents.sections)
    assert of_head == ["training", "time_split"]
    assert of_global == ["training", "layer_rates", "time_split"]
    assert [picture.name for picture in contents.pictures] == ["error_over_macs"]
    (left_out,) = contents.sections[0].figures_left_out
    assert left_out.what == "layer rates"
    assert "global gate" in left_out.reason
    assert [one.what for one in contents.figures_left_out] == ["ablation"]


def test_a_picture_is_as_small_as_can_be(contents):
    kinds = set()
    for picture in contents.sections[1].pictures:
        kind, content = picture.address.split(";base64,")
        kinds.add(kind)
        data = base64.b64decode(content, validate=True)
        if kind == "data:image/png":
            with Image.open(io.BytesIO(data)) as image:
                assert image.width / image.height == pytest.approx(picture.width / picture.height, rel=0.01)
        else:
            assert "svg" in ElementTree.fromstring(data).tag
        assert len(data) < 150_000
    assert kinds == {"data:image/png", "data:image/svg+xml"}


def test_steps_are_told(bare_folder):
    told = []
    runs = [TrainedRun(bare_folder), TrainedRun(bare_folder)]
    gather(runs, figures=("layer_rates", "error_over_macs"), tell=lambda *step: told.append(step))
    assert len(told) == 7
    assert {count for _, count in told} == {7}
    assert told[2][0] == f"condensenet20_dgcg-digits, seed 1 ({bare_folder.name}): layer rates"


def test_without_weights(bare_folder, global_folder):
    section = gather([TrainedRun(bare_folder)], figures=("training", "maps")).sections[0]
    assert section.result.error == read_metrics(global_folder)[-1]["test_error"]
    assert section.result.cost.macs["paper"] == count_macs(TrainedRun(bare_folder).untrained_model, (3, 16, 16)).macs
    assert section.layers.times is None
    assert section.layers.images_recorded == 0
    assert [picture.name for picture in section.pictures] == ["training"]
    missing = {one.what: one.reason for one in [*section.missing, *section.figures_left_out]}
    assert list(missing) == [
        "MACs measured on test images", "kept shares recorded on the test images", "time by layer", "maps",
    ]  # fmt: skip
    assert "model.safetensors is missing" in missing["time by layer"]


def test_without_data(head_folder, tmp_path):
    """The weights are there, the images are not."""
    shutil.copytree(head_folder, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    recipe = Recipe.of_run(run).changed(data="cifar10", data_dir=str(tmp_path / "gone"), image_size=None)
    run.rewrite_config(run.config | {"recipe": recipe.to_dict()})
    section = gather([TrainedRun(tmp_path / "run")], figures=()).sections[0]
    assert [one.what for one in section.missing] == ["kept shares recorded on the test images", "time by layer"]
    assert section.result.cost is not None


@pytest.mark.parametrize("environment", [None, {}, {"items": 1}])
def test_an_odd_environment(environment, changed_folder):
    page = render(gather([changed_folder(environment=environment)], figures=()))
    assert ("trained: items" in page) == (environment == {"items": 1})


def test_a_model_from_elsewhere(tmp_path):
    save_model(create_model("condensenet20_dgc", stages=(1,), growth=(4,)), tmp_path, imported_from="<b>file</b>")
    contents = gather([TrainedRun(tmp_path)], figures=("training",))
    (section,) = contents.sections
    assert contents.charts == []
    assert section.result.cost.macs["paper"] > 0
    assert section.result.error is None
    assert {"curves", "what the paper reports", "test error"} <= {one.what for one in section.missing}
    page = render(contents)
    assert "was not trained here" in page
    assert "&lt;b&gt;file" in page
    assert "<b>file" not in page


def test_a_pruned_network_is_shown_as_it_runs(tmp_path):
    recipe = Recipe.of(model="resnet20", width=4, image_size=8, epochs=1, batch_size=512, prune="l1", prune_rate=0.5)
    train(recipe, tmp_path / "run")
    (section,) = gather([TrainedRun(tmp_path / "run")], figures=()).sections
    cost, table = section.result.cost, section.layers
    assert cost.macs["paper"] < 0.7 * cost.dense_macs["paper"]
    assert table.count.macs == cost.macs["paper"]
    assert all(row.seconds is not None for row in table.layers)
    assert not table.shows_kept


@pytest.mark.parametrize("line", ["{", '{"epoch": 4, "seconds": 1}', '{"epoch": "<b>"}', "[]", "NaN"])
def test_damaged_metrics(line, bare_folder, tmp_path):
    shutil.copytree(bare_folder, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl.*[Rr]emove"):
        gather([TrainedRun(tmp_path / "run")], figures=())


def test_words():
    assert [millions(count) for count in (400, 30_021_600, 1_814_073_344)] == ["0.0004M", "30.02M", "1,814.1M"]
    assert [duration(seconds) for seconds in (1.4, 61, 3600 * 5 + 60)] == ["1 s", "1 min", "5 h 01 min"]
