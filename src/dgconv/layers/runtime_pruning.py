"""Runtime neural pruning (RNP), Lin et al., NIPS 2017: a recurrent agent says how many channel groups an image gets."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.geometry import Size2
from ..values import BELOW_ONE, FACTOR, SHARE, SIZE
from ._conv import full_precision, takes_images
from .method import DENSE_ANYWAY, Knob, MacCall, Method, MethodLayer, register_method

FEATURES, HIDDEN = 16, 32  # of the agent: what it is told of a layer, and what it remembers
EXPLORES_FROM, EXPLORES_UNTIL = 1 / 12, 3 / 4  # progress of training; then what was learned holds


class _Memory:
    """What goes from layer to layer in one run of the network; a copy of a network begins with none."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.decisions: list[tuple[Tensor, Tensor, Tensor]] = []  # value of the choice, of the best one, share computed
        self.losses: Tensor | None = None  # of each image
        self.shares: dict[int, Tensor] = {}  # by layer, what was computed in the last run

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Memory":
        memo[id(self)] = fresh = _Memory()
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        return _Memory, ()


class Agent(nn.Module):
    """The decision of all layers of a network: a recurrent cell, and the value of each number of groups.

    The first layer that takes it is the one that begins a run.
    """

    exploration: Tensor

    def __init__(self, choices: int, start: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.cell = nn.RNNCell(FEATURES, HIDDEN, device=device, dtype=dtype)
        self.values = nn.Linear(HIDDEN, choices, device=device, dtype=dtype)
        nn.init.normal_(self.values.weight, std=0.01)
        with torch.no_grad():  # the best one, until more is known
            self.values.bias.copy_(-(torch.arange(1, choices + 1) - start).abs() / choices)
        self.register_buffer("exploration", torch.zeros((), device=device))
        self.memory, self.layers = _Memory(), 0


class RuntimePruningConv2d(MethodLayer, nn.Conv2d):
    r"""Computes the first of its groups of output channels only, as many as an agent finds worth it for the image.

    .. math:: x' = \mathrm{BN}(W * x) \cdot [\text{group} \le a], \qquad
              a = \arg\max_a Q(h, a), \quad h \leftarrow \mathrm{RNN}(h, W_e \, p(x))

    p is global average pooling, the recurrent cell and Q are shared by all layers, and h goes through the network with
    the image. They learn by Q-learning: a choice of a groups costs :math:`p\,a`, and the end brings
    :math:`-\alpha` times the image's loss. In training some choices are random. The layer ``normalizes``: no batch
    norm follows, and what is not computed is zero.

    The authors start from a trained network and train agent and network in turns; here both learn at once, each by its
    own loss.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        channel_groups: how many groups the output channels are in.
        open_share: share of the groups that the agent begins with.
        group_price: p, what all groups of a layer cost in the reward.
        loss_price: alpha, what the image's loss counts in it.
        exploration: share of the choices that are random in training.
    """

    normalizes = True
    cost_depends_on_image = True
    budget_advice = ("more `channel_groups`", "a higher `group_price`")
    offset: Tensor
    """What each share of the groups must be worth more than it seems; a MAC budget moves it, for all layers alike."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 | str = 0,
        dilation: Size2 = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        channel_groups: int = 4,
        open_share: float = 1.0,
        group_price: float = 0.1,
        loss_price: float = 1.0,
        exploration: float = 0.1,
        agent: Agent | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        RNP.check(
            channel_groups=channel_groups,
            open_share=open_share,
            group_price=group_price,
            loss_price=loss_price,
            exploration=exploration,
        )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.channel_groups, self.open_share, self.exploration = channel_groups, open_share, exploration
        self.group_price, self.loss_price = group_price, loss_price
        self.norm = nn.BatchNorm2d(out_channels, device=device, dtype=dtype)
        self.encode = nn.Linear(in_channels, FEATURES, device=device, dtype=dtype)
        if agent is None:
            agent = Agent(channel_groups, math.ceil(round(open_share * channel_groups, 6)), device, dtype)
        self.number, agent.layers = agent.layers, agent.layers + 1
        if self.number == 0:
            self.agent = agent
        else:
            self.__dict__["agent"] = agent  # the first layer has its parameters
        self.register_buffer("offset", torch.zeros((), device=device, dtype=dtype))

    @takes_images
    def forward(self, x: Tensor) -> Tensor:
        chosen = self.decide(x)  # [B]
        if self.training or torch.is_grad_enabled() or not isinstance(x, Tensor) or torch.compiler.is_compiling():
            return self.norm(super().forward(x)) * self._mask(chosen).to(x.dtype)[:, :, None, None]
        return self._compute(x, chosen)

    def decide(self, x: Tensor) -> Tensor:
        """How many groups each image gets, ``[B]``; the agent goes on to the next layer."""
        agent, memory = self.agent, self.agent.memory
        with full_precision(x) if isinstance(x, Tensor) else torch.enable_grad():
            pooled = x.detach().mean((2, 3)).to(self.encode.weight.dtype)
            if self.number == 0 or memory.hidden is None:
                memory.hidden, memory.decisions = pooled.new_zeros(pooled.shape[0], HIDDEN), []
            memory.hidden = agent.cell(self.encode(pooled), memory.hidden)
            values = agent.values(memory.hidden)  # [B, a]
        counts = torch.arange(1, self.channel_groups + 1, device=values.device)
        best = (values - self.offset * counts / self.channel_groups).argmax(1)
        if self.training:
            is_random = torch.rand(best.shape, device=best.device) < agent.exploration
            best = torch.where(is_random, torch.randint_like(best, self.channel_groups), best)
            taken = values.gather(1, best[:, None])[:, 0]
            memory.decisions.append((taken, values.detach().amax(1), (best + 1) / self.channel_groups))
        memory.shares[self.number] = self._mask(best + 1).float().mean()
        return best + 1

    def _mask(self, chosen: Tensor) -> Tensor:
        """Which outputs are computed, ``[B, C']``."""
        group = torch.arange(self.out_channels, device=chosen.device) * self.channel_groups // self.out_channels
        return group < chosen[:, None]

    def _compute(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Images with the same number of groups together, and of the filters only what they need."""
        out: Tensor | None = None
        for count in chosen.unique().tolist():
            images = (chosen == count).nonzero()[:, 0]
            filters = math.ceil(count * self.out_channels / self.channel_groups)
            if self.groups > 1:
                part = self.norm(super().forward(x[images]))[:, :filters]
            else:
                bias = None if self.bias is None else self.bias[:filters]
                part = self._conv_forward(x[images], self.weight[:filters], bias)
                norm = self.norm
                part = F.batch_norm(
                    part, norm.running_mean[:filters], norm.running_var[:filters], norm.weight[:filters],  # type: ignore[index]
                    norm.bias[:filters], eps=norm.eps,
                )  # fmt: skip
            if out is None:
                out = part.new_zeros(len(x), self.out_channels, *part.shape[2:])
            out[images, :filters] = part
        assert out is not None
        return out

    # -- learning ------------------------------------------------------------------------------------------------

    def before_step(self, progress: float) -> None:
        if self.number == 0:
            explores = EXPLORES_FROM <= progress < EXPLORES_UNTIL
            self.agent.exploration.fill_(self.exploration if explores else 0.0)

    def see(self, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        if self.number == 0:
            self.agent.memory.losses = F.cross_entropy(logits.detach().float(), labels, reduction="none")

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        """The agent's error: what a choice seemed to be worth, against its price and what it led to."""
        memory = self.agent.memory
        if self.number > 0 or memory.losses is None or not memory.decisions:
            return None
        (decisions, losses), memory.decisions, memory.losses, memory.hidden = (
            (memory.decisions, memory.losses),
            [],
            None,
            None,
        )
        after = [best for _, best, _ in decisions[1:]] + [-self.loss_price * losses]
        errors = [
            (taken - (worth - self.group_price * share)).square().mean()
            for (taken, _, share), worth in zip(decisions, after, strict=True)
        ]
        return torch.stack(errors).mean()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, channel_groups={self.channel_groups}"


def _macs(layer: RuntimePruningConv2d, call: MacCall) -> tuple[float, float]:
    """The groups that the images got, as the last run had them; and the agent."""
    agent = layer.in_channels * FEATURES + (FEATURES + HIDDEN) * HIDDEN + HIDDEN * layer.channel_groups
    if call.measured:
        return float(layer.agent.memory.shares[layer.number]), agent
    return math.ceil(round(layer.open_share * layer.channel_groups, 6)) / layer.channel_groups, agent


def _shared(options: dict[str, Any]) -> dict[str, Any]:
    """One agent for all layers of a network."""
    groups, share = options.get("channel_groups", 4), options.get("open_share", 1.0)
    return {"agent": Agent(groups, math.ceil(round(share * groups, 6)))}


RNP = register_method(
    Method(
        "rnp",
        "RNP",
        RuntimePruningConv2d,
        {
            "channel_groups": SIZE, "open_share": SHARE, "group_price": FACTOR, "loss_price": FACTOR,
            "exploration": BELOW_ONE,
        },
        DENSE_ANYWAY,
        Knob("open_share", cheapest=0.01, dearest=1.0),
        macs=_macs,
        choice_depends_on_image=True,
        cost_is_trained=True,
        at_equal_macs={"open_share": 1.0},  # starts open, and a MAC budget closes it
        shared=_shared,
    )
)  # fmt: skip
