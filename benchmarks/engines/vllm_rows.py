"""Drives vLLM by lines of JSON; runs in vLLM's own environment, started by `benchmarks/engines/compared_engines.py`.

The first line names the model, the data type and the most rows; its answer says that vLLM is ready. Each further line
is a list of prompts with their limits; its answer has the generated ids.
"""

import json
import os
import sys

from vllm import LLM, SamplingParams, TokensPrompt


def main() -> None:
    """Answer line by line until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM's own output goes to standard error, which is the log
    terms = json.loads(sys.stdin.readline())
    engine = LLM(
        terms["model"],
        skip_tokenizer_init=True,
        dtype=terms["dtype"],
        max_num_seqs=terms["rows"],
        max_model_len=terms["longest"],
        enable_prefix_caching=False,
        **terms["options"],
    )
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        rows = json.loads(line)
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids, _ in rows]
        # Answers are greedy, and each one is as long as its limit says.
        wanted = [
            SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True, detokenize=False) for _, limit in rows
        ]
        results = engine.generate(prompts, wanted, use_tqdm=False)
        print(json.dumps([list(result.outputs[0].token_ids) for result in results]), file=answers)


if __name__ == "__main__":
    main()
