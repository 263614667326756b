"""Run records: what is copied, where to, and what is refused."""

import json

import pytest
import torch

from dgconv import count_macs
from dgconv.analysis.summary import images_to_measure
from dgconv.errors import UserError
from reproduce.record import Record, add_record, changes_of, read_records


def test_nothing_is_lost_or_rounded_and_no_path_is_kept(checkout, write_run):
    run = write_run("run", 2.0 / 3, seed=4)
    target = add_record(run, checkout.results)
    assert target == checkout.results / "digits" / "unchanged" / "seed4"
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "metrics.jsonl"]
    assert (target / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert "secret" not in (target / "config.json").read_text()
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (run, target))
    assert before["recipe"]["data"].pop("dir") == "/secret/place"
    assert after["recipe"]["data"].pop("dir") is None
    assert after == before

    [record] = read_records(checkout.results)
    assert (record.error, record.seed, record.is_finished, record.seconds) == (2.0 / 3, 4, True, 30 * 60.0)
    assert record.trained_on == "a GPU, torch 2.0, 2020-01-01"


def test_another_run_is_not_overwritten(checkout, write_run):
    first = add_record(write_run("first", 2.0), checkout.results)
    add_record(write_run("same", 2.0), checkout.results)  # the very same record again is no harm
    with pytest.raises(UserError, match=r"holds the record of another run.*`seed` or `name`"):
        add_record(write_run("other", 3.0), checkout.results)
    assert Record(first).error == 2.0


def test_what_was_changed_names_the_folder(checkout, write_run):
    def place(run, **how):
        return str(add_record(write_run(run, 2.0, **how), checkout.results).relative_to(checkout.results))

    assert place("plain") == "digits/unchanged/seed0"
    assert place("varied", lasso="paper", stages=(1, 2, 1)) == "digits/lasso=paper+stages=1-2-1/seed0"
    assert place("bfloat16", precision="bfloat16") == "digits/precision=bfloat16/seed0"
    assert place("bfloat16-1", precision="bfloat16", seed=1) == "digits/precision=bfloat16/seed1"
    assert place("own", **{"name": "digits", "lasso": "authors", "workers": 3, "seed": 2}) == "digits/unchanged/seed2"


def test_a_run_cannot_leave_the_results_folder(checkout, write_run):
    run = write_run("run", 2.0)
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["name"] = "../../elsewhere"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"'\.\./\.\./elsewhere'.*`name`"):
        add_record(run, checkout.results)


def test_an_unfinished_run_is_taken_only_on_request_and_may_be_finished_later(checkout, write_run):
    half = write_run("half", 89.985, done=15)
    with pytest.raises(UserError, match=r"is not finished: 15 of 30 epochs.*`unfinished`.*resume"):
        add_record(half, checkout.results)
    place = add_record(half, checkout.results, unfinished=True)
    assert not Record(place).is_finished
    whole = write_run("whole", 2.0)
    lines = (half / "metrics.jsonl").read_text().splitlines() + (whole / "metrics.jsonl").read_text().splitlines()[15:]
    (whole / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert add_record(whole, checkout.results) == place
    assert Record(place).is_finished


def test_an_epoch_is_done_when_both_files_tell_of_it(write_run):
    run = write_run("run", 2.0)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"epochs_done": 29}))
    assert (Record(run).epochs_done, Record(run).is_finished) == (29, False)
    (run / "config.json").write_text(json.dumps(config))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:28]))
    assert (Record(run).epochs_done, Record(run).is_finished) == (28, False)


def test_no_run_at_all(checkout, tmp_path):
    with pytest.raises(UserError, match=r"is not a run folder: it has no config.json"):
        add_record(tmp_path / "nothing", checkout.results)
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "config.json").write_text('{"dgconv": "0", "model": {"name": "resnet20"}}')
    with pytest.raises(UserError, match="imported has no metrics"):
        add_record(tmp_path / "imported", checkout.results)


def test_times_that_left_out_the_device_are_not_told(checkout, write_run):
    run = write_run("run", 2.0)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace(', "first_step_seconds": null', ""))
    assert Record(run).seconds is None


def test_macs_that_depend_on_the_images_are_measured(checkout, global_folder, head_folder):
    record = Record(add_record(global_folder, checkout.results))
    trained = Record(global_folder)
    with torch.inference_mode():
        images = images_to_measure(trained.model, trained.data)
        expected = count_macs(trained.model, convention="authors", images=images).macs
    assert record.cost.macs["authors"] == pytest.approx(expected)
    assert record.cost.macs["authors"] != trained.cost.macs["authors"]
    head = Record(add_record(head_folder, checkout.results))
    assert "measured_macs" not in head.config
    assert head.cost.macs["paper"] == count_macs(Record(head_folder).untrained_model, (3, 16, 16)).macs


def test_old_records_know_fewer_settings(checkout, write_run):
    run = write_run("run", 2.0)
    config = json.loads((run / "config.json").read_text())
    for table, newer in (("data", "cutout"), ("training", "generator_weight_decay"), ("training", "clip_gradients")):
        del config["recipe"][table][newer]
    (run / "config.json").write_text(json.dumps(config))
    assert changes_of(Record(run).recipe) == {}
