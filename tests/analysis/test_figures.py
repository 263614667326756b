"""Every figure from really trained networks, and the numbers it shows against what they must be."""

import json
import math
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dgconv import DynamicGroupConv2d, count_macs, create_model, dynamic_layers
from dgconv.analysis import figures
from dgconv.analysis.figures.contributions import contributions, spread_over_heads
from dgconv.analysis.figures.maps import _shallow_and_deep
from dgconv.analysis.figures.style import look_of
from dgconv.analysis.figures.time_split import with_standard_groups
from dgconv.analysis.likeness import jaccard, shuffled
from dgconv.analysis.trained_run import TrainedRun
from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.layers import keep_count
from dgconv.ops import native
from dgconv.train import Recipe, evaluate, train
from dgconv.train.schedule import RAMP_END, WARM_UP_END


@pytest.fixture(scope="module")
def all_runs(head_run, global_run, tmp_path_factory):
    """Also another seed, and another number of heads."""
    runs = [head_run, global_run]
    for name, change in {"seed2": {"seed": 2}, "heads2": {"heads": 2}}.items():
        folder = tmp_path_factory.mktemp("more") / name
        train(head_run.recipe.changed(**change), folder)
        runs.append(TrainedRun(folder))
    return runs


def test_training(run):
    _, numbers = figures.draw_training(run)
    assert numbers["epoch"] == [1, 2, 3]
    assert numbers["test_error"][-1] == evaluate(run.model, run.data.test).error
    assert numbers["pruned_share"][-1] == pytest.approx(run.recording.pruned_share, abs=1e-3)
    borders = [(stage["from"], stage["to"]) for stage in numbers["stages"]]
    assert borders == [(0, 3 * WARM_UP_END), (3 * WARM_UP_END, 3 * RAMP_END), (3 * RAMP_END, 3)]


def test_training_hides_no_curve_and_leaves_no_hole(head_run, tmp_path):
    drawing, _ = figures.draw_training(head_run)
    drawing.draw_without_rendering()
    loss, share, _ = drawing.axes
    for axes in (loss, share):
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1, "the legend is above"
    assert drawing.get_suptitle().endswith("at the end")
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(head_run.folder / name, tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert figures.draw_training(TrainedRun(tmp_path)).figure.get_suptitle().endswith("% after epoch 2 of 3")


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("size", "stride", "padding"), [(1, 1, 0), (3, 2, 1), (2, 1, "same")])
def test_contributions_add_up_to_the_undivided_convolution(size, stride, padding):
    layer = DynamicGroupConv2d(5, 8, size, stride=stride, padding=padding, heads=2)
    x = torch.randn(5, 7, 6)
    whole = F.conv2d(x[None], layer.weight, stride=stride, padding=padding)[0].mean((1, 2))
    torch.testing.assert_close(contributions(layer, x).sum(1), whole, rtol=1e-4, atol=1e-5)
    x[3] = 0
    assert contributions(layer, x)[:, 3].abs().max() == 0


def test_contributions(run):
    _, numbers = figures.draw_contributions(run)
    layer = dict(dynamic_layers(run.model))[numbers["layer"]]
    kept = torch.tensor(numbers["kept"])  # [2 images, outputs, C]
    assert kept.shape == (2, 4, layer.in_channels) == torch.tensor(numbers["contributions"]).shape
    assert numbers["classes"][0] != numbers["classes"][1]
    assert [output % layer.heads for output in numbers["outputs"]] == [0, 1, 2, 3], "each of another head"
    if not run.has_global_gate:
        assert (kept.sum(-1) == keep_count(layer.in_channels, 0.75)).all()
    assert spread_over_heads(DynamicGroupConv2d(4, 4, 1, heads=1), 9) == [0, 1, 2, 3]


def test_contributions_in_a_plain_network(dense_run, head_run):
    drawing, numbers = figures.draw_contributions(dense_run)
    values = torch.tensor(numbers["contributions"])  # [2 images, outputs, C]
    layer = dense_run.model.get_submodule(numbers["layer"])
    assert type(layer) is torch.nn.Conv2d
    assert values.shape == (2, 4, layer.in_channels)
    assert all(all(channels) for image in numbers["kept"] for channels in image), "it keeps them all"
    assert numbers["classes"][0] != numbers["classes"][1]
    images, seen = dense_run.data.test.batches(64, train=False), []
    first = next(images)
    places = [first[1].tolist().index(dense_run.data.classes.index(name)) for name in numbers["classes"]]
    layer.register_forward_hook(lambda layer, args, out: seen.append(out.mean((2, 3))))
    with torch.no_grad():
        dense_run.model(first[0][places])
    torch.testing.assert_close(values.sum(2), seen[0][:, numbers["outputs"]], rtol=1e-3, atol=1e-4)
    assert "which computes all of them" in drawing.get_suptitle()
    with pytest.raises(UserError, match="unknown convolution 'nowhere'"):
        figures.draw_contributions(dense_run, "nowhere")


@pytest.mark.slow
def test_long_names_of_classes_fit(head_run, monkeypatch):
    long = [f"{name}: {'a very long name ' * 4}" for name in head_run.data.classes]
    monkeypatch.setitem(vars(head_run), "data", replace(head_run.data, classes=long))
    maps = figures.draw_maps(head_run).figure
    maps.draw_without_rendering()
    panels = [axes for axes in maps.axes if axes.get_ylabel()]
    tops = [(label.y0, label.y1) for label in (axes.yaxis.label.get_window_extent() for axes in panels)]
    assert len(tops) == 6
    assert all(below[1] < above[0] for above, below in pairwise(tops)), "one below the other"
    assert panels[0].get_ylabel() == "class\n0: a very …"
    pair = figures.draw_contributions(head_run).figure
    pair.draw_without_rendering()
    first, second = (axes._left_title.get_window_extent() for axes in pair.axes[1:3])
    assert first.x1 < second.x0
    assert second.x1 < pair.bbox.x1


@pytest.mark.slow
def test_maps(run):
    _, numbers = figures.draw_maps(run)
    layers = list(run.recording.layers)
    assert numbers["layers"] == {"shallow": layers[:2], "deep": layers[2:]}
    assert len(numbers["classes"]) == 6
    assert numbers["classes"][0] == numbers["classes"][1] != numbers["classes"][2]
    assert all(0 < share < 1 for block in ("shallow", "deep") for share in numbers[block]["kept_share"])
    assert 0 <= numbers["shallow"]["channels_disputed"] < 1


@pytest.mark.slow
def test_maps_and_probabilities_of_chosen_layers(head_run, tmp_path):
    names = list(head_run.recording.layers)
    drawing, numbers = figures.draw_maps(head_run, blocks=[range(2, 4), range(1, 2), range(4, 5)])
    assert numbers["layers"] == {"layers 2–3": names[1:3], "layer 1": names[:1], "layer 4": names[3:]}
    assert "the images disagree about" in drawing.get_suptitle()
    made = list(figures.make_figures([head_run], tmp_path, ["maps", "probabilities"], ["2-3", "4"]))
    assert [one.figure for one in made] == ["maps", "probabilities-2", "probabilities-3", "probabilities-4"]
    shown = json.loads((tmp_path / "probabilities-3.json").read_text())
    assert shown["layer"] == names[2]
    (beyond,) = figures.make_figures([head_run], tmp_path, ["maps"], ["33-36"])
    assert beyond.reason.startswith("layers 33–36 of a network that has 4 dynamic layers")


def test_the_layers_of_the_paper_where_there_are_as_many():
    assert list(_shallow_and_deep(36).values()) == [range(5, 9), range(33, 37)]
    assert list(_shallow_and_deep(35).values()) == [range(1, 5), range(32, 36)]
    assert list(_shallow_and_deep(1).values()) == [range(1, 2), range(1, 2)]


@pytest.mark.parametrize("text", ["0", "3-2", "a", "1-", "-1", "1-2-3", "", "²", "100000"])
def test_layers_that_are_none(text, head_run, tmp_path):
    with pytest.raises(UserError, match="`layers` are"):
        list(figures.make_figures([head_run], tmp_path, layers=[text]))
    with pytest.raises(UserError, match="4 numbers or ranges at most"):
        list(figures.make_figures([head_run], tmp_path, layers=list("12345")))


def test_probabilities(run):
    _, numbers = figures.draw_probabilities(run)
    layer = run.recording.layers[numbers["layer"]]
    probability = torch.tensor(numbers["pruning_probability"], dtype=torch.float64)
    assert numbers["images"] == len(run.data.test)
    assert float(probability.mean()) == pytest.approx(layer.pruned_share)
    for head, counts in zip(probability, numbers["heads"], strict=True):
        assert sum(counts.values()) == layer.channels
        assert counts["always_kept"] == int((head == 0).sum())
        assert counts["always_out"] == int((head == 1).sum())
        if not run.has_global_gate:
            assert float(head.sum()) == pytest.approx(layer.channels - keep_count(layer.channels, 0.75))
    assert numbers["jumping_share_by_layer"][layer.name] == numbers["jumping_share"] > 0
    with pytest.raises(UserError, match="unknown dynamic layer 'nowhere'"):
        figures.draw_probabilities(run, "nowhere")


def test_layer_rates(head_run, global_run):
    _, numbers = figures.draw_layer_rates(global_run)
    assert numbers["overall"] == evaluate(global_run.model, global_run.data.test).pruned_share
    sizes = [layer.heads * layer.channels for layer in global_run.recording.layers.values()]
    rates = numbers["pruning_rate"]
    mean = sum(size * rate for size, rate in zip(sizes, rates, strict=True)) / sum(sizes)
    assert mean == pytest.approx(numbers["overall"])
    assert max(rates) - min(rates) > 0.01, "layers differ under one threshold"
    assert all(low <= high for low, high in numbers["images_5_95"])
    with pytest.raises(UserError, match="global gate"):
        figures.draw_layer_rates(head_run)


def test_jaccard_by_hand():
    masks = torch.tensor([[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[1, 1, 0, 0]], [[0, 0, 0, 0]]]).bool()
    likeness = jaccard(masks)
    assert likeness[0].tolist() == pytest.approx([1, 1 / 3, 1, 0])
    assert math.isnan(likeness[3, 3]), "nothing kept, nothing to compare"


def test_similarity(run):
    _, numbers = figures.draw_similarity(run)
    assert sum(numbers["pairs"].values()) == 64 * 63 // 2
    assert numbers["mean"]["same_class"] > numbers["mean"]["other_classes"] > numbers["mean"]["chance"]
    layer = run.recording.layers[numbers["layers"][-1]]
    assert torch.equal(shuffled(layer.example_masks, torch.Generator()).sum(2), layer.example_masks.sum(2))
    if not run.has_global_gate:
        for expected, likeness in zip(map(by_chance, run.recording.layers.values()), numbers["chance"], strict=True):
            assert likeness == pytest.approx(expected, abs=0.01)


def test_similarity_of_a_layer_that_keeps_nothing(global_folder, tmp_path):
    run = TrainedRun(global_folder, examples=32)
    name, layer = next(iter(dynamic_layers(run.model)))
    layer.gate.threshold.fill_(1e9)
    drawing = figures.draw_similarity(run)
    assert name == drawing.numbers["layers"][0]
    assert drawing.numbers["same_class"][0] is None
    assert 0 < drawing.numbers["mean"]["same_class"] <= 1
    drawing.save(tmp_path, "similarity")


def test_similarity_of_a_network_that_keeps_nothing(global_folder, tmp_path):
    run = TrainedRun(global_folder, examples=32)
    for _, layer in dynamic_layers(run.model):
        layer.gate.threshold.fill_(1e9)
    drawing = figures.draw_similarity(run)
    assert set(drawing.numbers["mean"].values()) == {None}
    drawing.save(tmp_path, "similarity")


def by_chance(layer):
    """The expected Jaccard index of two random choices of k from C: the hypergeometric distribution."""
    c, k = layer.channels, keep_count(layer.channels, 0.75)
    return sum(
        math.comb(k, both) * math.comb(c - k, k - both) / math.comb(c, k) * both / (2 * k - both)
        for both in range(k + 1)
    )


def test_time_split(head_run):
    _, numbers = figures.draw_time_split(head_run, repeats=3)
    assert sum(numbers["seconds"].values()) == pytest.approx(numbers["total"])
    assert 0 < numbers["total"] < 5
    assert all(seconds >= 0 for seconds in numbers["seconds"].values())
    if native.available():
        assert {"convolution", "gather", "generator"} <= numbers["seconds"].keys()


@pytest.mark.parametrize(("rate", "alike"), [(0.75, True), (0.5, True), (2 / 3, False), (0.6, False)])
def test_standard_groups_of_the_same_cost(rate, alike):
    model = create_model("condensenet20_dgc", pruning_rate=rate)
    twin = with_standard_groups(model)
    assert (twin is not None) == alike
    if twin is not None:
        assert not list(dynamic_layers(twin))
        assert count_macs(twin).macs == count_macs(create_model("condensenet20_sgc", groups=round(1 / (1 - rate)))).macs
        assert list(dynamic_layers(model)), "the model is as it was"


@pytest.mark.slow
def test_rate_sweep(run):
    _, numbers = figures.draw_rate_sweep(run, rates=(0.25, 0.5))
    assert numbers["rate"] == [0.25, 0.5, 0.75]
    assert numbers["convention"] == "paper"
    assert numbers["macs"] == sorted(numbers["macs"], reverse=True)
    assert numbers["error"][-1] == pytest.approx(evaluate(run.model, run.data.test).error)
    images = next(iter(run.data.test.batches(1000, train=False)))[0]
    assert numbers["macs"][-1] == pytest.approx(count_macs(run.model, images=images).macs, rel=1e-3)


def test_adaptive_budget(head_run, monkeypatch):
    monkeypatch.setattr("dgconv.analysis.figures.adaptive_budget.RATES", (0.25,))
    _, numbers = figures.draw_adaptive_budget(head_run)
    assert numbers["rates"] == [0.75, 0.5]
    by_rate = {point["rate"]: point for point in numbers["fixed"]}
    first, last = numbers["adaptive"][0], numbers["adaptive"][-1]
    assert first["error"] == pytest.approx(by_rate[0.75]["error"])
    assert first["macs"] == pytest.approx(by_rate[0.75]["macs"])
    assert last["macs"] == pytest.approx(by_rate[0.75]["macs"] + by_rate[0.5]["macs"], rel=0.01)
    assert min(point["error"] for point in numbers["adaptive"]) < first["error"]


def test_many_series_do_not_look_alike():
    assert len({look_of(number) for number in range(36)}) == 36
    assert len({look_of(number)[0] for number in range(6)}) == 6, "by colour alone, where that is enough"


@pytest.mark.slow
def test_error_over_macs(all_runs):
    drawing, numbers = figures.draw_tradeoff(all_runs)
    low, high = drawing.axes[0].get_ylim()
    for error in (error for point in numbers["points"] for error in point["errors"]):
        assert low <= error < high, "no marker on the upper border"
    assert len(numbers["points"]) == 3
    assert {point["task"] for point in numbers["points"]} == {"digits, 16 px"}
    pair = next(point for point in numbers["points"] if len(point["errors"]) == 2)
    assert pair["errors"] == [all_runs[0].error, all_runs[2].error]
    assert pair["error"] == pytest.approx(sum(pair["errors"]) / 2)
    assert pair["macs"] == pytest.approx(count_macs(all_runs[0].model, (3, 16, 16), "authors").macs)
    (measured,) = (point["macs"] for point in numbers["points"] if point["model"] == "condensenet20_dgcg")
    assert measured != pytest.approx(pair["macs"], rel=1e-6), "seen on images, not taken from the options"


@pytest.mark.slow
def test_ablation(all_runs):
    _, numbers = figures.draw_ablation(all_runs)
    assert numbers["by_heads"] == {"2": [all_runs[3].error], "4": [all_runs[0].error, all_runs[2].error]}
    assert numbers["missing_heads"] == [1, 8]
    assert [round(rate, 3) for rate in numbers["missing_rates"]] == [0.333, 0.5, 0.833, 0.875]
    with pytest.raises(UserError, match="differ in their heads"):
        figures.draw_ablation(all_runs[:1])


@pytest.mark.slow
def test_files(head_run, tmp_path):
    only = ("training", "similarity", "layer_rates", "ablation")
    made = {one.figure: one for one in figures.make_figures([head_run], tmp_path / "a", only)}
    assert list(made) == ["training", "layer_rates", "similarity", "ablation"]
    assert [bool(one.files) for one in made.values()] == [True, False, True, False]
    assert "global gate" in made["layer_rates"].reason
    svg, png, numbers = made["similarity"].files
    assert "svg" in ElementTree.parse(svg).getroot().tag
    with Image.open(png) as image:
        assert image.width >= 1400
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20
    assert json.loads(numbers.read_text()) == figures.draw_similarity(head_run).numbers
    list(figures.make_figures([head_run], tmp_path / "b", ["similarity"]))
    assert svg.read_bytes() == (tmp_path / "b" / "similarity.svg").read_bytes(), "the same again"


@pytest.mark.slow
def test_command(head_folder, global_folder, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(global_folder / name, tmp_path / "bare")
    out = tmp_path / "out"
    names = ["training", "probabilities", "error_over_macs"]
    main(["figures", str(head_folder), str(tmp_path / "bare"), "--out", str(out), "--json", "--only", *names])
    listing = json.loads(capsys.readouterr().out)
    assert [one["figure"] for one in listing] == [*names[:2], *names[:2], names[2]]
    assert [bool(one["files"]) for one in listing] == [True, True, True, False, True]
    assert "model.safetensors is missing" in listing[3]["reason"]
    assert (out / "2-condensenet20_dgcg-digits" / "training.png").exists()
    main(["figures", str(head_folder), "--out", str(out), "--only", "training"])
    assert capsys.readouterr().out.startswith(f"training of {head_folder}: {out}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--only", "trainig"], "Did you mean 'training'"),
        (["{run}", "--only", "layer_rates"], "no figure could be made"),
        (["{tmp}"], "is not a run folder"),
        (["{run}", "--examples", "1"], "at least 2"),
    ],
)
def test_wrong_use_of_the_command(arguments, message, head_folder, tmp_path, capsys):
    arguments = [argument.format(run=head_folder, tmp=tmp_path) for argument in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(["figures", *arguments, "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib(head_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"dgconv\[figures\]"):
        figures.draw_training(head_run)


def test_without_dynamic_layers(tmp_path):
    train(
        Recipe.of(model="condensenet20", stages=(1,), growth=(4,), image_size=8, epochs=1, batch_size=256),
        tmp_path / "r",
    )
    dense = TrainedRun(tmp_path / "r")
    drawing, numbers = figures.draw_training(dense)
    assert numbers["stages"] == []
    assert len(drawing.axes) == 2, "no empty panel"
    made = {one.figure: one.reason for one in figures.make_figures([dense], tmp_path / "out")}
    assert [name for name, reason in made.items() if not reason] == ["training", "contributions", "error_over_macs"]


@pytest.mark.parametrize("draw", [figures.draw_contributions, figures.draw_maps])
def test_letters_among_small_panels_are_large_enough(head_run, draw):
    figure, _ = draw(head_run)
    texts = [label for axes in figure.axes for label in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 10
