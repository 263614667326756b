"""Standard group convolution."""

import pytest
import torch

from dgconv import StandardGroupConv2d
from dgconv.errors import UserError


def test_group_g_owns_every_gth_output_and_sees_its_own_inputs_only():
    layer = StandardGroupConv2d(12, 8, 3, padding=1, groups=4)
    x = torch.randn(2, 12, 5, 5, requires_grad=True)
    out = layer(x)
    for group in range(4):
        grad = torch.autograd.grad(out[:, group::4].sum(), x, retain_graph=True)[0]
        reached = grad.abs().sum((0, 2, 3)) > 0
        assert reached.nonzero().flatten().tolist() == [3 * group, 3 * group + 1, 3 * group + 2]
    torch.testing.assert_close(layer(x[0]), out[0])


def test_groups_must_divide():
    with pytest.raises(UserError, match="4 groups, 10 input and 8 output"):
        StandardGroupConv2d(10, 8, 1)
