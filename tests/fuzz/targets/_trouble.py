"""A target with everything that can go wrong, for the test of the driver. An input is a number."""

import os
import random
import time

from dgconv.errors import UserError
from tests.fuzz.outcome import Wrong


def make(rng: random.Random) -> int:
    return rng.randrange(60)


def run(given: int) -> str:
    match given:
        case 0:
            os.abort()
        case 1:
            raise Wrong("two is three")
        case 2:
            raise KeyError("raw")
        case 3:
            time.sleep(1000)
        case 4:
            bytearray(b"1") * (300 << 20)  # more than an input may take
        case 5:
            bytearray(300 << 30)  # more than there is
        case 6:
            raise UserError("no")
    return "equal"


def store(given: int) -> bytes:
    return str(given).encode()


def restore(data: bytes) -> int:
    return int(data)
