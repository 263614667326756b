"""Recipe files: ours are complete and honest, a user's are read strictly."""

import json
import re
from dataclasses import fields
from fnmatch import fnmatch
from typing import get_args, get_type_hints

import pytest

from dgconv.analysis.kept_costs import cost_of
from dgconv.analysis.paper import ROWS
from dgconv.analysis.plan import agreement_with
from dgconv.errors import UserError
from dgconv.models import list_models
from dgconv.models._registry import all_options
from dgconv.train import Recipe
from dgconv.train.recipe_files import RECIPES, Reported, list_recipes, load_recipe, reported_of
from dgconv.train.tables import DataTable, TrainingTable

RATES = {"_rate0": 0.0, "_rate33": 1 / 3, "_rate50": 1 / 2, "": 3 / 4, "_rate83": 5 / 6, "_rate88": 7 / 8}
CONDENSENET50 = [
    *(f"_dgc{rate}" for rate in RATES), "_dgcg", "_sgc", "_sgc_groups2", "_lgc", "_lgc_condensation2", "",
]  # fmt: skip
HEADS = ["heads1", "heads2", "heads8", "heads16", "rate33_heads8"]
PRUNED = ["vgg16_l1", "vgg19_ns", "resnet164_ns", "densenet40_ns"]
RESNET18 = ["", "_dgc", "_dgcg", "_sfp", "_ns", "_dcp", "_fpgm", "_lccn", "_fbs", "_cgnet"]
SMALL = ["mobilenetv1", "shufflenet", "nasneta", "nasnetb", "nasnetc", "igcv3"]
EXPECTED = [
    *(f"{data}_condensenet50{method}" for data in ("cifar10", "cifar100") for method in CONDENSENET50),
    *(f"cifar10_condensenet50_dgc_{heads}" for heads in HEADS),
    *(f"cifar10_condensenet{method}_cutout" for method in ("50", "50_dgc_rate33", "86_dgc")),
    *(f"{data}_condensenet86_{method}" for data in ("cifar10", "cifar100") for method in ("dgc", "dgcg", "lgc")),
    *(f"cifar10_mobilenetv2_dgc_{number}" for number in (1, 2, 3)),
    *(f"cifar10_mobilenetv2_{method}_groups{groups}" for method in ("sgc", "flgc") for groups in (2, 4, 8)),
    *(f"{data}_{pruned}" for data in ("cifar10", "cifar100") for pruned in PRUNED),
    *(f"cifar10_{pruned}" for pruned in ("resnet56_l1", "resnet56_cp", "resnet110_l1", "resnet110_fpgm")),
    *(f"cifar10_densenet40_gal{less}" for less in ("", "_budget29")),
    *(f"imagenet_resnet18{method}" for method in RESNET18),
    *(f"imagenet_{small}" for small in SMALL),
    *(f"imagenet_mobilenetv2{method}" for method in ("", "_dgc")),
    *(f"imagenet_condensenet74_{method}" for method in ("dgc", "dgcg", "dgcg_angle0", "sgc", "lgc", "flgc")),
    "digits",
]


def test_these_are_our_recipes():
    assert sorted(list_recipes()) == sorted(EXPECTED)
    assert sorted(list_recipes("*_heads*")) == sorted(f"cifar10_condensenet50_dgc_{heads}" for heads in HEADS)
    assert list_recipes("nothing*") == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_row_of_the_paper_has_a_recipe(row):
    recipes = [load_recipe(name) for name in list_recipes(row.recipe)]
    assert recipes
    for recipe in recipes:
        is_undivided = (recipe.model.name, row.options.get("condensation")) == ("condensenet50", 1)
        assert recipe.model.name == row.model or is_undivided
        method = row.pruned.method if row.pruned else "l1" if "widths" in row.options else None
        assert recipe.get("prune") == method
        if (reported := reported_of(recipe.name)) and row.reported:
            assert row.reported in (reported.saving, (reported.macs or 0) / 1e6)


@pytest.mark.parametrize("name", list_recipes())
def test_costs_what_the_paper_reports_or_says_why_not(name):
    reported = reported_of(name)
    agreement = agreement_with(cost_of(load_recipe(name)), reported)
    if agreement is None:
        return
    in_text = "imagenet_condensenet74_dgcg_angle0"
    assert name == in_text or any(fnmatch(name, row.recipe) and row.reported for row in ROWS)
    far_off = {"imagenet_resnet18_fpgm": 13, "imagenet_resnet18_fbs": 31}
    assert abs(agreement.difference) < far_off.get(name, 1.5)
    assert reported.note or name not in far_off


@pytest.mark.parametrize("name", list_recipes())
def test_is_named_after_data_and_model_and_says_what_it_is(name):
    recipe, reported = load_recipe(name), reported_of(name)
    assert recipe.name == name
    assert recipe.model.name in list_models()
    data = "imagenet" if recipe.data.name == "folder" else recipe.data.name
    assert name == "digits" or f"{name}_".startswith(f"{data}_{recipe.model.name}_")
    what, says, command = (RECIPES / f"{name}.toml").read_text().splitlines()[:3]
    assert what.startswith("# ")
    assert says.startswith("# Reported: ")
    assert command == ("#   dgconv train" if name == "digits" else f"#   dgconv train {name} --data-dir DIR")
    if reported and reported.error:
        errors = [f"{float(number):g}" for number in re.findall(r"([\d.]+) %", says)]
        assert errors == [f"{error:g}" for error in (reported.error, reported.top5_error) if error is not None]
        cost = f"{reported.macs / 1e6:g}M MACs" if reported.macs else f"{reported.saving}x fewer MACs"
        assert cost in says
        assert reported.where in says
    else:
        assert re.search("without (a )?printed number|nothing", says)


@pytest.mark.parametrize("name", list_recipes())
def test_trains_as_the_paper_says(name):
    recipe = load_recipe(name)
    if name == "digits":
        assert recipe == Recipe.of(name="digits", generator_shrinkage=6.0)
        return
    on_imagenet = recipe.data.name == "folder"
    is_mobile = any(network in name for network in ("mobilenetv2", *SMALL))
    is_pruned = "prune" in recipe.model.options and not on_imagenet  # not the paper's: as network slimming has it
    epochs = {True: 150 if is_mobile else 120, False: 300 if is_mobile or "condensenet86" in name else 150}
    training = recipe.training
    assert training.epochs == (160 if is_pruned else epochs[on_imagenet])
    assert training.batch_size == (256 if on_imagenet else 64)
    assert training.learning_rate == (0.05 if is_mobile else 0.1)
    assert (training.momentum, training.weight_decay, training.lasso_weight) == (0.9, 1e-4, 1e-5)
    assert recipe.data.cutout == (16 if name.endswith("_cutout") else 0)
    heads = re.search(r"_heads(\d+)", name)
    assert recipe.get("heads") == (int(heads[1]) if heads else None)
    if "_dgc" in name:
        fitted = 0.55 if on_imagenet else 0.65
        expected = next((rate for word, rate in RATES.items() if word and word in name), 0.75)
        assert recipe.get("pruning_rate") == (0.55 if "resnet18" in name else fitted if is_mobile else expected)


def test_mobilenets_are_those_of_the_figure():
    models = [load_recipe(f"cifar10_mobilenetv2_dgc_{number}").model.options for number in (1, 2, 3)]
    own = [{"downsample": (3, 5)}, {"width": 0.75, "downsample": (3, 5)}, {"width": 0.75, "downsample": (2, 4)}]
    assert models == [{"pruning_rate": 0.65, "squeeze": 4, "stem_stride": 1, **more} for more in own]


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[model]\nname = "mobilenetv2_dgc"\ndownsample = [1, 2]\nwidth = 1\n[data]\nname = "cifar10"\n[training]\n'
        'learning_rate = 1\ncompile = true\nprecision = "bfloat16"\n[reported]\nerror = 8\nwhere = "my notes"'
    )
    recipe = load_recipe(file)
    assert recipe == Recipe.of(
        name="mine", model="mobilenetv2_dgc", downsample=(1, 2), width=1.0, data="cifar10", learning_rate=1.0,
        compile=True, precision="bfloat16",
    )  # fmt: skip
    assert isinstance(recipe.training.learning_rate, float)
    assert load_recipe(str(file)) == recipe
    assert reported_of(file) == Reported("my notes", error=8.0)


WRONG = {
    "training": [
        ("epoch = 3", "unknown key 'epoch'. Did you mean 'epochs'"),
        ("xyzzy = 3", "unknown key 'xyzzy'.*batch_size.*weight_decay"),
        ("epochs = 1.5", "epochs must be a whole number, got 1.5"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("learning_rate = true", "learning_rate must be a number, got True"),
        ('learning_rate = "0.1"', "learning_rate must be a number, got '0.1'"),
        ("compile = 1", "compile must be true or false, got 1"),
        (f'epochs = "{"9" * 500}"', r"epochs must be a whole number, got '9{75} \.\.\.$"),  # 80 characters of it
        ('precision = "float16"', "precision must be 'float32' or 'bfloat16', got 'float16'"),
        ("epochs = 0", "`epochs` must be a whole number from 1 to 1000000000, got 0"),
    ],
    "data": [
        ("workers = -1", "`workers` must be a whole number from 0 to 1000, got -1"),
        ("name = 3", "name must be a text, got 3"),
        ("seed = 3", "unknown key 'seed'"),
    ],
    "model": [
        ("heads = [4]", r"`heads` must be a whole number, got \[4\]"),
        ("head = 4", "no option 'head'.*heads"),
        ("stages = 3", "`stages` must be a list, each item a whole number, got 3"),
        ("stages = [1, 2.5]", r"`stages` must be a list, each item a whole number, got \[1, 2.5\]"),
        ('name = "resnet21"', "unknown model 'resnet21'. Did you mean .*'resnet20"),
        ('name = "resnet20"\nheads = 4', "resnet20 has no option 'heads'"),
        ("prune_rate = 0.5", "say also how, with `prune`"),
    ],
}


@pytest.mark.parametrize(
    ("table", "content", "message"), [(table, *wrong) for table, those in WRONG.items() for wrong in those]
)
def test_a_wrong_file_is_named_with_the_table_the_key_and_what_is_allowed(tmp_path, table, content, message):
    (tmp_path / "mine.toml").write_text(f"[{table}]\n{content}")
    with pytest.raises(UserError, match=rf"mine.toml \[{table}\]: .*{message}"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('name = "other"', "'name' is not allowed, a recipe is called like its file"),
        ("[trainings]", "unknown key 'trainings'. Did you mean 'training'"),
        ("epochs = 3", "unknown key 'epochs'.*data, model, training"),
        ("training = 3", r"\[training\] must be a table of keys and values, got 3"),
        ("model = 3", r"\[model\] must be a table of keys and values, .* got 3"),
        ("[model]\nname = 3", r"\[model\] must be .* with a name that is a text, got .*3"),
        ("[training]\nepochs = ", "is not a TOML file: Invalid value"),
        ("[training.epochs]\nnumber = 3", "epochs must be a whole number"),
    ],
)
def test_so_is_one_that_is_wrong_as_a_whole(tmp_path, content, message):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(UserError, match=f"mine.toml.*{message}"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("error = 3", "the key 'where' is missing"),
        ('where = "here"\nmacs = "51M"', "macs must be a number, got '51M'"),
        ('where = "here"\ntop1 = 3', "unknown key 'top1'"),
    ],
)
def test_wrong_reported_figures(tmp_path, content, message):
    (tmp_path / "mine.toml").write_text(f"[reported]\n{content}")
    with pytest.raises(UserError, match=rf"mine.toml \[reported\]: {message}"):
        reported_of(tmp_path / "mine.toml")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.toml: no such file\. Give a \.toml file, or a name"):
        load_recipe(tmp_path / "nothing.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match=r"folder\.toml cannot be read: Is a directory"):
        load_recipe(tmp_path / "folder.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"binary\.toml is not a TOML file"):
        load_recipe(tmp_path / "binary.toml")
    with pytest.raises(UserError, match=r"unknown recipe 'condensenet'.* 'dgconv recipes' lists all"):
        load_recipe("condensenet")


def test_goes_to_json_and_back():
    recipe = load_recipe("cifar10_mobilenetv2_dgc_2")
    values = json.loads(json.dumps(recipe.to_dict()))
    assert Recipe.from_dict(values, "a run") == recipe
    assert set(values) == {field.name for field in fields(Recipe)}
    assert set(values["training"]) == {field.name for field in fields(TrainingTable)}
    values["training"]["batch_size"] = None
    with pytest.raises(UserError, match=r"a run \[training\]: batch_size must be a whole number, got None"):
        Recipe.from_dict(values, "a run")


@pytest.mark.parametrize("table", [DataTable, TrainingTable])
def test_every_number_has_its_bounds(table):
    kinds = get_type_hints(table)
    numbers = {
        field.name for field in fields(table) if {int, float} & {kinds[field.name], *get_args(kinds[field.name])}
    }
    assert {field.name for field in fields(table) if field.metadata["setting"].allowed} == numbers


def test_a_setting_has_one_name_whichever_table_it_stands_in():
    """So that flags, arguments and the names in messages are the same."""
    tables = [{field.name for field in fields(table)} - {"name", "dir"} for table in (DataTable, TrainingTable)]
    tables += [set(all_options()), {"model", "data", "data_dir"}]
    assert len(set().union(*tables)) == sum(map(len, tables))


def test_settings_are_changed_and_asked_for_by_name():
    recipe = Recipe.of("mine", model="resnet20_dgc", data="cifar10", data_dir="images", heads=8, stages=[1, 2], seed=3)
    assert (recipe.model.name, recipe.model.options) == ("resnet20_dgc", {"heads": 8, "stages": (1, 2)})
    assert (recipe.data.name, recipe.data.dir, recipe.training.seed) == ("cifar10", "images", 3)
    assert [recipe.get(name) for name in ("model", "data_dir", "heads", "squeeze", "seed")] == [
        "resnet20_dgc", "images", 8, None, 3,
    ]  # fmt: skip
    assert recipe.changed(heads=None).model.options == {"stages": (1, 2)}, "what is left out is the model's default"
    assert recipe.changed(name="other", epochs=2).changed(name="mine", epochs=recipe.training.epochs) == recipe
    with pytest.raises(UserError, match=r"unknown setting 'epoch'\. Did you mean 'epochs'"):
        recipe.changed(epoch=1)


def test_recipes_differ_in_what_may_change_a_result():
    recipe = Recipe.of(stages=(1, 2), heads=8)
    assert recipe.differences(recipe.changed(seed=1, data_dir="there", workers=2, compile=True)) == {}
    assert recipe.differences(Recipe.of(heads=8, epochs=2)) == {"stages": ((1, 2), None), "epochs": (30, 2)}


def test_run_name():
    assert load_recipe("digits").run_name == "digits"
    assert load_recipe("digits").changed(name="").run_name == "condensenet20_dgc-digits"


def test_the_width_of_a_resnet_is_a_number_of_channels():
    model = Recipe.of(model="resnet20", width=8.0).build_model(10)
    assert model.num_features == 32
    with pytest.raises(UserError, match="got 3, 3, 3, nan"):
        Recipe.of(model="resnet20", width=float("nan")).build_model(10)
