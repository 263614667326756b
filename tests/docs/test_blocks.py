"""Every code block of every page runs as it is written, or as the comment in front of it says.

The blocks of a page are one session. All but those of the first page find a trained run, a small one.
"""

import itertools
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dgconv.analysis import plan
from dgconv.bench import run, timing
from dgconv.bench.runtimes import record
from dgconv.cli import main as dgconv
from dgconv.errors import UserError
from dgconv.ops import native
from dgconv.train import list_recipes
from reproduce import tables
from reproduce.blocks import Block, Session, blocks_of, with_outputs
from tests.docs.stand_ins import make_stand_ins

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))) if "```" in path.read_text()
]
RUN = "runs/digits-1"


def small(weights: str | None = None) -> nn.Module:
    """In the place of torchvision's ResNet-18."""
    stem = [nn.Conv2d(3, 8, 3, stride=32), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(
        *stem, nn.Conv2d(8, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


@pytest.fixture
def quick(monkeypatch):
    """Everything is measured, but in no time; other runtimes are tried in tests/bench. Programs are this checkout's."""
    for name, first in {"PATH": Path(sys.executable).parent, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}.items():
        monkeypatch.setenv(name, f"{first}:{os.environ.get(name, '')}")
    for name, value in {"TIMED_STEPS": 1, "TIMED_PIXELS": 1}.items():
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(resnet18=small)))
    for name, value in {"FEWEST": 1, "MOST": 1, "PAUSE": 0, "GET_GOING": 0}.items():
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(run, "usable_cores", lambda: 1)
    monkeypatch.setattr(record, "save_onnx", None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's, about itself
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_blocks_run(page, tmp_path, quick, request):
    blocks = [block for block in blocks_of(page.read_text()) if "tested in" not in block.marks]
    code = "\n".join(block.tested_code for block in blocks)
    if "python -m reproduce" in code:
        counted = request.getfixturevalue("counted_paper")
        request.getfixturevalue("monkeypatch").setattr(tables, "compare_with_paper", lambda: counted)
    make_stand_ins(tmp_path, code)
    if page.name != "start.md" and RUN in code:
        shutil.copytree(request.getfixturevalue("head_folder"), tmp_path / RUN)
    if page.name == "deploy.md" and not native.available():
        pytest.skip("int8 needs the native kernels")
    session = Session(tmp_path)
    for block in blocks:
        printed = session.run(block, block.tested_code)
        assert "Traceback" not in printed


def test_every_block_is_run():
    """Each as it is, as its comment says, or in another test that has all of its words."""
    for page in PAGES:
        text = page.read_text()
        blocks = blocks_of(text)
        assert len(blocks) == text.count("\n```python\n") + text.count("\n```sh\n"), f"{page.name}: a block is indented"
        for block in blocks:
            assert block.is_run or len(block.marks["not run"]) > 3, block.code
            if file := block.marks.get("tested in"):
                test = (ROOT / file).read_text()
                assert all(f'"{word}"' in test for line in block.lines for word in line.split()[1:]), block.code


def test_commands_that_are_shortened_take_what_they_are_given(capsys):
    """Of hours of training, too: every command, flag and recipe that a page names is there."""
    pages = (blocks_of(page.read_text()) for page in PAGES)
    codes = [block.code for blocks in pages for block in blocks if block.language == "sh" and not block.is_run]
    lines = {tuple(shlex.split(line, comments=True)) for code in codes for line in code.splitlines()}
    lines = {line[line.index("dgconv") + 1 :] for line in lines if "dgconv" in line}
    assert len(lines) > 50
    for command in {command for command, *_ in lines}:
        with pytest.raises(SystemExit) as exit:
            dgconv([command, "--help"])
        assert exit.value.code == 0
        known = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))
        for _, *words in (line for line in lines if line[0] == command):
            assert known >= {word for word in words if word.startswith("--")}
            if command == "train":
                assert set(list_recipes()) >= set(itertools.takewhile(lambda word: word[0] != "-", words))


def test_a_newcomers_path_is_run():
    """Everything on the first page but the installation."""
    blocks = blocks_of((ROOT / "docs/start.md").read_text())
    assert [block.code for block in blocks if not block.is_run] == ["pip install -c constraints.txt -e .\n"]


PAGE = """\
# Title

```sh
echo one; echo two
```

<!-- output -->
```text
old
```

<!-- first lines: 1 -->
```python
print("three")
print("four")
```

<!-- not run: a reason that is long enough -->
```sh
exit 1
```
"""


def test_outputs_are_written_below_blocks(tmp_path):
    written = with_outputs(PAGE, Session(tmp_path))
    assert "echo one; echo two\n```\n\n<!-- output -->\n```text\none\ntwo\n```\n\n<!-- first" in written
    assert 'print("four")\n```\n\n<!-- output -->\n```text\nthree\n...\n```\n' in written
    assert with_outputs(written, Session(tmp_path)) == written


def test_a_block_that_fails_is_noticed(tmp_path):
    with pytest.raises(UserError, match="ended with status 3"):
        Session(tmp_path).run(Block("sh", "exit 3\n", {}))
    Session(tmp_path).run(Block("sh", "dgconv macs nothing\n", {"exits": "2"}))
    with pytest.raises(ZeroDivisionError):
        Session(tmp_path).run(Block("python", "1 / 0\n", {}))


def test_python_blocks_of_a_page_share_their_names(tmp_path):
    session = Session(tmp_path)
    session.run(Block("python", "x = 1\n", {}))
    assert session.run(Block("python", "print(x)\n", {})) == "1\n"
    assert torch.get_num_threads() == 1
