"""Compiles the kernels for several GPU architectures and prints {name: [code bytes, stack bytes]}.

Uses the assembler of Triton, so no GPU is required.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastload._decode.gpu import fused_kernel

POINTERS = {"jobs": "*i64", "spots": "*i64", "unwritten": "*i32"}
SIZES = ("canvas_h", "canvas_w", "longest_x", "longest_y", "most_x", "most_y")


def compiled(kernel: Any, constants: dict[str, Any], item: str, capability: int) -> Any:
    """Compiles a kernel. ``item`` is the dtype of the output."""
    kinds = {
        **POINTERS,
        **dict.fromkeys(("first_x", "weights_x", "first_y", "weights_y"), "*i32"),
        "values": item,
        "output": item,
        **dict.fromkeys(SIZES, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    signature = {name: kinds.get(name, "i64") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options=dict(fused_kernel.LAUNCH)
    )


def stack_of(cubin: bytes) -> int:
    """Returns the bytes of stack and local memory per thread, used by spilled registers."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return sum(int(number) for number in re.findall(r"(?:STACK|LOCAL):(\d+)", text))


def main() -> None:
    found = {}
    tile = {"TILE_Y": fused_kernel.TILE_Y, "TILE_X": fused_kernel.TILE_X}
    cases = [
        (3, 3, False, "*u8", 75),
        (3, 3, True, "*bf16", 80),
        (1, 1, False, "*fp32", 80),
        (1, 3, True, "*fp16", 90),
        (3, 3, False, "*u8", 120),
    ]
    for channels, out, swap, item, capability in cases:
        made = compiled(
            fused_kernel.fused, {"IN": channels, "OUT": out, "SWAP": swap, **tile}, item, capability
        )
        found[f"fused {channels}->{out} {item} sm_{capability}"] = [
            len(made.asm["cubin"]),
            stack_of(made.asm["cubin"]),
        ]
    for write, capability in ((True, 80), (False, 90)):
        made = compiled(
            fused_kernel.probe, {"WRITE": write, "GROUPS": 16, "GROUP": 16}, "*u8", capability
        )
        found[f"probe {'write' if write else 'read'} sm_{capability}"] = [
            len(made.asm["cubin"]),
            stack_of(made.asm["cubin"]),
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
