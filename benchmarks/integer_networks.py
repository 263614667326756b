"""Random networks in int8 against the integer reference, on every instruction set of this CPU: how many differ.

python benchmarks/integer_networks.py --networks 3000 [--json benchmarks/results/integer_networks.json]

Goes on with the file where a run was ended: it is written after every part of the networks of an instruction set.
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from random import Random

import torch

from dgconv.deploy.run.prepared import PreparedModel
from dgconv.environment import describe_environment
from dgconv.ops import native

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.deploy.byte_networks import expected, random_network

PART = 250  # networks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(arguments.json.read_text())["rows"] if arguments.json and arguments.json.exists() else []
    for isa in native.ISAS:
        if not native.library().dgconv_select_isa(isa.encode()):
            continue
        row = next((row for row in rows if row["instructions"] == isa), None)
        if row is None:
            rows.append(row := {"instructions": isa, "networks": 0, "differ": 0})
        while row["networks"] < arguments.networks:
            some = range(row["networks"], min(row["networks"] + PART, arguments.networks))
            row["differ"] += sum(differs(isa, number) for number in some)
            row["networks"] = some.stop
            if arguments.json:
                record = describe_environment("cpu") | {"date": date.today().isoformat(), "rows": rows}
                arguments.json.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{isa}: {row['networks']} networks, {row['differ']} differ", flush=True)
    return any(row["differ"] for row in rows)


def differs(isa: str, number: int) -> bool:
    graph, x = random_network(Random(f"{isa} {number}"))
    return not torch.equal(PreparedModel(graph)(x).view(torch.int32), expected(graph, x).view(torch.int32))


if __name__ == "__main__":
    sys.exit(main())
