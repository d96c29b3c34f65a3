"""The answers of benchmarks.scaling: files of figures, plans, and the fit of measured times."""

from __future__ import annotations

import itertools
import json
import math
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scaling import (
    FIGURES,
    FULLEST,
    Figures,
    Machine,
    Model,
    Plan,
    apart,
    balancers,
    collocated,
    figures_of,
    json_of,
    read_figures,
    simulate,
    smallest,
    steps,
    table,
)
from benchmarks.scaling_check import capacity, fit_batches, fit_runs, nginx_config
from benchmarks.simulation import Load

CONTENT: dict[str, Any] = {
    "name": "a test",
    "service": {"request_ms": 0.5, "answer_ms": 0.3, "batch_ms": 0.4, "reply_ms": 0.4},
    "call_ms": 1.0,
    "client_ms": 2.0,
    "model": {"run_ms": [[10, 10.0], [40, 10.0]], "instances": 1, "max_rows": 4},
    "flags": {"max_batches_in_flight": 2, "max_batch_tokens": 1000},
    "tokens": [10],
}


@pytest.fixture
def figures() -> Figures:
    """A service with a capacity of 1,000 requests/s, and a Triton with one of 400."""
    return figures_of(CONTENT)


def test_figures_are_read_and_written(figures: Figures, tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    written.write_text(json.dumps(json_of(figures)))
    assert read_figures(written) == figures
    assert figures.service_capacity == pytest.approx(1000.0)
    assert figures.triton_capacity == pytest.approx(400.0)


def test_optional_keys_have_the_defaults_of_the_flags() -> None:
    content = deepcopy(CONTENT)
    del content["flags"], content["client_ms"]
    content["model"]["instances"] = 3
    figures = figures_of(content)
    assert (figures.settings.in_flight, figures.settings.max_tokens, figures.client) == (4, 16384, 0.0)
    assert figures.model.dynamic_batching


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"run_ms": [[10, 1.0]], "max_rows": 4}}, "at least two points"),
        ({"model": {"run_ms": [[10, 1.0], [10, 2.0]], "max_rows": 4}}, "at least two points"),
        ({"model": {"run_ms": [[10, 1.0], [20, 2.0]]}}, "the key max_rows is missing"),
        ({"service": {"request_ms": 1.0}}, "the key answer_ms is missing"),
        ({"flags": {"max_batch_token": 5}}, "unknown key flags.max_batch_token"),
        ({"rows": 3}, "unknown key rows"),
        ({"tokens": []}, "at least one length"),
        ({"tokens": [0]}, "at least one length"),
    ],
)
def test_wrong_figures_name_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures_of({**CONTENT, **change})


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.json")), ids=lambda path: path.stem)
def test_the_files_of_figures_can_be_read(path: Path) -> None:
    assert read_figures(path).triton_capacity > 0


def test_a_run_is_linear_between_and_beyond_the_points() -> None:
    model = Model(((0.0, 4.0), (100.0, 4.0), (200.0, 8.0)), instances=1, max_rows=8, row=0.5)
    runs = [model.seconds(rows, tokens) for rows, tokens in ((1, 50), (2, 100), (2, 150), (1, 200), (4, 300))]
    assert runs == pytest.approx([0.0045, 0.005, 0.007, 0.0085, 0.014])


def test_a_lone_request_takes_the_sum_of_all_times(figures: Figures) -> None:
    result = simulate(figures, Plan(1), Load(0.5, 100.0, figures.tokens), seed=1)
    assert result.p50 == pytest.approx(0.002 + 0.0005 + 0.0004 + 0.001 + 0.010 + 0.0004 + 0.0003)
    assert result.rows == pytest.approx(1.0, abs=0.05)


def test_on_one_machine_a_request_takes_the_work_of_the_others_too(figures: Figures) -> None:
    machine = Machine(services=1, others=1, generator=0.001, proxy=0.002, triton=0.004)
    load = Load(0.5, 100.0, figures.tokens)
    alone = simulate(figures, Plan(2, 1), load, seed=1).p50
    assert simulate(figures, Plan(2, 1), load, seed=1, machine=machine).p50 == pytest.approx(alone + 0.007)
    assert capacity(figures, machine) == pytest.approx(1 / (0.001 + 0.002 + 0.004 / 4))
    all_on_one = Machine(services=1, others=None, generator=0.001, proxy=0.002, triton=0.004)
    assert capacity(figures, all_on_one) == pytest.approx(1 / (0.001 + 0.001 + 0.002 + 0.004 / 4))


def test_more_load_than_capacity_is_not_held(figures: Figures) -> None:
    outcome = simulate(figures, Plan(1), Load(450.0, 30.0, figures.tokens), seed=1).outcome
    assert outcome.percentile(0.99) > 2.0
    assert outcome.rate == pytest.approx(400.0, rel=0.02)


def test_two_tritons_hold_what_one_does_not(figures: Figures) -> None:
    load = Load(600.0, 20.0, figures.tokens)
    assert simulate(figures, Plan(2, 1), load, seed=1).p99 > 1.0
    assert simulate(figures, Plan(2, 2), load, seed=1).p99 < 0.1


def test_plans_begin_with_what_the_work_alone_needs(figures: Figures) -> None:
    first = next(collocated(figures, 1000.0, "random"))
    assert first == Plan(math.ceil(1000 / 400 / FULLEST), 0, "random")
    plans = list(itertools.islice(apart(figures, 1000.0, "pinned", "random"), 8))
    assert plans[0] == Plan(2, 3, "pinned", "random")
    assert [plan.services for plan in plans] == [2, 3, 4, 5, 6, 2, 3, 4]
    assert [*steps(9, 25)] == [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24]


def test_the_smallest_plan_holds_the_p99(figures: Figures) -> None:
    found = smallest(figures, 500.0, 0.05, collocated(figures, 500.0, "round_robin"))
    assert found is not None
    plan, result = found
    assert plan.services == 2
    assert result.p99 <= 0.05
    assert smallest(figures, 500.0, 0.001, collocated(figures, 500.0, "round_robin")) is None


def test_the_table_has_a_row_for_each_question(figures: Figures) -> None:
    rows = table(figures, [200.0], [50.0, 1.0], "round_robin", "round_robin")[1:]
    assert rows[0].startswith("| 200 | 50 | 1 pod, a Triton in each | ")
    assert rows[1].startswith("| 200 | 50 | 1 service, 1 Triton apart | ")
    assert rows[2:] == [
        "| 200 | 1 | none holds it, a Triton in each pod | - | - | - | - | - |",
        "| 200 | 1 | none holds it, Tritons apart | - | - | - | - | - |",
    ]


def test_few_pinned_connections_are_worse_than_round_robin(figures: Figures) -> None:
    """With two connections for each of two pods, some seeds put most of them on one pod."""
    rate, rows = balancers(figures, pods=2, share=0.7, requests=300)
    assert rate == pytest.approx(2 * 0.7 * 400)
    worst = {row.split("|")[1].strip(): row.split("|")[4].strip() for row in rows[1:]}
    assert int(worst["pinned, 4 connections"]) > 3 * int(worst["round robin"])


def test_runs_are_fitted_by_rows_and_tokens() -> None:
    cells = [(rows, width, 2.0 + 0.1 * rows + 0.01 * rows * width) for rows in (1, 4, 16) for width in (8, 64)]
    assert fit_runs(cells) == pytest.approx((2.0, 0.1, 0.01))
    without_rows = [(rows, width, 2.0 - 0.01 * rows + 0.01 * rows * width) for rows, width, _ in cells]
    assert fit_runs(without_rows)[1] == 0.0


def test_cpu_time_is_fitted_by_rows_per_batch() -> None:
    points = [(rows, 0.2 + 0.6 / rows) for rows in (1.0, 2.5, 8.0)]
    assert fit_batches(points) == pytest.approx((0.2, 0.6))
    chance = random.Random(1)
    noisy = [(rows, cpu * chance.uniform(0.95, 1.05)) for rows, cpu in points]
    assert fit_batches(noisy) == pytest.approx((0.2, 0.6), rel=0.15)
    assert fit_batches([(1.0, 0.2), (4.0, 0.4)]) == pytest.approx((0.3, 0.0))


def test_nginx_has_both_services_and_the_policy() -> None:
    config = nginx_config(8080, [9001, 9002], "least_conn;")
    assert "listen 127.0.0.1:8080" in config
    assert "least_conn; server 127.0.0.1:9001; server 127.0.0.1:9002;" in config
    assert config.count("{") == config.count("}")
    assert "/dev/null" not in config  # nginx removes its pid file
