"""``dgconv predict``: what a network says of images in files, folders and Parquet."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from processes import run_here as dgconv

from dgconv import deploy, load_model
from dgconv.analysis.predict import known_inputs
from dgconv.data import Inputs, load_data
from dgconv.deploy import storage
from dgconv.runs import RunFolder


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", image_size=16)


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory):
    """Three test images as files, one of them in a subfolder."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "more").mkdir()
    for place, name in enumerate(("a.png", "b.png", "more/c [x].png")):
        Image.fromarray(digits.test.images[place].permute(1, 2, 0).numpy()).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def expected(digits, head_folder):
    """The scores of the three."""
    batch = next(iter(digits.test.batches(3, train=False)))[0]
    with torch.no_grad():
        return load_model(head_folder)(batch).softmax(1)


def test_a_folder_as_json(head_folder, pictures, expected, capsys):
    code, out, _ = dgconv(capsys, "predict", head_folder, pictures, "--json", "--top", 2)
    result = json.loads(out)
    assert code == 0
    assert [row["image"] for row in result["images"]] == [
        str(pictures / n) for n in ("a.png", "b.png", "more/c [x].png")
    ]
    best = expected.topk(2)
    assert [row["classes"] for row in result["images"]] == [[str(i) for i in row] for row in best.indices.tolist()]
    scores = torch.tensor([row["scores"] for row in result["images"]])
    assert torch.allclose(scores, best.values, atol=1e-4)
    assert result["images_per_second"] > 0
    assert result["network_images_per_second"] > 0


def test_a_table_and_what_it_took(head_folder, pictures, expected, capsys):
    code, out, _ = dgconv(capsys, "predict", head_folder, pictures / "b.png", pictures / "more")
    assert code == 0
    assert "c [x].png" in out
    line = next(line for line in out.splitlines() if "b.png" in line)
    assert line.split()[1] == str(int(expected[1].argmax()))
    assert "2 images in" in out
    assert "images/s" in out


def test_an_exported_network_knows_its_images_and_classes(head_folder, pictures, tmp_path, capsys):
    dgconv(capsys, "export", head_folder, "--out", tmp_path / "fast", "--format", "prepared")
    assert storage.inputs_of(tmp_path / "fast") == Inputs.of(load_data("digits", image_size=16))
    _, of_run, _ = dgconv(capsys, "predict", head_folder, pictures, "--json")
    code, of_fast, _ = dgconv(capsys, "predict", tmp_path / "fast", pictures, "--json")
    assert code == 0
    assert json.loads(of_fast)["images"] == json.loads(of_run)["images"]
    code, _, err = dgconv(capsys, "predict", tmp_path / "fast", pictures, "--precision", "int8")
    assert code == 2
    assert "was prepared in float32: leave --precision out" in err


def test_a_prepared_network_that_does_not_know_is_refused(head_folder, pictures, tmp_path, capsys):
    deploy.save(deploy.prepare(load_model(head_folder)), tmp_path / "fast")
    code, _, err = dgconv(capsys, "predict", tmp_path / "fast", pictures)
    assert code == 2
    assert "does not say how images become its input" in err


def test_another_model_in_the_same_folder_loses_the_inputs(head_folder, tmp_path):
    prepared, inputs = deploy.prepare(load_model(head_folder)), Inputs.of(load_data("digits"))
    deploy.save(prepared, tmp_path, inputs=inputs)
    assert storage.inputs_of(tmp_path) == inputs
    deploy.save(prepared, tmp_path, overwrite=True)
    assert storage.inputs_of(tmp_path) is None


def test_parquet_in_and_out(head_folder, pictures, expected, tmp_path, capsys):
    images = [{"bytes": (pictures / name).read_bytes(), "path": None} for name in ("b.png", "a.png")]
    images.insert(1, {"bytes": b"no image", "path": None})
    pq.write_table(pa.table({"picture": images}), tmp_path / "in.parquet")
    code, out, _ = dgconv(
        capsys, "predict", head_folder, tmp_path / "in.parquet", pictures / "a.png", "--out", tmp_path / "out.parquet"
    )
    assert code == 0
    assert f"{tmp_path / 'in.parquet'}, row 1" in out
    assert "1 of 4 images have no answer" in out
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    answers = [str(int(expected[place].argmax())) for place in (1, 0)]
    assert [row["class"] for row in rows] == [answers[0], None, answers[1], answers[1]]
    assert rows[0]["score"] == pytest.approx(float(expected[1].max()), abs=1e-4)
    assert rows[1]["problem"].startswith("cannot read the image in")
    assert rows[2]["image"].endswith("in.parquet, row 2")


def test_a_camera_that_was_turned(head_folder, digits, pictures, tmp_path, capsys):
    """Pixels that lie on their side, and a note that says so, are the upright image."""
    upright = Image.open(pictures / "b.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    _, out, _ = dgconv(capsys, "predict", head_folder, tmp_path / "turned.png", pictures / "b.png", "--json")
    turned, straight = json.loads(out)["images"]
    assert turned["scores"] == pytest.approx(straight["scores"], abs=1e-5)


def test_corrupt_images_stop_nothing(head_folder, pictures, tmp_path, capsys):
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8 torn")
    code, out, _ = dgconv(capsys, "predict", head_folder, tmp_path / "torn.jpg", pictures / "a.png", "--json")
    assert code == 0
    torn, fine = json.loads(out)["images"]
    assert "torn.jpg" in torn["problem"]
    assert len(fine["classes"]) == 3
    code, out, err = dgconv(capsys, "predict", head_folder, tmp_path / "torn.jpg")
    assert code == 2, "where none has an answer"
    assert "no image has an answer" in err
    assert "1 of 1 images have no answer" in out


def test_a_run_remembers_what_became_of_its_images(head_folder, digits):
    assert known_inputs(RunFolder(head_folder)) == Inputs.of(digits)
    older = RunFolder(head_folder)
    older.config = {key: value for key, value in older.config.items() if key != "images"}
    assert known_inputs(older) == Inputs.of(digits), "from its data set"


def test_a_published_network(pictures, capsys):
    code, out, err = dgconv(capsys, "predict", "cifar10_condensenet50_dgc", pictures / "a.png", "--json")
    assert (code, err) == (0, "")
    assert set(json.loads(out)["images"][0]["classes"]) <= {
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    }


def test_photographs_lose_their_margin():
    stripes = Image.fromarray(np.arange(64, dtype=np.uint8)[None].repeat(64, 0)).convert("RGB")
    inputs = Inputs((3, 32, 32), (0.0,) * 3, (1.0,) * 3, ["a"])
    middle, whole = inputs.view(stripes), Inputs(**{**vars(inputs), "loses_margin": False}).view(stripes)
    assert middle.size == whole.size == (32, 32)
    assert np.asarray(middle)[0, 0, 0] > np.asarray(whole)[0, 0, 0]
    wide = Inputs(**{**vars(inputs), "input_size": (3, 32, 48)})
    assert wide.view(stripes).size == (48, 32)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nowhere.png",), "there is no file or folder nowhere.png"),
        ((__file__,), "is neither an image"),
        (("EMPTY",), "has no images"),
        (("a.png", "--top", "0"), "--top must be at least 1"),
        (("a.png", "--out", "x.csv"), "--out must be a file that ends in .parquet"),
    ],
)
def test_wrong_use(head_folder, pictures, tmp_path, capsys, args, words):
    args = [str(tmp_path) if arg == "EMPTY" else str(pictures / arg) if arg == "a.png" else arg for arg in args]
    code, _, err = dgconv(capsys, "predict", head_folder, *args)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read"),
        (b"{}", "the key 'input_size' is missing"),
        (b'{"input_size": [1, 8, 8], "mean": [0, 0, 0], "std": [1, 1, 1], "classes": ["a"]}', "input_size must be 3"),
        (b'{"input_size": [3, 8, 8], "mean": [0, 0, 0], "std": [1, 0, 1], "classes": ["a"]}', "std must be above 0"),
    ],
)
def test_a_damaged_file_of_inputs_is_refused(head_folder, pictures, tmp_path, capsys, content, words):
    deploy.save(deploy.prepare(load_model(head_folder)), tmp_path)
    (tmp_path / storage.INPUTS).write_bytes(content)
    code, _, err = dgconv(capsys, "predict", tmp_path, pictures / "a.png")
    assert code == 2
    assert words in err
