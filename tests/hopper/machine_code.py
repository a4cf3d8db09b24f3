"""What a compiler made of a kernel for Hopper: whether its machine code keeps what products are made of, and lets them run side by side.

    code = read_code(compiled.asm["cubin"])
    find_lost(code)          -> [] or ["HGMMA at 0x12d0: R180 is only written behind it"]

ptxas 12.8 to 13.0 can take numbers that were read before a loop for dead behind their first product, and put others into their registers: from
the second round on, another product is computed, and nothing is said.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Instruction:
    address: str
    name: str
    operands: str

    @property
    def writes(self) -> range:
        """The registers that it may write: of those whose first operand is one, as many as its name says."""
        first = re.match(r"R(\d+)\b", self.operands)
        if first is None:
            return range(0)
        product = re.match(r"HGMMA\.64x(\d+)x16\.F32", self.name)
        if product:
            count = int(product[1]) // 2
        elif self.name.endswith(("88.4", ".128")):
            count = 4
        else:
            count = 2 if self.name.endswith((".64", "88.2")) or ".WIDE" in self.name or self.name == "CS2R" else 1
        return range(int(first[1]), int(first[1]) + count)

    @property
    def multiplies(self) -> range:
        """Of a product, the registers of its left side."""
        left = re.match(r"R\d+, R(\d+), gdesc", self.operands) if self.name.startswith("HGMMA") else None
        return range(int(left[1]), int(left[1]) + 4) if left else range(0)


@dataclass(frozen=True)
class Code:
    instructions: list[Instruction]
    loops: list[range]
    """of instructions, from where a branch goes back to, to that branch"""


def read_code(cubin: bytes) -> Code:
    import triton

    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True).stdout
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    loops = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.match(line):
            target = _TARGET.search(found[3]) if found[2].startswith("BRA") else None
            instructions.append(Instruction(*found.groups()))
            if target and target[1] in labels:
                loops.append(range(labels[target[1]], len(instructions)))
    return Code(instructions, loops)


def find_lost(code: Code) -> list[str]:
    """Products in a loop whose left side is written there only behind them: in the next round it is something else."""
    lost = []
    for i, product in enumerate(code.instructions):
        around = [loop for loop in code.loops if i in loop]
        for register in product.multiplies if around else []:
            writers = [j for j in min(around, key=len) if j != i and register in code.instructions[j].writes]
            if writers and min(writers) > i:
                lost.append(f"{product.name} at 0x{product.address}: R{register} is only written behind it")
    return lost


def count_products(code: Code) -> tuple[int, int]:
    """Products, and waits for them: as many of these where the compiler lets none run beside another."""
    names = [each.name for each in code.instructions]
    return sum(name.startswith("HGMMA") for name in names), sum(name == "WARPGROUP.DEPBAR.LE" for name in names)
