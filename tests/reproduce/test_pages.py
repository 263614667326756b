"""The pages written from records: every figure is that of the records, every missing run is named."""

import json
import shutil
import statistics
import sys
from pathlib import Path

import pytest
import torch

from dgconv import count_macs, create_model, dynamic_layers
from dgconv.analysis.figures.ablation import draw_ablation
from dgconv.analysis.figures.similarity import draw_similarity
from dgconv.analysis.figures.style import numbers_in
from dgconv.analysis.figures.tradeoff import draw_tradeoff
from dgconv.analysis.gate_facts import GENERATOR, measure_gates
from dgconv.analysis.trained_run import TrainedRun
from dgconv.errors import UserError
from dgconv.runs import RunFolder
from dgconv.train.recipe_files import list_recipes, load_recipe, reported_of
from reproduce.__main__ import main
from reproduce.checkout import Checkout
from reproduce.claims import CLAIMS, Claim
from reproduce.gates import gates_table
from reproduce.groups import difference, group_records, is_beyond_noise, seeds_to_tell
from reproduce.markdown import fill_section, table
from reproduce.page import readme_table, results_page
from reproduce.record import Record, add_record, read_records
from reproduce.rows import list_numbers
from reproduce.study import find_base, find_studies, study_of
from reproduce.wanted import CHANGES, SEEDS, TABLES, Wanted, all_wanted, missing_seeds

DGC, DENSE = "cifar10_condensenet50_dgc_rate33", "cifar10_condensenet50"


def groups_in(checkout):
    return group_records(read_records(checkout.results))


def row_of(page, start):
    """The cells of the only line that starts so."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def section(page, title):
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_seeds_become_a_mean_and_a_spread(checkout, add):
    errors = {0: 5.5, 1: 6.25, 2: 5.8}
    for seed, error in errors.items():
        add(error, name=DGC, seed=seed, seconds=2.0)
    [group] = groups_in(checkout)
    assert group.errors == errors
    mean, spread = statistics.mean(errors.values()), statistics.stdev(errors.values())
    page = section(results_page(groups_in(checkout), {}), "CondenseNet-50 on CIFAR-10")
    _, error, by_seed, _, best, paper, less, macs, authors, dense, pruned = row_of(page, f"`{DGC}`")
    assert error == f"{mean:.2f} % ± {spread:.2f}"
    assert by_seed == "5.50 (0), 6.25 (1), 5.80 (2)"
    assert best == f"{mean:.2f} %", "no epoch before the last was better"
    reported = reported_of(DGC)
    assert (paper, less) == (f"{reported.error} %", f"{mean - reported.error:+.2f}")
    model = create_model("condensenet50_dgc", pruning_rate=load_recipe(DGC).get("pruning_rate"))
    for convention, cell in (("paper", macs), ("authors", authors)):
        assert cell == f"{count_macs(model, convention=convention).macs / 1e6:.1f}M"
    assert dense == f"{count_macs(model, convention='authors').dense_macs / 1e6:.1f}M"
    assert pruned == "0.700"
    assert f"- `{DGC}`: {reported.error} % at 51M MACs, {reported.where}." in page
    trained = row_of(section(results_page(groups_in(checkout), {}), "How they were trained"), f"`{DGC}`")
    assert trained[1:6] == ["0, 1, 2", "float32", "150", "64", "5.0 min"]


def test_what_was_measured_of_each_seed_is_averaged(checkout, add):
    for seed, (seconds, share, macs) in enumerate([(20.0, 0.6, 40e6), (40.0, 0.8, 60e6)]):
        config = add(6.0, name=DGC, seed=seed, seconds=seconds, pruned_share=share) / "config.json"
        measured = {"measured_macs": {"paper": macs, "authors": 2 * macs}}
        config.write_text(json.dumps(json.loads(config.read_text()) | measured))
    page = results_page(groups_in(checkout), {})
    *_, macs, authors, _, pruned = row_of(section(page, "CondenseNet-50 on CIFAR-10"), f"`{DGC}`")
    assert (macs, authors, pruned) == ("50.0M", "100.0M", "0.700")
    assert row_of(section(page, "How they were trained"), f"`{DGC}`")[5] == "1.25 h"


def test_what_was_not_measured_enters_no_mean(checkout, add):
    metrics = add(6.0, name=DGC, seconds=2.0) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"pruned_share": 0.7', '"pruned_share": 0.1', 1))
    unfinished = add(70.0, name=DGC, seed=1, done=10) / "config.json"
    measured = {"measured_macs": {"paper": 1e6, "authors": 1e6}}
    unfinished.write_text(json.dumps(json.loads(unfinished.read_text()) | measured))
    [group] = groups_in(checkout)
    assert group.pruned_share == 0.7, "of the last epoch"
    assert group.cost == group.finished[0].cost
    untimed = add(6.0, name=DGC, seed=2, pruned_share=None) / "metrics.jsonl"
    untimed.write_text(untimed.read_text().replace(', "first_step_seconds": null', ""))
    [group] = groups_in(checkout)
    assert group.seconds == 2.0 * 150
    assert group.pruned_share is None, "that of one seed is not that of all"


def test_the_best_epoch_is_told_apart(checkout, add):
    metrics = add(6.0, name=DGC) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"test_error": 89.9,', '"test_error": 5.25,'))
    page = section(results_page(groups_in(checkout), {}), "CondenseNet-50 on CIFAR-10")
    assert row_of(page, f"`{DGC}`")[1:3] == ["6.00 %", "6.00 (0)"]
    assert row_of(page, f"`{DGC}`")[4] == "5.25 %"


def test_the_last_epochs_are_averaged(checkout, add):
    for seed, error in enumerate((6.0, 7.0)):
        metrics = add(error, name=DGC, seed=seed) / "metrics.jsonl"
        lines = [json.loads(line) | {"test_error": error} for line in metrics.read_text().splitlines()]
        lines[-11]["test_error"] = 90.0  # of 150 the last fifteenth are ten
        lines[-10]["test_error"] = error + 1.0
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = section(results_page(groups_in(checkout), {}), "CondenseNet-50 on CIFAR-10")
    assert row_of(page, f"`{DGC}`")[3] == "6.60 %"
    assert groups_in(checkout)[0].late_error == pytest.approx(6.6)


def test_unfinished_runs_are_named_and_enter_no_mean(checkout, add):
    add(6.0, name=DENSE)
    add(80.0, name=DENSE, seed=1, done=10)
    add(70.0, name=DGC, done=20)
    page = section(results_page(groups_in(checkout), {}), "CondenseNet-50 on CIFAR-10")
    assert row_of(page, f"`{DENSE}`")[1:3] == ["6.00 %", "6.00 (0), unfinished: 80.00 at epoch 10 (1)"]
    assert row_of(page, f"`{DGC}`")[1:3] == ["unfinished, 20 of 150 epochs", "unfinished: 70.00 at epoch 20 (0)"]
    assert missing_seeds(Wanted(DENSE, SEEDS), groups_in(checkout)) == [1, 2]


def test_missing_runs_are_listed_with_their_command(checkout, add):
    add(6.0, name=DENSE, seed=1, precision="bfloat16")
    add(4.4, name="cifar10_condensenet86_dgcg", precision="bfloat16")
    page = results_page(groups_in(checkout), {})
    missing = section(page, "Missing")
    assert f"dgconv train {DENSE} --precision bfloat16 --seeds 0 2 --data-dir DIR" in missing.splitlines()
    assert "cifar10_condensenet86_dgcg" not in missing
    for wanted in all_wanted():
        assert f"| `{wanted.recipe}` |" in page or not wanted.seeds
    assert row_of(section(page, "CondenseNet-86"), "`cifar10_condensenet86_dgc`")[1] == "missing"


def test_other_seeds_count_as_well(checkout, add):
    for seed in (7, 8, 0):
        add(6.0, name=DENSE, seed=seed)
    assert missing_seeds(Wanted(DENSE, SEEDS), groups_in(checkout)) == []
    assert missing_seeds(Wanted(DENSE, (0, 1, 2, 3)), groups_in(checkout)) == [1]


def test_precisions_are_not_mixed(checkout, add):
    add(6.0, name=DENSE)
    add(7.0, name=DENSE, precision="bfloat16", seed=1)
    assert sorted(group.error for group in groups_in(checkout)) == [6.0, 7.0]


def test_every_wanted_recipe_exists_and_the_tables_ask_for_what_the_paper_has():
    assert {wanted.recipe for wanted in all_wanted()} == {*list_recipes("cifar*"), *list_recipes("imagenet*")}
    assert {claim.better for claim in CLAIMS} | {claim.than for claim in CLAIMS} <= {w.recipe for w in all_wanted()}
    heads, rates = TABLES[-2:]
    assert [load_recipe(row.recipe).get("heads") or 4 for row in heads.rows] == [1, 2, 4, 8, 16]
    assert [load_recipe(row.recipe).get("pruning_rate") for row in rates.rows] == [1 / 3, 1 / 2, 3 / 4, 5 / 6, 7 / 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("better", "than", "verdict"),
    [
        ([5.0, 5.1], [6.0, 6.1], "holds"),
        ([6.0, 6.1], [5.0, 5.1], "does not hold"),
        ([5.0, 6.0], [5.3, 6.3], "undecided, within the noise; 45 seeds of each might tell"),
        ([5.0, 5.2], [5.3, 5.5], "undecided, within the noise; 4 seeds of each might tell"),  # t = 2.1, p = 0.17
        ([5.1, 5.3], [5.2, 5.2 + 1e-15], "undecided, within the noise"),
        ([5.0, 5.2, 5.1, 5.1], [5.3, 5.5, 5.4, 5.4], "holds"),  # t = 5.2
        ([5.0, 5.2], [5.0, 5.2], "undecided, within the noise"),
        ([5.0], [6.0, 6.1], "holds, too few seeds to be sure"),  # t = 12, p = 0.053: one degree of freedom
        ([5.0], [6.0, 6.1, 6.05], "holds, if a single seed spreads as others do"),
        ([6.0, 6.1, 6.05], [5.0], "does not hold, if a single seed spreads as others do"),
        ([5.0], [6.0], "holds, too few seeds to be sure"),
        ([], [6.0], "missing"),
        ([6.0], [], "missing"),
    ],
)
def test_claims(checkout, add, better, than, verdict):
    for name, errors in ((DGC, better), (DENSE, than)):
        for seed, error in enumerate(errors):
            add(error, name=name, seed=seed)
    for name in (DGC, DENSE):
        add(70.0, name=name, seed=9, done=10)  # does not count
    assert Claim("less work", DGC, DENSE).line(groups_in(checkout))[-1] == verdict


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([6.1, 6.2, 6.1], "holds"),
        ([7.4, 7.5, 7.4], "does not hold"),
        ([6.9, 7.1, 6.8], "undecided, within the noise; 31 seeds of each might tell"),
    ],
)
def test_a_claim_to_be_comparable_allows_a_difference(checkout, add, errors, verdict):
    for seed, error in enumerate(errors):
        add(error, name=DGC, seed=seed)
        add(5.9 + 0.1 * seed, name=DENSE, seed=seed)
    line = Claim("comparable", DGC, DENSE, 1.0).line(groups_in(checkout))
    assert (line[0], line[-1]) == ("comparable, at most 1 % worse", verdict)


def test_a_claim_is_about_the_precision_with_the_most_seeds(checkout, add):
    add(9.0, name=DGC, seed=7)
    for seed, error in enumerate((5.0, 5.1)):
        add(error, name=DGC, seed=seed, precision="bfloat16")
        add(error + 1, name=DENSE, seed=seed)
    add(1.0, name=DENSE, seed=7, precision="bfloat16")
    assert Claim("less work", DGC, DENSE).line(groups_in(checkout))[-2:] == ["-1.00 ± 0.07", "holds"]


def test_a_study_finds_what_differs_in_one_setting(checkout, add):
    for seed, error in enumerate((2.0, 2.2)):
        add(error, seed=seed)
        add(error + 0.5, seed=seed, lasso="paper")
    add(3.0, per_head_init=False)
    add(9.0, lasso="paper", per_head_init=False)  # two settings
    add(8.0, precision="bfloat16")
    add(7.0, epochs=5)
    add(6.0, epochs=5, lasso="paper")
    add(1.0, lasso_weight=1e-4, done=3)  # unfinished
    groups = groups_in(checkout)
    study = study_of(find_base("digits", groups), groups)
    assert {factor.what: factor.difference for factor in study.factors} == {
        "epochs: 30 → 5": pytest.approx(4.9),
        "lasso: authors → paper": pytest.approx(0.5),
        "per_head_init: default → False": pytest.approx(0.9),
        "precision: float32 → bfloat16": pytest.approx(5.9),
    }
    lasso = study.factors[1]
    spread = statistics.stdev((2.0, 2.2))
    assert lasso.standard_error == pytest.approx((2 * spread**2 / 2) ** 0.5)
    assert study.factors[2].standard_error is None
    short = study_of(find_base("digits/epochs=5", groups), groups)
    assert [factor.what for factor in short.factors] == ["epochs: 5 → 30", "lasso: authors → paper"]

    full, shortened = find_studies(groups)
    assert "epochs" not in {factor.setting for factor in full.factors + shortened.factors}
    assert len(full.factors) == 3
    page = section(results_page(groups, {}), "One factor at a time")
    assert row_of(page.partition("5 epochs")[0], "lasso: authors → paper")[1:] == [
        f"{2.6:.2f} % ± {spread:.2f}", f"{0.5:+.2f} ± {lasso.standard_error:.2f}", "no", "0, 1",
    ]  # fmt: skip
    sure = {factor.setting: factor.is_beyond_noise for factor in study.factors}
    assert sure == {"epochs": True, "lasso": False, "per_head_init": False, "precision": True}
    with pytest.raises(UserError, match=r"unknown base of a study 'digit'. Did you mean 'digits'"):
        find_base("digit", groups)


def test_recipes_of_the_tables_are_no_variations_of_each_other(checkout, add):
    add(6.0, name=DGC)
    add(6.5, name="cifar10_condensenet50_dgc")
    groups = groups_in(checkout)
    assert all(not study.factors for study in find_studies(groups))
    assert [f.setting for f in study_of(find_base(DGC, groups), groups).factors] == ["pruning_rate"]


def test_difference(checkout, add):
    add(2.0)
    add(2.5, lasso="paper")
    base, other = groups_in(checkout)
    assert difference(base, other) == (0.5, None)
    add(2.4, seed=1)
    for seed, error in ((1, 2.7), (2, 3.5)):
        add(error, lasso="paper", seed=seed)
    delta, standard_error = difference(*groups_in(checkout))
    assert delta == pytest.approx(0.7)
    assert standard_error == pytest.approx((0.08 / 2 + 0.28 / 3) ** 0.5)


def test_what_is_beyond_noise(checkout, add):
    """A spread over two seeds says little, one of none nothing."""
    add(2.0)
    add(2.5, lasso="paper")
    assert is_beyond_noise(*groups_in(checkout)) is None
    add(2.0, seed=1)
    assert is_beyond_noise(*groups_in(checkout)) is True, "all seeds alike"
    for seed, error in enumerate((2.5, 2.6, 2.4), start=1):
        add(error, lasso="paper", seed=seed)
    base, other = groups_in(checkout)
    assert is_beyond_noise(base, other) is is_beyond_noise(other, base) is True
    assert is_beyond_noise(base, base) is False
    assert seeds_to_tell(base, base) is None


def test_the_command_writes_both_pages_and_checks_them(checkout, add, capsys):
    add(2.5)
    root = ["--root", str(checkout.root)]
    with pytest.raises(SystemExit) as exit:
        main(["--check", *root])
    assert exit.value.code == 1
    assert "docs/results.md" in capsys.readouterr().err
    assert not (checkout.root / "docs").exists()
    main([*root, "--json"])
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["digits"]["errors"] == {"0": 2.5}
    assert rows[DGC]["error"] is None
    readme = (checkout.root / "README.md").read_text()
    assert row_of(readme, "`digits`")[1:4] == ["2.50 %", "0", "not in it"]
    assert readme.startswith("# Title\n")
    assert readme.endswith("\nThe end.\n")
    main(["--check", *root])
    add(3.5, seed=1)
    with pytest.raises(SystemExit):
        main(["--check", *root])


def test_the_readme_shows_our_recipes_as_they_are(checkout, add):
    add(2.0)
    add(3.0, lasso="paper")
    add(1.0, name="digits", seed=5, done=2)
    readme = readme_table(groups_in(checkout))
    assert [line for line in readme.splitlines() if line.startswith("| `")] == [
        "| `digits` | 2.00 % | 0 | not in it | 8.3M | 14.2M |"
    ]
    runs = sum(len(wanted.seeds) for wanted in all_wanted()) + len(CHANGES)
    assert f"the {runs} of {runs} runs that are missing" in readme


def test_the_command_adds_and_studies(checkout, write_run, capsys):
    runs = [write_run("one", 2.0), write_run("two", 3.0, lasso="paper")]
    main(["add", *map(str, runs), "--root", str(checkout.root)])
    capsys.readouterr()
    main(["study", "digits", "--root", str(checkout.root)])
    out = capsys.readouterr().out
    assert "lasso: authors → paper" in out
    assert "+1.00" in out
    main(["study", "digits", "--root", str(checkout.root), "--json"])
    [factor] = json.loads(capsys.readouterr().out)["factors"]
    assert (factor["setting"], factor["difference"]) == ("lasso", 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "NOWHERE"], "is no checkout of dgconv"),
        (["add"], "name at least one run folder"),
        (["add", "NOWHERE"], "is not a run folder"),
        (["publish", "NOWHERE"], "is not a run folder"),
        (["study", "nothing"], "unknown base of a study 'nothing'"),
    ],
)
def test_wrong_use(checkout, tmp_path, capsys, arguments, message):
    arguments = [argument.replace("NOWHERE", str(tmp_path / "nowhere")) for argument in arguments]
    if "--root" not in arguments:
        arguments += ["--root", str(checkout.root)]
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_results_without_a_readme_are_no_checkout(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(UserError, match=r"is no checkout of dgconv: it has no results/ or no README\.md"):
        Checkout(tmp_path)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([2, 0, 1], "0, 1, 2"),
        (range(4), "0 to 3"),
        ([0, 1, 2, 3, 5, 9, 8, 7, 6, -1], "-1 to 3, 5 to 9"),
        ([7, 9], "7, 9"),
    ],
)
def test_long_rows_of_seeds_are_shortened(numbers, text):
    assert list_numbers(numbers) == text


def test_markdown():
    assert table(["a", "b"], [["c", "1"]]) == "| a | b |\n| --- | ---: |\n| c | 1 |"
    page = "x\n<!-- begin: s -->\nold\n<!-- end: s -->\ny\n"
    assert fill_section(page, "s", r"new \1") == "x\n<!-- begin: s -->\n\nnew \\1\n\n<!-- end: s -->\ny\n"
    with pytest.raises(UserError, match=r"one section .*: t .* it has 0"):
        fill_section(page, "t", "new")
    with pytest.raises(UserError, match=r"one section .*: s .* it has 2"):
        fill_section(page + page, "s", "new")


@pytest.mark.slow
def test_our_own_pages_are_up_to_date(counted_paper, monkeypatch):
    monkeypatch.setattr("reproduce.tables.compare_with_paper", lambda: counted_paper)
    assert Checkout(Path(__file__).parents[2]).outdated_pages() == {}


def test_the_page_on_reproduction_is_filled(checkout, add):
    """Its words stay, its tables are written."""
    page = checkout.root / "docs" / "reproduction.md"
    page.parent.mkdir(exist_ok=True)
    names = ("claims", "studies", "gates")
    page.write_text("".join(f"Words.\n<!-- begin: {name} -->\nOUTDATED\n<!-- end: {name} -->\n" for name in names))
    add(2.0)
    add(3.0, learning_rate=0.05)
    assert page in checkout.write_pages()
    text = page.read_text()
    assert text.count("Words.") == 3
    assert "OUTDATED" not in text
    assert "learning_rate: 0.1 → 0.05" in text
    assert page not in checkout.outdated_pages()


def test_how_dynamic_the_gates_are(checkout, head_folder):
    target = add_record(head_folder, checkout.results)
    gates = Record(target).gates
    drawn = draw_similarity(TrainedRun(head_folder)).numbers["mean"]
    assert gates["overlap"] == pytest.approx(drawn)
    model = Record(head_folder).model
    biases = [layer.generator.bias.abs().mean().item() for _, layer in dynamic_layers(model)]
    assert gates["generator"]["bias"] == pytest.approx(sum(biases) / len(biases))
    assert 0 < gates["jumping"] <= 1
    assert all(-1 <= cosine < 1 for cosine in gates["like_start"].values())
    untrained = checkout.root / "untrained"
    shutil.copytree(head_folder, untrained)
    torch.manual_seed(1)
    RunFolder(untrained).write_weights(Record(head_folder).recipe.build_model(10).state_dict())
    assert measure_gates(TrainedRun(untrained))["like_start"] == pytest.approx(dict.fromkeys(GENERATOR, 1.0))
    line = next(line for line in gates_table(checkout.groups).splitlines() if "condensenet20_dgc" in line)
    assert f"| {drawn['same_class']:.3f} | {drawn['other_classes']:.3f} | {drawn['chance']:.3f} |" in line
    assert line.endswith(
        f"| {gates['error']:.2f} % | {gates['error_one_choice']:.2f} % | {gates['error_one_gate']:.2f} % |"
    )


def test_what_was_measured_of_gates_is_averaged_over_seeds(checkout, add):
    facts = {
        "overlap": {"same_class": 0.5, "other_classes": 0.4, "chance": 0.1}, "variation": 0.1,
        "error_one_choice": 3.0, "error_one_gate": 5.0, "generator": {"weight1": 0.5, "weight2": 0.25, "bias": 1.0},
    }  # fmt: skip
    for seed, own in enumerate([{"jumping": 0.25, "error": 2.0}, {"jumping": 0.75, "error": 4.0}]):
        config = add(2.0, seed=seed) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"measured_gates": facts | own}))
    add(2.0, seed=2)  # not measured
    assert [line for line in gates_table(groups_in(checkout)).splitlines() if line.startswith("| `digits`")] == [
        "| `digits` | 0, 1 | 0.500 | 0.400 | 0.100 | 50.0 % | 10.0 % | 3.00 % | 3.00 % | 5.00 % |",
        "| `digits` | 0, 1 | 0.5000 | 0.2500 | 1.0000 |  |  |",  # older than the last two
    ]


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_records(checkout, add):
    assert checkout.root / "docs" / "tradeoff.svg" not in checkout.write_pages(), "nothing to show yet"
    assert "tradeoff.svg" not in (checkout.root / "docs" / "results.md").read_text()
    for seed, (error, macs) in enumerate([(6.0, 11e6), (6.5, 13e6)]):
        config = add(error, name=DGC, seed=seed) / "config.json"
        measured = {"measured_macs": {"paper": macs - 1e6, "authors": macs}}
        config.write_text(json.dumps(json.loads(config.read_text()) | measured))
    add(5.0, name=f"{DGC}_cutout")
    add(8.0, name="cifar10_condensenet50_dgc_heads1")
    add(9.0, name=DGC, weight_decay=1e-3)  # a study of ours, not what the tables want
    checkout = Checkout(checkout.root)
    picture = checkout.root / "docs" / "tradeoff.svg"
    assert picture in checkout.write_pages()
    assert "](tradeoff.svg)" in (checkout.root / "docs" / "results.md").read_text()
    points = {point["kind"]: point for point in numbers_in(picture.read_bytes())["points"]}
    assert {kind: point["errors"] for kind, point in points.items()} == {
        "condensenet50 DGC": [6.0, 6.5],
        "condensenet50 DGC, cutout 16": [5.0],
        "condensenet50 DGC, heads 1": [8.0],
    }
    assert points["condensenet50 DGC"]["reported"]["error"] == reported_of(DGC).error
    assert points["condensenet50 DGC"]["macs"] == 12e6, "measured when the record was made, of every seed"
    assert Checkout(checkout.root).outdated_pages() == {}
    add(7.0, name=DGC, seed=2)
    assert picture in Checkout(checkout.root).outdated_pages()


def test_runs_that_were_trained_otherwise_are_no_points_of_one_line(checkout, add):
    add(6.0, name=DGC)
    add(7.0, name="cifar10_condensenet50_dgc")
    add(5.0, name=DGC, weight_decay=1e-3)
    drawing, numbers = draw_tradeoff(read_records(checkout.results))
    lines = {}
    for point in numbers["points"]:
        lines.setdefault(point["kind"], []).append(point["error"])
    assert lines == {"condensenet50 DGC": [7.0, 6.0], "condensenet50 DGC, weight_decay 0.001": [5.0]}
    assert "seeds" not in drawing.get_suptitle()
    add(8.0, name=DGC, seed=1)
    assert "of several seeds the mean" in draw_tradeoff(read_records(checkout.results)).figure.get_suptitle()


@pytest.mark.parametrize("errors", [(20.0, 20.1), (20.0,), (0.0,)])
def test_small_differences_look_small(checkout, add, errors):
    for seed, error in enumerate(errors):
        add(error, seed=seed)
    low, high = draw_tradeoff(read_records(checkout.results)).figure.axes[0].get_ylim()
    assert high - low >= max(1, errors[0] / 10)
    assert low <= min(errors) <= max(errors) < high


def test_without_matplotlib_the_pictures_are_not_taken_for_missing(checkout, add, monkeypatch):
    add(5.0, name=DGC)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="need matplotlib"):
        Checkout(checkout.root).outdated_pages()


def test_heads_and_rates_are_drawn_once_there_are_several(checkout, add):
    picture = checkout.root / "docs" / "ablation.svg"
    add(5.0, name=DGC)
    assert picture not in Checkout(checkout.root).write_pages()
    add(7.0, name="cifar10_condensenet50_dgc_rate88")
    add(8.0, name="cifar10_condensenet50_dgc_heads1")
    add(6.0, name="cifar10_condensenet50_dgc")
    assert picture in Checkout(checkout.root).write_pages()
    numbers = numbers_in(picture.read_bytes())
    assert numbers["by_heads"] == {"1": [8.0], "4": [6.0]}
    assert [*numbers["by_rate"].values()] == [[5.0], [6.0], [7.0]]


def test_ablation_is_drawn_around_what_was_varied_most(checkout, add):
    """Not around what has the most seeds; and runs that were trained otherwise are left out."""
    for seed in range(3):
        add(5.0 + seed, name=DGC, seed=seed)
    for heads, error in {1: 8.0, 2: 7.0, 4: 6.0}.items():
        add(error, name="cifar10_condensenet50_dgc", heads=heads)
    add(1.0, name="cifar10_condensenet50_dgc", heads=8, cutout=16)
    _, numbers = draw_ablation(read_records(checkout.results))
    assert numbers["by_heads"] == {"1": [8.0], "2": [7.0], "4": [6.0]}
    by_rate = {round(float(rate), 2): errors for rate, errors in numbers["by_rate"].items()}
    assert by_rate == {0.33: [5.0, 6.0, 7.0], 0.75: [6.0]}
