"""What servers say of their load, as they say it."""

from hypothesis import given
from hypothesis import strategies as st

from inference.remote.server_load import ServerLoad, load_from_metrics, load_from_slots

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="bundled"} 3.0
vllm:num_requests_waiting{engine="0",model_name="bundled"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="bundled",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="bundled"} 0.25
vllm:num_preemptions_total{engine="0",model_name="bundled"} 7.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="2730",num_cpu_blocks="None"} 1.0
"""


def test_vllm_says_what_runs_waits_was_preempted_and_how_large_its_cache_is() -> None:
    assert load_from_metrics(VLLM) == ServerLoad(3, 2, 7, 0.25, 128 * 2730, 128)


def test_several_engines_of_one_server_count_together() -> None:
    page = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    assert load_from_metrics(page).running == 7


def test_sglang_and_llamacpp_have_names_of_their_own() -> None:
    page = "sglang:num_running_reqs 5\nsglang:num_queue_reqs 1\nsglang:max_total_num_tokens 4096\n"
    assert load_from_metrics(page) == ServerLoad(running=5, waiting=1, kv_tokens=4096)
    page = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n"
    assert load_from_metrics(page) == ServerLoad(running=2, waiting=0)


def test_figures_that_are_none_are_unknown() -> None:
    page = 'vllm:num_requests_running NaN\nvllm:num_requests_waiting -3\nvllm:cache_config_info{block_size="0"} 1\n'
    assert load_from_metrics(page) == ServerLoad()


def test_llamacpps_slots_say_how_many_rows_run_where_its_metrics_are_off() -> None:
    page = '[{"id": 0, "n_ctx": 512, "is_processing": true}, {"id": 1, "n_ctx": 512, "is_processing": false}]'
    assert load_from_slots(page) == ServerLoad(running=1)
    assert load_from_slots('[1, {"is_processing": 1}]') == load_from_slots("{}") == ServerLoad(running=0)


@given(st.text(max_size=200))
def test_any_page_is_read(page: str) -> None:
    load_from_slots(page)
    load_from_metrics("vllm:num_requests_running " + page)
    load_from_metrics("vllm:cache_config_info{" + page)
