"""What the explorer says about an image, against the network itself."""

import base64
import math
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import torch

from dgconv.analysis.rate import CALIBRATION_BATCH, CALIBRATION_IMAGES
from dgconv.analysis.trained_run import TrainedRun
from dgconv.deploy import PreparedModel
from dgconv.errors import UserError
from dgconv.explore import session as session_module
from dgconv.explore.networks import NetworkAtRate
from dgconv.explore.session import Session, calibration_count, pack_bits, pack_bytes, same_for_all
from dgconv.models import create_model, load_model
from dgconv.train import Recipe, train


def unpacked(session, look):
    sizes = session.layers.values()
    bits = [np.unpackbits(np.frombuffer(base64.b64decode(kept), np.uint8)) for kept in look["kept"]]
    return [torch.from_numpy(b[: h * c]).view(h, c).bool() for b, (h, c) in zip(bits, sizes, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.75])
@pytest.mark.parametrize("number", [3, 210])
def test_a_look_is_what_the_network_does(session, directly, number, rate):
    look = session.look(str(number), rate)
    truth = directly(session.run.folder, number, rate)
    best = truth.logits.softmax(0).topk(5)
    assert [name for name, _ in look["top"]] == [session.data.classes[i] for i in best.indices]
    assert [share for _, share in look["top"]] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert look["macs"] == pytest.approx(truth.macs, rel=1e-6)
    for found, expected in zip(unpacked(session, look), truth.masks, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.slow
def test_the_average_image(session, directly):
    average = session.average(0.5)
    numbers = range(0, len(session.data.test), 2)
    assert average["images"] == len(numbers) == 180, "every second one: at most 250"
    counts = [np.frombuffer(base64.b64decode(kept), np.uint8) for kept in average["kept"]]
    looks = [unpacked(session, session.look(str(number), 0.5)) for number in numbers]
    for layer, counted in enumerate(counts):
        assert sum(look[layer].int() for look in looks).flatten().tolist() == counted.tolist()


def test_what_it_is_worth_to_look_at_the_image(session):
    worth = session.worth()
    assert 0 < worth["images"] <= len(session.data.test)
    assert len(worth["layers"]) == len(session.layers)
    assert all(-100 <= points <= 100 for layer in worth["layers"] for points in layer)
    assert session.worth() is worth, "found once"


def test_the_trained_network_stays_as_it_was(session):
    session.worth()
    for rate in session.rates:
        session.look("0", rate)
    saved = load_model(session.run.folder).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in session.run.model.state_dict().items())
    weights = {weight.data_ptr() for weight in session.run.model.parameters()}
    assert {weight.data_ptr() for weight in session.network(0.5).network.parameters()} == weights, "shared"


def test_many_at_once(head_session):
    """A mask of one image must not get into the answer about another."""
    jobs = [(str(number), rate) for number in range(10) for rate in (0.25, 0.75)] * 2
    alone = [head_session.look(*job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: head_session.look(*job), jobs))
    assert together == alone


def test_everything_is_prepared_once(head_folder):
    session = Session(TrainedRun(head_folder), [0.5])
    stopped = Event()
    stopped.set()
    session.prepare_all(stopped)
    assert not session._made._made, "stopped before it began"
    session.prepare_all(Event())
    assert {key for key in session._made._made if key not in ("calibration", "worth")} == {
        (what, rate) for what in ("network", "average") for rate in (0.5, 0.75)
    }
    assert session.network(0.5) is session.network(0.5)


def test_what_was_asked_for_comes_first(head_folder, monkeypatch):
    session = Session(TrainedRun(head_folder), [0.2, 0.3, 0.8])
    prepared = []
    monkeypatch.setattr(session, "network", prepared.append)
    monkeypatch.setattr(session, "average", lambda rate: session.__setattr__("_asked_last", 0.2))
    monkeypatch.setattr(session, "worth", lambda: prepared.append("worth"))
    session.prepare_all(Event())
    assert prepared == [0.75, 0.2, 0.3, 0.8, "worth"], "after the first one somebody asked for 0.2"


def test_rates(head_folder):
    assert Session(TrainedRun(head_folder)).rates == sorted({*session_module.RATES, 0.75})
    session = Session(TrainedRun(head_folder), [0.7500000001, 0.1, 0.1])
    assert session.rates == [0.1, 0.75], "the trained one is not there twice"
    with pytest.raises(UserError, match=r"0\.3 is not offered here; take one of 0\.1, 0\.75"):
        session.look("0", 0.3)
    with pytest.raises(UserError, match="must be in"):
        Session(TrainedRun(head_folder), [1.0])


def test_batch_norms_adapt_as_in_eval_unless_images_are_large():
    assert calibration_count((3, 32, 32)) == CALIBRATION_IMAGES
    assert calibration_count((3, 64, 64)) == CALIBRATION_IMAGES // 4
    assert calibration_count((3, 224, 224)) == CALIBRATION_BATCH


def test_packing():
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
    assert base64.b64decode(pack_bits(mask)) == bytes([0b10000011, 0b10000000])
    assert base64.b64decode(pack_bytes(torch.tensor([[0, 7], [250, 1]]))) == bytes([0, 7, 250, 1])


def test_photographs_on_disk(tmp_path, encoded, a_photo):
    """Decoded when they are looked at, and brought along as files they are the same."""
    for place in (f"{part}/{name}/{n}.png" for part in ("train", "test") for name in ("cat", "dog") for n in range(9)):
        file = tmp_path / "data" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(a_photo.rotate(len(place) * int(file.stem) * 10)))
    small = {"stages": (1,), "growth": (4,), "image_size": 16, "epochs": 1, "batch_size": 8, "workers": 1}
    recipe = Recipe.of(data="folder", data_dir=str(tmp_path / "data"), skip_corrupt_images=True, **small)
    train(recipe, tmp_path / "run")
    session = Session(TrainedRun(tmp_path / "run"), [0.5])
    assert session.data.test.workers == session.data.train.workers == 0
    fourth, mine = session.images["12"], session.images.upload((tmp_path / "data/test/dog/3.png").read_bytes())
    assert session.show(fourth)["label"] == "dog"
    torch.testing.assert_close(fourth.x, mine.x)
    assert session.look("12", 0.5) == session.look(mine.id, 0.5)
    assert session.average(0.5)["images"] == 18

    (tmp_path / "data/test/cat/2.png").write_bytes(b"damaged")
    assert session.images.spread(6) == ["0", "3", "6", "9", "12", "15"]
    assert session.images.spread(9) == ["0", "4", "6", "8", "10", "12", "14", "16"], "without the damaged one"
    with pytest.raises(UserError, match="test image 2 is corrupt and skipped"):
        session.look("2", 0.5)


def test_without_dynamic_layers(tmp_path):
    small = {"stages": (1,), "growth": (4,), "image_size": 8, "epochs": 1, "batch_size": 512}
    train(Recipe.of(model="condensenet20", **small), tmp_path / "run")
    with pytest.raises(UserError, match="no dynamic layers"):
        Session(TrainedRun(tmp_path / "run"))


def test_an_image_that_overflows_is_told_and_leaves_the_others_alone():
    network = NetworkAtRate(create_model("condensenet20_dgc", stages=(1,), growth=(4,)).eval(), (3, 8, 8))
    images = torch.rand(4, 3, 8, 8)
    images[2] *= math.inf
    recording = network.record([images])
    assert recording.images == 4
    assert all(layer.saliency_mean.isfinite().all() for layer in recording.layers.values())
    with pytest.raises(UserError, match="this image overflows"):
        network.choose(images[2])
    assert network.choose(images[1]).probabilities.isfinite().all()


def test_how_much_the_choice_depends_on_the_image():
    network = NetworkAtRate(create_model("condensenet20_dgc", stages=(1,), growth=(8,)).eval(), (3, 8, 8))
    assert same_for_all(network.record([torch.rand(1, 3, 8, 8).expand(3, 3, 8, 8)])) == 1
    varied = same_for_all(network.record([torch.randn(32, 3, 8, 8)]))
    assert 0 < varied < 1


def test_milliseconds_are_those_of_the_prepared_network(steady_time):
    network = NetworkAtRate(create_model("condensenet20_dgc", stages=(1,), growth=(8,)).eval(), (3, 8, 8))
    assert network.choose(torch.rand(3, 8, 8)).milliseconds == pytest.approx(1.5)
    assert all(isinstance(timed, PreparedModel) for timed in steady_time)
