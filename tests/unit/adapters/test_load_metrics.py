from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.protocol import EngineLoad

metrics = LoadMetrics(running=("new_running", "old_running"), kv_usage=("kv",))


def test_counts_are_summed_and_of_ratios_the_fullest_counts() -> None:
    text = 'new_running{r="0"} 1\nnew_running{r="1"} 2\nkv{r="0"} 0.5\nkv{r="1"} 0.25\n'

    assert metrics.load(text) == EngineLoad(running_requests=3, kv_usage=0.5)


def test_an_older_name_is_read_where_the_newer_is_missing() -> None:
    assert metrics.load("old_running 4\n").running_requests == 4
    assert metrics.load("old_running 4\nnew_running 1\n").running_requests == 1


def test_impossible_values_are_left_out_or_bounded() -> None:
    load = metrics.load("new_running -1\nkv 1.7\n")

    assert load == EngineLoad(kv_usage=1.0)
    assert metrics.load("new_running 1e308\nnew_running 1e308\n").running_requests == 2**63
