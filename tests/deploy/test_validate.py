"""What is wrong with a stored graph is said when it is loaded, before anything is made of it."""

import pytest

from dgconv.deploy.storage import from_bytes
from dgconv.errors import UserError
from tests.fuzz.crafted import CASES

SAID_AT_ONCE = {
    "two_step_heap_write": "'a'",
    "writes_over_its_input": "'x'",
    "keep_negative": "keep",
    "keep_2p31_boost": "keep",
    "stride_2p32_dense": "stride",
    "dilation_2p31_pad_2p31": "dilation|padding",
    "gate_with_groups": "groups",
    "picks_with_groups": "groups",
    "gate_and_boost": "gate|boost",
    "expansion_and_gate": "expansion",
    "expansion_residual_dropped": "expansion",
    "order_with_short_norm": "norm|order|scale",
    "norm_scale_2d_empty": "scale",
    "torch_add_out": "write into what it is given",
    "deep_json": "nested deeper",
}


@pytest.mark.parametrize("name", SAID_AT_ONCE)
def test_what_is_wrong_is_said(name):
    with pytest.raises(UserError, match=SAID_AT_ONCE[name]):
        from_bytes(*CASES[name]().files())
