"""Trained weights made public: the file, and a card that says what it is and how it was made."""

import hashlib
import os
from pathlib import Path

from dgconv.errors import UserError
from dgconv.files import write_atomically
from dgconv.models.pretrained import AS_IT_IS, ModelCard

from .checkout import Checkout
from .record import Record, as_text, changes_of

LARGEST = 20 * 2**20  # bytes that a checkout should carry for one network


def publish(run: Path, checkout: Checkout, data_dir: str | None = None) -> Path:
    """Write the weights of a finished run, whose record is in results, into ``results/weights``; the file written."""
    trained = Record(run, data_dir)
    record = _record_of(trained, checkout)
    if not trained.has_weights:
        raise UserError(f"{run} has no weights, so there is nothing to publish")
    file = trained.files.weights_file
    content = file.read_bytes()
    if len(content) > LARGEST:
        raise UserError(
            f"{file} has {len(content) / 2**20:.1f} MiB; at most {LARGEST / 2**20:.0f} MiB are published here"
        )
    if tuple(trained.input_size) != trained.untrained_model.input_size:
        raise UserError(
            f"{run} was trained on {list(trained.input_size)} images, but {trained.config['model']['name']} is made "
            f"for {list(trained.untrained_model.input_size)}; who loads the weights would take those"
        )
    card = _card(record, trained, hashlib.sha256(content).hexdigest())
    target = checkout.weights / f"{weights_name(record)}.safetensors"
    if target.exists() and target.read_bytes() != content:
        raise UserError(f"{target} holds other weights; remove it first if these are to take its place")
    target.parent.mkdir(parents=True, exist_ok=True)
    _forget_old_weights(record, checkout)
    write_atomically(target, content)
    write_atomically(target.with_suffix(".json"), card.to_json().encode())
    record.files.rewrite_config(record.config | {"weights": os.path.relpath(target, record.folder)})
    return target


def weights_name(record: Record) -> str:
    """The name of the recipe, and what was changed about it."""
    recipe, change = record.folder.parts[-3:-1]
    return recipe if change == AS_IT_IS else f"{recipe}+{change}"


def _forget_old_weights(published: Record, checkout: Checkout) -> None:
    """Forgets the weights of the recipe's other seeds: where theirs were, there will be those of the published one."""
    others = [record for record in checkout.records if record.folder.parent == published.folder.parent]
    for other in others:
        if other.folder != published.folder and "weights" in other.config:
            other.files.rewrite_config({key: value for key, value in other.config.items() if key != "weights"})


def _record_of(trained: Record, checkout: Checkout) -> Record:
    if not trained.is_finished:
        raise UserError(
            f"{trained.folder} is not finished: {trained.epochs_done} of {trained.recipe.training.epochs} epochs",
            resume=[trained.folder],
        )
    metrics = trained.files.metrics_bytes
    for record in checkout.records:
        if record.files.metrics_bytes == metrics:
            return record
    raise UserError(
        f"the record of {trained.folder} is not in {checkout.results}; "
        f"add it first with 'python -m reproduce add {trained.folder}'"
    )


def _card(record: Record, trained: Record, sha256: str) -> ModelCard:
    """Figures from the record, and from the data set what one needs to feed the network."""
    recipe, data = record.recipe, trained.data
    return ModelCard(
        model=record.config["model"],
        data=data.name,
        input_size=list(data.input_size),
        mean=list(data.mean),
        std=list(data.std),
        classes=data.classes,
        error=record.error,
        macs={str(convention): macs for convention, macs in record.cost.macs.items()},
        parameters=record.cost.parameters,
        recipe=recipe.run_name,
        seed=recipe.training.seed,
        epochs=recipe.training.epochs,
        precision=recipe.training.precision,
        trained_on=record.trained_on,
        dgconv=record.version,
        sha256=sha256,
        changes=", ".join(f"{name} {as_text(value)}" for name, value in changes_of(recipe).items()),
    )
