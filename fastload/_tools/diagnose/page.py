"""A diagnosis as a page to read."""

from __future__ import annotations

from fastload._tools.diagnose.model import cores
from fastload._tools.diagnose.result import Diagnosis, Stage, Timing


def page(found: Diagnosis) -> str:
    """Verdict first, then the numbers behind it, then what to change."""
    parts = [_verdict(found), _rates(found)]
    if found.stages:
        parts += ["", f"Where the loader's time goes ({found.stages_from}):"]
        parts += [_row(each) for each in found.stages if each.seconds > 0 or each.name == "ipc"]
    if found.suggestions:
        parts += ["", "What to change, the best first:"]
        for number, each in enumerate(found.suggestions, 1):
            parts.append(
                f"  {number}. {each.change}: expected {rate(each.expected_per_s)} ({each.gain:+.0%})".replace(
                    "%)", " %)"
                )
            )
            parts.append(f"     {each.why}")
    elif found.verdict == "step":
        parts += [
            "",
            "Nothing to gain from the loader: look at the step itself (fastload.check_trainer).",
        ]
    if found.notes:
        parts += ["", *(f"Note: {each}" for each in found.notes)]
    return "\n".join(parts)


def _verdict(found: Diagnosis) -> str:
    if found.step is None:
        return f"Your loader needs {milliseconds(found.loader)} for a batch{_of(found)}: it gives {_both(found, found.loader.per_s)}."
    line = f"Your step needs {milliseconds(found.step)}, your loader {milliseconds(found.loader)}"
    who = "GPU" if found.on_gpu else "step"
    if found.wait_share is None or found.wait_share < 0.05:
        line += f": the {who} does not wait for data."
    else:
        line += f": the {who} waits {percent(found.wait_share)} of the time."
    largest = max(found.stages, key=lambda each: each.seconds, default=None)
    if largest is not None and found.verdict == "loader":
        line += f" {largest.name.capitalize()} is {percent(largest.share)} of the loader's work."
    return line + _advice(found)


def _advice(found: Diagnosis) -> str:
    """The one change that helps most, beside its ceiling."""
    if not found.suggestions:
        return ""
    best, ceiling = found.suggestions[0], found.ceiling_per_s
    change = best.change.split(" (")[0]
    limit = f", ceiling {rate(ceiling)}." if ceiling else "."
    return f"\nBest change: {change}: expected {rate(best.expected_per_s)} (+{percent(best.gain)}){limit}"


def _rates(found: Diagnosis) -> str:
    where = cores(found.cores)
    if found.workers is not None:
        where += f", {found.workers} {'thread' if found.loader_kind == 'fastload' else 'worker'}{'s' * (found.workers != 1)}"
    if found.step is None:
        return f"{found.loader.batches} batches measured on {where}. With a step (diagnose(loader, step)) you learn whether that is enough."
    told = []
    if found.together is not None:
        told.append(
            f"Together they reach {_both(found, found.together.per_s)} ({found.together.batches} batches measured)"
        )
    told.append(f"with data for free it would be {_both(found, found.step.per_s)}")
    return "; ".join(told) + f"; {where}."


def _row(each: Stage) -> str:
    detail = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in each.detail)
    return f"  {each.name:10} {1e3 * each.seconds:9.1f} ms {percent(each.share):>6}" + (
        f"   {detail}" if detail else ""
    )


def _of(found: Diagnosis) -> str:
    return f" of {found.batch_size}" if found.batch_size else ""


def _both(found: Diagnosis, per_s: float) -> str:
    """it/s beside samples/s: the first alone misleads when batch sizes differ."""
    return rate(per_s) + (
        f" = {per_s * found.batch_size:.0f} samples/s" if found.batch_size else ""
    )


def rate(per_s: float) -> str:
    """Iterations per second, three digits."""
    return f"{per_s:.{max(0, 2 if per_s < 1 else 1 if per_s < 100 else 0)}f} it/s"


def percent(share: float) -> str:
    """0.304 → ``30 %``."""
    return f"{100 * share:.0f} %"


def milliseconds(timing: Timing) -> str:
    """``148 ms``, ``1.5 ms``."""
    value = 1e3 * timing.seconds
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"
