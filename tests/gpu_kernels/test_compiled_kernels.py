"""The kernels over pages, compiled for GPUs without one: heads of each size fit in a small card's shared memory."""

import os
import subprocess
import sys

import pytest

SHARED_BYTES = 99 * 1024  # of a block's shared memory on the smallest cards with bfloat16 (compute capability 8.6, 8.9)
CAPABILITIES = 80, 90
# Compiles the kernel that attends, as `TritonKernels.attend` would let it be compiled, and prints its shared memory.
COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inference.local.forward.page_kernels import _attend_kernel

capability, dim, queries, tokens = map(int, sys.argv[1:])
pointers = dict.fromkeys(("queries", "keys", "values", "attended"), "*bf16") | dict.fromkeys(("parts", "sums"), "*fp32")
pointers |= dict.fromkeys(("table", "sizes", "tiles"), "*i32") | {"positions": "*i64", "most": "i32", "scale": "fp32"}
constants = {
    "TOKENS": tokens, "TILES": int(tokens > 1), "QUERIES": queries, "PADDED_QUERIES": max(16, tokens * queries),
    "DIM": dim, "PADDED_DIM": triton.next_power_of_2(dim), "TILE": 64, "WHOLE": tokens > 1,
}
source = ASTSource(_attend_kernel, pointers | dict.fromkeys(constants, "constexpr"), constants)
print(triton.compile(source, target=GPUTarget("cuda", capability, 32)).metadata.shared)
"""


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("tokens", [1, 16])  # of a decoding row, and of a tile of a joiner's prompt
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_compile_and_share_no_more_memory_than_a_card_has(dim, tokens, capability):
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [sys.executable, "-c", COMPILE, *map(str, (capability, dim, 4, tokens))]
    compiled = subprocess.run(arguments, env=plain, capture_output=True, text=True, check=True)
    assert 0 < int(compiled.stdout) <= SHARED_BYTES
