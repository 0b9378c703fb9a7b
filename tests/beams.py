"""Two results of a beam search compared: tokens exactly, log-probabilities up to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest


def assert_same_beams(got, wanted):
    """Every field equal; a step of another make-up may round in another way, and how differs from CPU to CPU."""
    plain = [[replace(one, cum_logprob=0.0, score=0.0) for one in beams] for beams in (got, wanted)]
    assert plain[0] == plain[1]
    for field in ("cum_logprob", "score"):
        wanted_values = [getattr(one, field) for one in wanted]
        assert [getattr(one, field) for one in got] == pytest.approx(wanted_values, rel=1e-5, abs=1e-5)
