"""A recipe: everything that decides how a network is trained, in three tables: the model, the data, the training.

A setting has one name throughout: in the tables of a file, as an argument of :meth:`Recipe.of`, and as a flag.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..data import Data
from ..errors import UserError, unknown_name
from ..models import ImageClassifier
from ..models._registry import all_options
from ..runs import RunFolder
from ..values import read_values
from .tables import DataTable, ModelTable, Setting, TrainingTable

_ALIASES = {"model": ("model", "name"), "data": ("data", "name"), "data_dir": ("data", "dir")}
_TABLES: dict[str, Any] = {"data": DataTable, "training": TrainingTable}
_PLACES = _ALIASES | {
    part.name: (table, part.name)
    for table, kind in _TABLES.items()
    for part in fields(kind)
    if part.name not in ("name", "dir")
}
ABOUT: dict[str, Setting] = {
    name: next(part.metadata["setting"] for part in fields(_TABLES[table]) if part.name == key)
    for name, (table, key) in _PLACES.items()
    if table in _TABLES
}
"""Of every setting but those of the model."""


@dataclass(frozen=True)
class Recipe:
    """The defaults train a small CondenseNet-DGC on the embedded digits with the paper's method."""

    name: str = ""
    """Of the recipe, and of its run folders; a recipe from a file is called like the file."""
    model: ModelTable = field(default_factory=ModelTable)
    data: DataTable = field(default_factory=DataTable)
    training: TrainingTable = field(default_factory=TrainingTable)

    @staticmethod
    def of(name: str = "", **settings: Any) -> "Recipe":
        """The default recipe with other settings: ``Recipe.of(model="resnet20_dgc", heads=8, epochs=10)``."""
        return Recipe(name).changed(**settings)

    def changed(self, **settings: Any) -> "Recipe":
        """The same with other settings, whichever table they stand in; an option that is None is left out."""
        tables: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "training": {}}
        options = dict(self.model.options)
        name = settings.pop("name", self.name)
        for key, value in settings.items():
            if key in _PLACES:
                table, place = _PLACES[key]
                tables[table][place] = value
            elif key in all_options():
                options[key] = tuple(value) if isinstance(value, list) else value
            else:
                raise unknown_name("setting", key, [*_PLACES, *all_options()])
        return Recipe(
            name,
            replace(self.model, **tables["model"], options=options),
            replace(self.data, **tables["data"]),
            replace(self.training, **tables["training"]),
        )

    def get(self, setting: str) -> Any:
        """A setting by its name; None for an option of the model that is left out."""
        if setting not in _PLACES:
            return self.model.options.get(setting)
        table, place = _PLACES[setting]
        return getattr(getattr(self, table), place)

    @property
    def run_name(self) -> str:
        """What a run folder is called after."""
        prune = self.model.options.get("prune")
        return self.name or f"{self.model.name}{'_' + prune if prune else ''}-{self.data.name}"

    @property
    def title(self) -> str:
        """What a display calls it."""
        return f"{self.run_name}, seed {self.training.seed}"

    @property
    def flat(self) -> dict[str, Any]:
        """Every setting by its name; options of the model that are left out are not there."""
        return {name: self.get(name) for name in _PLACES} | self.model.options

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that may change a result by more than its noise."""
        return {name: value for name, value in self.flat.items() if name not in ABOUT or ABOUT[name].changes_result}

    def differences(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """The settings in which two recipes differ, as they are in this one and in the other."""
        mine, others = self.settings, other.settings
        names = dict.fromkeys([*mine, *others])
        return {n: (mine.get(n), others.get(n)) for n in names if _plain(mine.get(n)) != _plain(others.get(n))}

    def refused_on_resume(self, other: "Recipe") -> list[str]:
        """What another recipe would change about a run of this one, and may not."""
        free = {name for name, about in ABOUT.items() if about.may_differ_on_resume}
        names = sorted({*_PLACES, *self.model.options, *other.model.options} - free)
        pairs = [(name, self.get(name), other.get(name)) for name in names]
        return [f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if _plain(old) != _plain(new)]

    def build_model(self, num_classes: int) -> ImageClassifier:
        return self.model.build(num_classes)

    def load_data(self, data_dir: str | None = None) -> Data:
        """The data set as it is trained on, from another folder if it has moved."""
        return self.data.load(data_dir)

    @staticmethod
    def of_run(run: RunFolder) -> "Recipe | None":
        """What a run was trained by; None for a model that came from elsewhere."""
        values = run.config.get("recipe")
        return Recipe.from_dict(values, str(run.config_file)) if values else None

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str) -> "Recipe":
        """Reads what ``to_dict`` gave, or a file holds; ``source`` says where it was found."""
        where = f"the recipe of {source}"
        if not isinstance(values, dict):
            raise UserError(f"{where} must be a table of keys and values, got {values!r:.80}")
        if unknown := sorted(values.keys() - {"name", "model", "data", "training"}):
            raise UserError(f"{where}: {unknown_name('key', unknown[0], ('model', 'data', 'training'))}")
        tables = {name: read_values(kind, values.get(name, {}), f"{where} [{name}]") for name, kind in _TABLES.items()}
        return Recipe(str(values.get("name", "")), _read_model(values.get("model", {}), f"{where} [model]"), **tables)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as a file has it: tables by name, the options of the model beside its name."""
        model = {"name": self.model.name, **self.model.options}
        return {"name": self.name, "model": model, "data": asdict(self.data), "training": asdict(self.training)}


def _read_model(values: Any, source: str) -> ModelTable:
    if not isinstance(values, dict) or not isinstance(values.get("name", ""), str):
        raise UserError(f"{source} must be a table of keys and values, with a name that is a text, got {values!r:.80}")
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "name"
    }
    try:
        return ModelTable(values.get("name", ModelTable.name), options)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _plain(value: Any) -> Any:
    """A recipe out of a file may have lists for tuples."""
    return list(value) if isinstance(value, tuple) else value
