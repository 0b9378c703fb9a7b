"""Chapter 10's widget and pictures: what they say is what the scheduler does; a rehearsal takes the engine's steps."""

from __future__ import annotations

import pytest

from minipaged.block_manager import BlockManager
from minipaged.engine import LLM
from minipaged.plots import ch10 as plots
from minipaged.scheduler import Scheduler, rehearse
from minipaged.widgets.ch10 import POLICIES, REQUESTS, serve_twelve
from tests.test_engine import LENGTHS, WANTED, greedy, prompts
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("options", [{}, {"preemption": "swap"}, {"batching": "static"}])
@pytest.mark.parametrize("num_blocks", [7, 12])
def test_a_rehearsal_takes_the_steps_of_the_engine(options, num_blocks):
    how = dict(max_num_batched_tokens=20, enable_prefix_caching=False, **options)  # a rehearsal has no tokens to find
    llm = LLM(tiny_model("llama"), num_blocks=num_blocks, **how)
    llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)
    manager = BlockManager(num_blocks, num_host_blocks=num_blocks)
    moments, told = rehearse(Scheduler(manager, 64, 20, **options), zip(LENGTHS, WANTED, strict=True))
    assert len(moments) == len(llm.stats)
    for moment, step in zip(moments, llm.stats, strict=True):
        assert moment.count("prefill", "decode", "idle") == step.num_running
        assert moment.count("waiting", "away") == step.num_waiting and moment.count("swapped") == step.num_swapped
        assert (moment.blocks_used, moment.num_tokens) == (step.blocks_used, step.num_tokens)
        assert len(moment.preempted) == step.num_preempted
    assert [len(r.token_times) for r in told] == list(WANTED)


def test_times_follow_arrivals_and_costs():
    scheduler = Scheduler(BlockManager(20), 8, 8)
    moments, (first, second) = rehearse(
        scheduler, [(8, 3), (4, 2)], [0.0, 100.0], cost=lambda step: 2.0 + step.num_tokens
    )
    assert [(m.start, m.end) for m in moments[:3]] == [(0, 10), (10, 13), (13, 16)]
    assert first.token_times == [10, 13, 16] and first.gaps == [3, 3] and first.latency == 16
    assert second.token_times == [106, 109] and second.first_token == 6 and moments[3].start == 100
    assert first.finish_reason == "length" and scheduler.unfinished == 0


def test_the_widget_says_what_happens_under_each_policy():
    panel = serve_twelve()
    assert "12 requests share 30 blocks" in panel.sentence and "0 times" not in panel.sentence
    steps = {}
    for policy in POLICIES:
        panel.controls["policy"].value = policy
        steps[policy] = panel.picture.data["steps"]
    assert steps["static, longest reserved"] > steps["continuous, longest reserved"] > steps["continuous, recompute"]
    panel.controls["policy"].value = "continuous, recompute"
    panel.controls["blocks"].value = 80
    assert "0 times a request gave way" in panel.sentence
    panel.controls["load"].value = 30
    assert panel.picture.data["running"] < 2
    panel.controls["chunk"].value = 4
    assert panel.picture.data["n"] == len(REQUESTS)


def test_spans_cover_every_moment_of_every_request_once():
    scheduler = Scheduler(BlockManager(20, 4), 12, 16)
    moments, _ = rehearse(scheduler, REQUESTS, [2 * i for i in range(len(REQUESTS))])
    seconds = sum(end - start for *_, start, end in plots.spans(moments))
    assert seconds == sum((m.end - m.start) * len(m.states) for m in moments)
    assert {state for _, state, *_ in plots.spans(moments)} >= {"waiting", "prefill", "decode", "away"}


def test_the_pictures_say_their_numbers():
    moments, told = rehearse(Scheduler(BlockManager(30, 4), 12, 16), REQUESTS)
    rows = [("static + reserved", 200, 1.5, 0.2), ("continuous + paged", 80, 4.0, 0.8)]
    assert "continuous + paged takes 80 steps" in plots.ablation(rows).sentence
    assert "2.0 to 3.0 times as long as alone; B loses" in plots.slower([1.0, 1.0], [2.0, 3.0], [0, 1]).sentence
    assert "From blocks of 16 on" in plots.give_way_cost([1, 16, 64], [90.0, 20.0, 5.0], 43.0, 256).sentence
    assert "others wait 400" in plots.chunk_sizes([16, 64], [900.0, 300.0], [50.0, 400.0]).sentence
    assert "from 0.50 to 4.00" in plots.load([1, 2], [(0.5, 1, 2), (4, 5, 6)], [(0.1, 1, 2), (0.2, 1, 2)], "s").sentence
    gauges = plots.gauges(moments, 30, "a name", unit="step")
    assert gauges.data["gone"] == sum(r.preempted for r in told) > 0
