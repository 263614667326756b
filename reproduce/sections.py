"""The sections of pages that are written by a program, by the names that stand in the pages."""

from collections.abc import Callable
from pathlib import Path

from . import frontier_page, methods, safety, tables
from .gates import gates_table
from .groups import Group
from .page import claims_section, readme_table, studies_section

SECTIONS: dict[str, Callable[[Path, list[Group]], str]] = {
    "results": lambda root, groups: readme_table(groups),
    "claims": lambda root, groups: claims_section(groups),
    "studies": lambda root, groups: studies_section(groups),
    "gates": lambda root, groups: gates_table(groups),
    "speed": lambda root, groups: tables.speed(root),
    "inference": lambda root, groups: tables.inference(root),
    "int8": lambda root, groups: tables.int8(root),
    "tiles": lambda root, groups: tables.tiles(root),
    "convolutions": lambda root, groups: tables.convolutions(root),
    "steps": lambda root, groups: tables.steps(root),
    "tune": lambda root, groups: tables.tune(root),
    "any_network": lambda root, groups: tables.any_network(root),
    "tuned_networks": lambda root, groups: tables.tuned_networks(root),
    "precision_by_isa": lambda root, groups: tables.precision_by_isa(root),
    "macs": lambda root, groups: tables.macs(),
    "norms": lambda root, groups: tables.norms(root),
    "measured": lambda root, groups: tables.comparisons(root),
    "options": lambda root, groups: methods.options(),
    "fuzzing": lambda root, groups: safety.fuzzing(root),
    "frontier": lambda root, groups: frontier_page.frontier_table(root),
    "frontier_changes": lambda root, groups: frontier_page.frontier_changes(root),
    "frontier_verdict": lambda root, groups: frontier_page.frontier_verdict(root),
    "frontier_again": lambda root, groups: frontier_page.frontier_again(root),
    "frontier_128": lambda root, groups: frontier_page.frontier_repeat(root, "imagenette128"),
    "frontier_cifar10": lambda root, groups: frontier_page.frontier_repeat(root, "cifar10"),
    "gpu": lambda root, groups: tables.gpu(root),
}
