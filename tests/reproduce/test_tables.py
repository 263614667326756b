"""The table of whole networks: both precisions, every rival, ratios to the fastest; old records are read."""

import json

import pytest

from dgconv.bench.result import Bench, FormTime, Measurement
from reproduce.tables import inference

MACHINE = {"hardware": "a CPU", "torch": "2.13", "date": "2026-11-18", "onnxruntime": "1.31", "openvino": None}


def row(kind, form, milliseconds, precision="float32"):
    return FormTime(kind, form, median=milliseconds / 1e3, quartiles=(0.0, 1.0), precision=precision)


def lines_of(tmp_path, *benches):
    folder = tmp_path / "benchmarks/results"
    folder.mkdir(parents=True)
    for number, bench in enumerate(benches):
        (folder / f"bench_{number}.json").write_text(json.dumps(bench))
    return inference(tmp_path).splitlines()


@pytest.fixture
def bench():
    rows = [
        row("dense", "torch", 40), row("dense", "ncnn", 20), row("dense", "OpenVINO", 32), row("dense", "prepared", 18),
        row("sgc", "prepared", 11), row("dgc", "prepared", 10),
        row("dense", "ONNX Runtime", 9, "int8"), row("dense", "OpenVINO", 8, "int8"),
        FormTime("dense", "prepared", missing="not yet", precision="int8"), row("dgc", "prepared", 4, "int8"),
    ]  # fmt: skip
    machine = MACHINE | {"ncnn": "1.0"}
    return Bench("net_dgc", 0.75, (3, 8, 8), machine, [Measurement(1, 2, 5, rows)], []).to_dict()


def test_both_precisions_and_the_fastest_rival_of_each(bench, tmp_path):
    header, _, heading, _, first, second, *_, lacking = lines_of(tmp_path, bench)
    assert header == "a CPU, torch 2.13, ncnn 1.0, ONNX Runtime 1.31, 2026-11-18; milliseconds, median:"
    assert heading.endswith("| threads | torch | ncnn | OpenVINO | ONNX Runtime | dense | SGC | **DGC** |")
    cells = "| float32 | 1 | 2 | 40.00 | _20.00_ | 32.00 |  | 18.00 | 11.00 | **10.00**, 2.00x |"
    assert first == f"| `net_dgc`, 0.75 {cells}"
    assert second.endswith("| int8 | 1 | 2 |  |  | _8.00_ | 9.00 |  |  | **4.00**, 2.00x |")
    assert lacking == "Not among the rivals, for it was not measured: ONNX Runtime in float32."


def test_records_from_before_int8(bench, tmp_path):
    (part,) = bench["measurements"]
    del part["fastest_rival"]
    part["rows"] = part["rows"][:6]
    for old in part["rows"]:
        del old["precision"], old["difference"]
    _, _, _, _, only, _, lacking = lines_of(tmp_path, bench)
    assert only.endswith("| float32 | 1 | 2 | 40.00 | _20.00_ | 32.00 | 18.00 | 11.00 | **10.00**, 2.00x |")
    assert lacking.endswith("ONNX Runtime in float32."), "of the precisions that are there"
