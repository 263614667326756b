"""The table of what the fuzzers tried adds up what they wrote down."""

import json

from reproduce.safety import RECORD, SOAK, fuzzing


def run(target, build, inputs, **counts):
    return {"target": target, "build": build, "inputs": inputs, "date": "2026-11-18", **counts}


def test_runs_of_one_reader_are_added_up(tmp_path):
    (tmp_path / RECORD).parent.mkdir(parents=True)
    runs = [
        run("image", "stock", 1000, refused=990, accepted=10),
        run("prepared", "stock", 500, equal=499, crash=1),
        run("image", "stock", 234, refused=234, date="2026-11-20"),
        run("prepared", "sanitized", 70, equal=70),
    ]
    (tmp_path / RECORD).write_text(json.dumps(runs))
    text = fuzzing(tmp_path)
    assert text.startswith("2026-11-18 to 2026-11-20:\n")
    assert "| `image` | 1,234 | 1,224 | 10 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| **all** | 1,734 | 1,224 | 10 | 499 | 0 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "| `prepared`, sanitizers | 70 | 0 | 0 | 70 | 0 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "Memory" not in text
    soak = {"minutes": 3.0, "threads": 16, "sizes": 64, "calls": 4321, "wrong": 0, "budget": 1 << 30, "peak": 1 << 29}
    (tmp_path / SOAK).write_text(json.dumps(soak | {"taken": 600 << 20}))
    assert "16 threads made 4,321 calls with images of 64 sizes\nin 3 minutes. 0 results" in fuzzing(tmp_path)
