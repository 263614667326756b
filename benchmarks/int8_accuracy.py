"""What int8 costs the trained networks of this repository: error on the whole test set, and whether they choose alike.

python benchmarks/int8_accuracy.py --cifar10 DIR --cifar100 DIR [--json benchmarks/results/int8_accuracy.json]

Goes on with the file where a run was ended: networks that are in it are not measured again.
"""

import argparse
import json
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import dgconv
from dgconv.analysis.rate import RANGE_IMAGES, calibration_images
from dgconv.deploy.precision import prepare_as
from dgconv.deploy.storage import to_bytes
from dgconv.environment import describe_environment
from dgconv.models import load_model
from dgconv.models.pretrained import find_run, list_cards
from dgconv.train import Recipe, evaluate
from dgconv.train.classes import load_data_of_run

COMPARED = 200  # images whose choices are compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cifar10", type=Path, required=True)
    parser.add_argument("--cifar100", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--networks", nargs="*", help="of the published ones; default all")
    arguments = parser.parse_args()
    folders = {"cifar10": arguments.cifar10, "cifar100": arguments.cifar100}
    rows = json.loads(arguments.json.read_text())["rows"] if arguments.json and arguments.json.exists() else []
    known = {row["network"] for row in rows}
    for name in list_cards():
        if name in known or name not in (arguments.networks or list_cards()):
            continue
        rows.append({"network": name} | measure(name, folders[name.partition("_")[0]]))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "layers"}), flush=True)
        if arguments.json:
            record = describe_environment("cpu") | {"date": date.today().isoformat(), "rows": rows}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def measure(name: str, folder: Path) -> dict[str, Any]:
    run = find_run(Path(name))
    recipe = Recipe.of_run(run)
    assert recipe is not None
    data = load_data_of_run(run, recipe, str(folder))
    model = load_model(run, "cpu").eval()
    floats = dgconv.deploy.prepare(model)
    calibration = calibration_images(data.train, count=RANGE_IMAGES)
    bytes = prepare_as(model, "int8", calibration)
    compared = calibration_images(data.test, count=COMPARED)
    errors = [evaluate(form, data.test, device="cpu").error for form in (floats, bytes)]
    found = dgconv.deploy.agreement(floats, bytes, compared)
    sizes = [sum(map(len, to_bytes(form))) for form in (floats, bytes)]
    return {
        "images": len(data.test),
        "error float32": errors[0],
        "error int8": errors[1],
        "rise": errors[1] - errors[0],
        "file": sizes[1] / sizes[0],
        "compared": COMPARED,
        "flipped": found.flipped,
        "overlap": found.overlap,
        "layers": [asdict(layer) for layer in found.layers],
    }


if __name__ == "__main__":
    main()
