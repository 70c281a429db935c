"""The list of rules, in the order in which they claim time.

A rule is one function: it gets a run and the time that no rule before it has claimed, and returns findings. The order decides which
rule pays for a second that two of them could claim. Slow steps that the trainer named
itself (events: checkpoint, evaluation) are set aside before the first rule; then it runs from causes that are certain to those that
are guessed:

====  =================  ============================================================================
 20   swapping           slow steps and waits while the host swapped
 30   data_wait          waiting for data in most steps: loader, disk, processors
 40   transfer           copies to the device
 50   periodic, jitter   slow steps at equal distances, by name; then those without a period
 60   slow_rank          one rank that the others wait for
 70   throttled_gpus     GPUs held back by heat or power
 90   host_bound         what is left of an idle GPU: the trainer's own Python
====  =================  ============================================================================

To add a finding, write one function with ``@rule(order)`` in a module of this package, and its test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastload._tools.doctor.account import Stall
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Named:
    """Stalls that have a name."""

    kind: str
    name: str  # as the event calls it, or "probably a checkpoint"
    period: int  # 0: not at equal distances
    phase: int
    times: int
    seconds: float  # of one
    lost_s: float
    by_event: bool
    iters: tuple[int, ...] = ()


@dataclass(slots=True)
class Unclaimed:
    """The time of a run that no rule has claimed yet; rules take away what they claim."""

    stalls: list[Stall]
    wait_s: float  # waiting for data that nothing covered
    named: list[Named] = field(default_factory=list)  # stalls with a name, for findings and plots
    lost_s: float = 0.0  # claimed by all rules so far


Rule = Callable[[Case, Unclaimed], list[Finding]]
_RULES: list[tuple[int, Rule]] = []


def rule(order: int) -> Callable[[Rule], Rule]:
    """Registers a rule at its place in the order above."""

    def register(function: Rule) -> Rule:
        _RULES.append((order, function))
        return function

    return register


def rules() -> list[Rule]:
    """All rules, in order; rules of one number in the order of their definition."""
    return [each for _, each in sorted(_RULES, key=lambda pair: pair[0])]
