"""Random networks in int8 against the integer reference, on every instruction set of this CPU: how many differ.

python benchmarks/integer_networks.py --networks 3000 [--json benchmarks/results/integer_networks.json]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for isa in native.ISAS:
        if not native.library().dgconv_select_isa(isa.encode()):
            continue
        differing = 0
        for number in range(arguments.networks):
            graph, x = random_network(Random(f"{isa} {number}"))
            same = torch.equal(PreparedModel(graph)(x).view(torch.int32), expected(graph, x).view(torch.int32))
            differing += not same
        rows.append({"instructions": isa, "networks": arguments.networks, "differ": differing})
        print(f"{isa}: {arguments.networks} networks, {differing} differ", flush=True)
    if arguments.json:
        record = describe_environment("cpu") | {"date": date.today().isoformat(), "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return any(row["differ"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
