"""The machines of the papers as cost curves and memory, derived from the figures that they print.

The printed figures determine the numbers only in part. The derivation beside each number says which part is printed,
which part follows from the hardware, and which part was chosen. GB are 10^9 bytes, MiB 2^20.
"""

from dataclasses import dataclass

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory


@dataclass(frozen=True, slots=True)
class Machine:
    """One published combination of model, engine and GPU."""

    curves: ServingCurves
    memory: KvMemory


# ChatGLM-6B, 16-bit, huggingface-transformers, V100 32 GB (Magnus II-E, IV-A).
# Decoding: 43.6 ms + 0.8 ms a row + 3 µs a row and cached token. The case study of Fig. 6 prints three batches of 7 at
# 1000 + 1000 tokens in 242 s, and one of 3 plus one of 18 at 10 + 10 tokens in 60 s:
#     7 rows, 1500 cached on average: 43.6 + 5.6 + 31.5 = 80.7 ms, · 1000 iterations · 3 = 242 s
#     3 rows: 43.6 + 2.4 + 13.5 = 59.5 ms · 1000 = 59.5 s; 18 rows, 15 cached: 43.6 + 14.4 + 0.8 = 58.8 ms · 10 = 0.6 s
# Prefill: 2 · 6.2e9 FLOP a token at about half of the V100's 112 TFLOPS is 0.2 ms, and never less than one iteration's
# pass over the weights. It adds 1.4 s to each batch of 7, under 2 % of the case study.
# Memory: Θ = 0.7 · (32 - 12.4) GB and Δ = 0.875 MiB give Eq. (1)'s 7 rows of 1024 + 1024 tokens: 13.72 GB / 1.879 GB =
# 7.3.
CHATGLM_6B_V100 = Machine(
    ServingCurves(prefill=(2e-4, 0.0, 0.0, 0.0436), decode=(3e-6, 8e-4, 0.0, 0.0436)),
    KvMemory(theta_bytes=13_720_000_000, delta_bytes=917_504),
)

# The same model in 4 bits (VSQ): Θ = 0.7 · (32 - 4) GB gives the 10 rows of IV-A: 19.6 GB / 1.879 GB = 10.4. Magnus
# prints +193 to +234 % requests over VSQ. Over VS, our simulation with the fit above gives +122 % (12 against 5.4
# requests/s), so VSQ serves about 0.72 of VS's requests. The paper says that total tokens fall a little and that
# answers grow, but not by how much. We split 0.72 into 0.9 and 1 / 1.25: an iteration takes 1.45 times as long (10 rows
# at 300 cached tokens take 88 ms, 114 tokens/s against VS's 126), and answers are a quarter longer, which the workload
# of a simulation applies.
CHATGLM_6B_V100_4BIT = Machine(
    ServingCurves(prefill=(2.9e-4, 0.0, 0.0, 0.0632), decode=(4.35e-6, 1.16e-3, 0.0, 0.0632)),
    KvMemory(theta_bytes=19_600_000_000, delta_bytes=917_504),
)
QUANTIZED_ANSWER_GROWTH = 1.25

# In CCB, the continuous batching of Magnus's evaluation, running rows wait so many seconds beside the prefill when rows
# join. The paper does not print them. They are fitted to the requests that Magnus serves over CCB (+66 to +85 %, IV-B),
# which 0.5 to 0.6 s give; a cheap join would make CCB faster than Magnus.
CCB_JOIN_S = 0.55

# LLaMA2-13B, huggingface-transformers 4.35, A100 80 GB (SCLS 4.4, 5.1).
# Prefill: 2 · 13e9 FLOP a token at half of 312 TFLOPS is 0.167 ms.
# Decoding: Fig. 11 prints 13.5 s for 16 rows padded to 1024, and 7.6 s for 15 rows of 10 and then one of 1024, all over
# 128 iterations. Without the prefills (2.76 s; 0.05 + 0.19 s) an iteration takes 83.9 ms for 16 rows at 1088.5 cached
# tokens on average, and 57.5 ms for 15 rows at 74.5 and one at 1088.5 together:
#     d4 + 16·d2 + 17416·d1 = 83.9 ms,   2·d4 + 16·d2 + 2206·d1 = 57.5 ms
# With d2 = 0.1 ms (chosen; small beside the rest) d1 = 3.33 µs and d4 = 24.3 ms.
# Memory: Δ = 2 · 40 layers · 5120 · 2 bytes. The fixed batch of 16 at 2048 tokens under ζ = 0.9 puts M_ava between
# 29.8 and 31.7 GB.
LLAMA2_13B_A100_HF = Machine(
    ServingCurves(prefill=(1.67e-4, 0.0, 0.0, 0.0243), decode=(3.33e-6, 1e-4, 0.0, 0.0243)),
    KvMemory(theta_bytes=30_000_000_000, delta_bytes=819_200),
)

# LLaMA2-13B, deepspeed-inference 0.13, A100 80 GB. Figures 8 and 9 print no number; the paper says that the base is
# much smaller than HF's, and sets Γ to half (3 s against 6 s). From the hardware: reading 26 GB of weights at 1.75 TB/s
# takes 15 ms, a cached token's 819,200 bytes at half of 2 TB/s 0.8 µs, prefill at 200 TFLOPS 0.13 ms a token.
# Memory: 20.13 GB for the most that Algorithm 2 allows, 12 rows of 2048 tokens.
LLAMA2_13B_A100_DS = Machine(
    ServingCurves(prefill=(1.3e-4, 0.0, 0.0, 0.015), decode=(8e-7, 1e-4, 0.0, 0.015)),
    KvMemory(theta_bytes=20_200_000_000, delta_bytes=819_200),
)

# Vicuna-7B, huggingface-transformers, A100 80 GB (Sequence Scheduling, Table 4). Vanilla: 1.22 samples/s in batches of
# 16 over 377 iterations: 16 / 1.22 / 377 = 34.8 ms an iteration, of which short prompts' prefill is about a tenth of a
# ms. d1 is LLaMA2-13B's scaled by the bytes of a cached token (524,288 / 819,200): 2.13 µs; with about 250 cached
# tokens a row that is 8.5 ms. With d2 = 0.06 ms the remaining 25.2 ms are d4.
# Memory: 0.7 · (80 - 13.5) GB.
VICUNA_7B_A100 = Machine(
    ServingCurves(prefill=(9e-5, 0.0, 0.0, 0.0252), decode=(2.13e-6, 6e-5, 0.0, 0.0252)),
    KvMemory(theta_bytes=46_550_000_000, delta_bytes=524_288),
)

# llama2-7b, A6000 48 GB (BATON, Table 1): the Benchmark column prints 21,901 s for 30 batches of 4 over about 8,000
# iterations (91 ms each) and 6,619 s for 15 batches of 8 over about 4,000 (110 ms), both with about 48,000 cached
# tokens on average: 30 ms + 1.46 µs a cached token. Prefill: 13.5 GFLOP a token at 60 % of 155 TFLOPS is 0.15 ms.
# Memory: 48 GB without 13.5 GB of weights. Δ = 2 · 32 layers · 4096 · 2 bytes.
LLAMA2_7B_A6000 = Machine(
    ServingCurves(prefill=(1.5e-4, 0.0, 0.0, 0.03), decode=(1.46e-6, 0.0, 0.0, 0.03)),
    KvMemory(theta_bytes=34_500_000_000, delta_bytes=524_288),
)
