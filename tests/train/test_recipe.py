"""Recipe files: ours are complete and honest, a user's are read strictly."""

import re
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest

from dgconv.errors import UserError
from dgconv.models import list_models
from dgconv.train.recipe import (
    ALLOWED,
    MODEL_OPTIONS,
    RECIPES,
    Recipe,
    Reported,
    list_recipes,
    load_recipe,
    reported_of,
)

RATES = {"_rate33": 1 / 3, "_rate50": 1 / 2, "": 3 / 4, "_rate83": 5 / 6, "_rate88": 7 / 8}
CONDENSENET50 = [
    *(f"_dgc{rate}" for rate in RATES), "_dgcg", "_sgc", "_sgc_groups2", "_lgc", "_lgc_condensation2", "",
]  # fmt: skip
HEADS = ["heads1", "heads2", "heads8", "heads16", "rate33_heads8"]
EXPECTED = [
    *(f"{data}_condensenet50{method}" for data in ("cifar10", "cifar100") for method in CONDENSENET50),
    *(f"cifar10_condensenet50_dgc_{heads}" for heads in HEADS),
    *(f"cifar10_condensenet{method}_cutout" for method in ("50", "50_dgc_rate33", "86_dgc")),
    *(f"{data}_condensenet86_{method}" for data in ("cifar10", "cifar100") for method in ("dgc", "dgcg")),
    *(f"cifar10_mobilenetv2_dgc_{number}" for number in (1, 2, 3)),
    *(f"imagenet_resnet18{method}" for method in ("", "_dgc", "_dgcg")),
    *(f"imagenet_mobilenetv2{method}" for method in ("", "_dgc")),
    *(f"imagenet_condensenet74_{method}" for method in ("dgc", "dgcg", "sgc")),
    "digits",
]


def test_every_row_of_the_paper_has_a_recipe():
    assert sorted(list_recipes()) == sorted(EXPECTED)
    assert sorted(list_recipes("*_heads*")) == sorted(f"cifar10_condensenet50_dgc_{heads}" for heads in HEADS)
    assert list_recipes("nothing*") == []


@pytest.mark.parametrize("name", list_recipes())
def test_is_named_after_data_and_model_and_says_what_it_is(name):
    recipe, reported = load_recipe(name), reported_of(name)
    assert recipe.name == name
    assert recipe.model in list_models()
    data = "imagenet" if recipe.data == "folder" else recipe.data
    assert name == "digits" or f"{name}_".startswith(f"{data}_{recipe.model}_")
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
        assert recipe == Recipe(name="digits", generator_shrinkage=6.0)
        return
    on_imagenet, is_mobile = recipe.data == "folder", "mobilenet" in name
    epochs = {True: 150 if is_mobile else 120, False: 300 if is_mobile or "condensenet86" in name else 150}
    assert recipe.epochs == epochs[on_imagenet]
    assert recipe.batch_size == (256 if on_imagenet else 64)
    assert recipe.learning_rate == (0.05 if is_mobile else 0.1)
    assert (recipe.momentum, recipe.weight_decay, recipe.lasso_weight) == (0.9, 1e-4, 1e-5)
    assert recipe.cutout == (16 if name.endswith("_cutout") else 0)
    heads = re.search(r"_heads(\d+)", name)
    assert recipe.heads == (int(heads[1]) if heads else None)
    if "_dgc" in name:
        fitted = 0.55 if on_imagenet else 0.65
        expected = next((rate for word, rate in RATES.items() if word and word in name), 0.75)
        assert recipe.pruning_rate == (0.55 if "resnet18" in name else fitted if is_mobile else expected)


def test_mobilenets_are_those_of_the_figure():
    models = [load_recipe(f"cifar10_mobilenetv2_dgc_{number}") for number in (1, 2, 3)]
    assert [(model.width, model.downsample) for model in models] == [(None, (3, 5)), (0.75, (3, 5)), (0.75, (2, 4))]
    assert {(model.pruning_rate, model.squeeze, model.stem_stride) for model in models} == {(0.65, 4, 1)}


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'model = "resnet20_dgc"\nstages = [1, 2]\nwidth = 1\nlearning_rate = 1\n'
        'compile = true\nprecision = "bfloat16"\n[reported]\nerror = 8\nwhere = "my notes"'
    )
    recipe = load_recipe(file)
    assert recipe == Recipe(
        name="mine", model="resnet20_dgc", stages=(1, 2), width=1.0, learning_rate=1.0, compile=True,
        precision="bfloat16",
    )  # fmt: skip
    assert isinstance(recipe.learning_rate, float)
    assert load_recipe(str(file)) == recipe
    assert reported_of(file) == Reported("my notes", error=8.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch = 3", "unknown key 'epoch'. Did you mean 'epochs'"),
        ("xyzzy = 3", "unknown key 'xyzzy'.*batch_size.*width"),
        ('name = "other"', "'name' is not allowed, a recipe is called like its file"),
        ("epochs = 1.5", "epochs must be a whole number, got 1.5"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("learning_rate = true", "learning_rate must be a number, got True"),
        ('learning_rate = "0.1"', "learning_rate must be a number, got '0.1'"),
        ("heads = [4]", r"heads must be a whole number, got \[4\]"),
        ("stages = 3", "stages must be a list, each item a whole number, got 3"),
        ("stages = [1, 2.5]", r"stages must be a list, each item a whole number, got \[1, 2.5\]"),
        ("compile = 1", "compile must be true or false, got 1"),
        ("model = 3", "model must be a text, got 3"),
        (f'epochs = "{"9" * 500}"', r"epochs must be a whole number, got '9{75} \.\.\.$"),  # 80 characters of it
        ('precision = "float16"', "precision must be 'float32' or 'bfloat16', got 'float16'"),
        ("epochs = 0", "epochs must be a whole number from 1 to 1000000000, got 0"),
        ("workers = -1", "workers must be a whole number from 0 to 1000, got -1"),
        ("epochs = ", "is not a TOML file: Invalid value"),
        ("[epochs]\nnumber = 3", "epochs must be a whole number"),
    ],
)
def test_a_wrong_file_is_named_with_the_key_and_what_is_allowed(tmp_path, content, message):
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
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in recipe.to_dict().items()}
    assert Recipe.from_dict(values, "a run") == recipe
    assert set(values) == {field.name for field in fields(Recipe)}
    with pytest.raises(UserError, match="a run: batch_size must be a whole number, got None"):
        Recipe.from_dict(values | {"batch_size": None}, "a run")


def test_every_number_has_its_bounds():
    kinds = get_type_hints(Recipe)
    numbers = {name for name, kind in kinds.items() if {int, float} & {kind, *get_args(kind)}}
    checked_where_used = {*MODEL_OPTIONS, "mac_budget"}
    assert set(ALLOWED) == numbers - checked_where_used


def test_run_name():
    assert load_recipe("digits").run_name == "digits"
    assert replace(load_recipe("digits"), name="").run_name == "condensenet20_dgc-digits"


def test_the_width_of_a_resnet_is_a_number_of_channels():
    model = Recipe(model="resnet20", width=8.0).build_model(10)
    assert model.num_features == 32
    with pytest.raises(UserError, match="got 3, 3, 3, nan"):
        Recipe(model="resnet20", width=float("nan")).build_model(10)
