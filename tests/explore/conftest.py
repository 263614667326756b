"""Trained runs to explore, behind a real server."""

from contextlib import ExitStack
from functools import cache
from io import BytesIO
from threading import Event, Thread
from typing import NamedTuple

import pytest
import torch
from PIL import Image
from torch import Tensor

from dgconv import count_macs, dynamic_layers
from dgconv.analysis.rate import at_rate, calibration_images
from dgconv.analysis.trained_run import TrainedRun
from dgconv.explore import networks
from dgconv.explore.server import ExploreServer
from dgconv.explore.session import Session


@pytest.fixture(autouse=True)
def steady_time(monkeypatch):
    """Every call takes 1.5 ms, so that two looks at an image are the same; what was called."""
    called = []
    monkeypatch.setattr(networks, "_seconds", lambda network, image: called.append(network) or 0.0015)
    return called


@pytest.fixture(scope="session")
def head_session(head_folder):
    return Session(TrainedRun(head_folder), [0.25, 0.5])  # and 0.75, the trained one


@pytest.fixture(scope="session")
def global_session(global_folder):
    return Session(TrainedRun(global_folder), [0.5])


@pytest.fixture(params=["head", "global"])
def session(request):
    return request.getfixturevalue(f"{request.param}_session")


@pytest.fixture
def served(session):
    yield from _serve(session)


@pytest.fixture
def head_served(head_session):
    yield from _serve(head_session)


def _serve(session):
    session.prepare_all(Event())  # so that no test waits for it
    with ExploreServer(session, session.images.spread(12)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Truth(NamedTuple):
    """What a network does with one image, found without any of the explorer."""

    logits: Tensor
    masks: list[Tensor]  # of each layer, [H, C]
    macs: float


@pytest.fixture(scope="session")
def directly():
    """``directly(folder, number, rate)``: the :class:`Truth` about a test image."""

    @cache
    def load(folder):
        run = TrainedRun(folder)
        ((images, _),) = run.data.test.batches(len(run.data.test), train=False)
        return run.model, images, calibration_images(run.data.train)

    @cache
    def look(folder, number, rate):
        model, images, calibration = load(folder)
        x, masks = images[number : number + 1], []
        with at_rate(model, rate, calibration), torch.no_grad(), ExitStack() as stack:
            macs = count_macs(model, images=x).macs
            for _, layer in dynamic_layers(model):
                stack.enter_context(layer.gate.observed_by(lambda saliency, mask: masks.append(mask[0])))
            return Truth(model(x)[0], masks, macs)

    return look


@pytest.fixture(scope="session")
def encoded():
    """``encoded(pillow_image, format, **options)``: its bytes."""

    def encode(image, format="PNG", **options):
        file = BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    return encode


@pytest.fixture(scope="session")
def a_photo():
    """Smooth, so that scaling it keeps it recognizable."""
    return Image.linear_gradient("L").resize((90, 60)).convert("RGB")
