"""Builds the library with tiles of AMX in plain code, and holds it against the integer reference.

    python -m tests.deploy.emulated_tiles [--plain]

In plain code altogether, or with the AVX-512 that a CPU with AMX has.
"""

import sys
from random import Random

import torch

from dgconv.deploy.run.prepared import PreparedModel
from dgconv.ops import native
from tests import native_build
from tests.deploy.byte_networks import expected, random_network
from tests.deploy.tile_networks import tile_networks

RANDOM_NETWORKS = 200


def main() -> int:
    is_plain = "--plain" in sys.argv
    flag = native_build.PLAIN_TILES if is_plain else native_build.EMULATED_TILES
    name = "plain_tiles" if is_plain else "emulated_tiles"
    path = str(native_build.built(name, ["-O0", flag]))  # which takes a sixth of the time to compile
    native.library_path = lambda: path
    assert native.isa() != "avx512_amx", "what is emulated is taken only by name"
    assert native.library().dgconv_select_isa(b"avx512_amx")
    networks = [*tile_networks(), *(random_network(Random(f"emulated {n}")) for n in range(RANDOM_NETWORKS))]
    wrong = []
    for number, (graph, x) in enumerate(networks):
        torch.set_num_threads(1 + number % 2)
        if not torch.equal(PreparedModel(graph)(x).view(torch.int32), expected(graph, x).view(torch.int32)):
            wrong.append(number)
    print(f"{len(networks)} networks, wrong: {wrong}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
