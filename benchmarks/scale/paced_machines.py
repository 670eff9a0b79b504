"""The machines whose pace a paced worker can keep, by the names of `--machine` and `--paced`."""

from scheduling.simulation import published_costs
from scheduling.simulation.published_costs import Machine

MACHINES: dict[str, Machine] = {
    "v100": published_costs.CHATGLM_6B_V100,  # Magnus: ChatGLM-6B on a V100
    "a100": published_costs.LLAMA2_13B_A100_DS,  # SCLS: LLaMA2-13B on an A100 under deepspeed-inference
}
