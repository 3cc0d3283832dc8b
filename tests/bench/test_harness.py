"""The harness on a machine with a fake clock, where every result is known exactly."""

import doctest
import gc
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from bench import harness
from bench.harness import Case, Figure, Fresh, Versus, measure, measure_figure, meets, order
from bench.parity import Parity, ParityError


class Machine:
    """A clock that advances only when a contender runs, and a log of the contenders."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def contender(self, name: str, cost: float | Callable[[int], float]) -> Callable[[], str]:
        """Return a contender. `cost` is the seconds per call, or a function of the number of previous calls."""

        def run() -> str:
            calls = self.log.count(name)
            self.log.append(name)
            self.now += cost(calls) if callable(cost) else cost
            return name

        return run


def case(machine: Machine, bar: str | None = None, **costs: float) -> Case:
    """Return a case whose first contender is ours and whose others are peers."""
    ours, *peers = costs
    contenders = {name: machine.contender(name, cost) for name, cost in costs.items()}
    return Case("toy", "(2, 3)", contenders, [Versus(ours, peer, bar) for peer in peers])


def test_ratio_is_peer_over_ours() -> None:
    machine = Machine()
    first, second = measure(case(machine, ours=0.25, slow=0.5, fast=0.125), rounds=4, seconds=1.0, clock=machine.clock)
    assert (first.ours, first.peer, first.quantity) == ("ours", "slow", "peer/ours")
    assert first.median == pytest.approx(2.0)
    assert second.median == pytest.approx(0.5)
    assert (first.ours_seconds, first.peer_seconds) == pytest.approx((0.25, 0.5))


def test_of_several_peers_the_fastest_is_compared() -> None:
    machine = Machine()
    costs = {"ours": 0.25, "slow": 0.5, "fast": 0.125}
    contenders = {name: machine.contender(name, cost) for name, cost in costs.items()}
    toy = Case("toy", "()", contenders, [Versus("ours", ("slow", "fast"), ">= 0.97")])
    (result,) = measure(toy, rounds=4, seconds=1.0, clock=machine.clock)
    assert (result.peer, result.met) == ("fast", False)
    assert (result.median, result.peer_seconds) == pytest.approx((0.5, 0.125))
    with pytest.raises(ValueError, match=r"contender \('absent'\) must be one of"):
        Case("toy", "()", contenders, [Versus("ours", ("slow", "absent"))])


def test_a_case_may_limit_the_rounds() -> None:
    machine = Machine()
    contenders = {name: machine.contender(name, 1.0) for name in ("ours", "peer")}
    toy = Case("toy", "()", contenders, [Versus("ours", "peer")], most_rounds=3)
    for requested, actual in ((15, 3), (2, 2)):
        (result,) = measure(toy, rounds=requested, seconds=1.0, clock=machine.clock)
        assert result.rounds == actual


@pytest.mark.parametrize(("close", "rounds"), [(0.0, 3), (0.04, 3), (0.06, 6)])
def test_a_ratio_close_to_its_bar_doubles_the_rounds(close: float, rounds: int) -> None:
    machine = Machine()
    contenders = {name: machine.contender(name, 1.0) for name in ("ours", "peer")}
    toy = Case("toy", "()", contenders, [Versus("ours", "peer", ">=0.95")], close=close)
    (result,) = measure(toy, rounds=3, seconds=1.0, clock=machine.clock)
    assert (result.rounds, result.met) == (rounds, True)


def test_a_goal_needs_a_reason_and_is_reported_beside_the_bar() -> None:
    machine = Machine()
    contenders = {name: machine.contender(name, cost) for name, cost in (("ours", 1.0), ("peer", 2.0))}
    versus = [Versus("ours", "peer", ">= 1.5", goal=goal, reason="why") for goal in (">= 2", ">= 3")]
    first, second = measure(Case("toy", "()", contenders, versus), rounds=2, seconds=1.0, clock=machine.clock)
    assert (first.met, first.goal, first.reached, first.reason) == (True, ">= 2", True, "why")
    assert (second.met, second.reached) == (True, False)
    figure = measure_figure(Figure("memory", "()", lambda: 3.0, "MiB", goal="<= 2", reason="why"))
    assert (figure.bar, figure.met, figure.reached, figure.reason) == (None, None, False, "why")
    with pytest.raises(ValueError, match=r"goal \('>= 2'\) must have a reason.*got reason None"):
        Versus("ours", "peer", goal=">= 2")
    with pytest.raises(ValueError, match=r"goal \(None\) must have a reason.*got reason 'why'"):
        Figure("memory", "()", lambda: 3.0, "MiB", reason="why")
    with pytest.raises(ValueError, match=r"bar \('more'\) must read"):
        Versus("ours", "peer", goal="more", reason="why")


def test_ratio_may_be_ours_over_peer() -> None:
    machine = Machine()
    contenders = {"ours": machine.contender("ours", 0.75), "peer": machine.contender("peer", 0.25)}
    toy = Case("toy", "()", contenders, [Versus("ours", "peer", "<= 4.0", "ours/peer")])
    (result,) = measure(toy, rounds=2, seconds=1.0, clock=machine.clock)
    assert result.median == pytest.approx(3.0)
    assert result.met is True


def test_the_default_clock_is_perf_counter() -> None:
    assert inspect.signature(measure).parameters["clock"].default is time.perf_counter


def test_median_and_quartiles_are_those_of_the_rounds() -> None:
    """Rounds give ratios 1, 2, 3, 4, 100: one stalled round does not change the median."""
    machine = Machine()
    warm = 1  # calls before the first round: calls of a second or more run only once
    peer = machine.contender("peer", lambda calls: [1.0, 2.0, 3.0, 4.0, 100.0][calls - warm] if calls >= warm else 1.0)
    contenders = {"ours": machine.contender("ours", 1.0), "peer": peer}
    toy = Case("toy", "()", contenders, [Versus("ours", "peer")])
    (result,) = measure(toy, rounds=5, seconds=0.5, clock=machine.clock)
    assert (result.low, result.median, result.high) == pytest.approx((2.0, 3.0, 4.0))
    assert result.rounds == 5


def test_ratios_are_computed_within_each_round() -> None:
    """The machine halves its speed at each round. Ratios within a round stay 2; ratios across rounds would not."""
    machine = Machine()
    slower = lambda base: lambda calls: base * 2.0**calls  # noqa: E731
    contenders = {name: machine.contender(name, slower(cost)) for name, cost in (("ours", 1.0), ("peer", 2.0))}
    (result,) = measure(Case("toy", "()", contenders, [Versus("ours", "peer")]), 4, 0.5, machine.clock)
    assert (result.low, result.high) == pytest.approx((2.0, 2.0))


def test_order_matches_its_specification() -> None:
    assert ["".join(order("abc", turn)) for turn in range(7)] == ["abc", "bca", "cab", "cba", "acb", "bac", "abc"]
    assert ["".join(order("abcd", turn)) for turn in range(5)] == ["abdc", "bcad", "cdba", "dacb", "cdba"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_positions_and_neighbours_are_balanced(count: int) -> None:
    names = "abcdefg"[:count]
    rounds = [order(names, turn) for turn in range(2 * count)]
    assert all(sorted(row) == list(names) for row in rounds)
    positions = Counter((name, position) for row in rounds for position, name in enumerate(row))
    neighbours = Counter(pair for row in rounds for pair in pairwise(row))
    assert len(positions) == count * count and set(positions.values()) == {2}
    assert len(neighbours) == count * (count - 1) and set(neighbours.values()) <= {2}


def test_the_first_call_after_another_contender_is_not_timed() -> None:
    """Two equal contenders, on a machine that takes three times as long when the contender changes."""
    machine = Machine()

    def twin(name: str) -> Callable[[], object]:
        def run() -> None:
            machine.now += 0.125 if machine.log[-1:] == [name] else 0.375
            machine.log.append(name)

        return run

    toy = Case("toy", "()", {"ours": twin("ours"), "twin": twin("twin")}, [Versus("ours", "twin")])
    (result,) = measure(toy, rounds=3, seconds=0.5, clock=machine.clock)
    assert (result.ours_seconds, result.peer_seconds) == pytest.approx((0.125, 0.125))


def test_rounds_are_interleaved_in_that_order() -> None:
    machine = Machine()
    measure(case(machine, a=1.0, b=1.0, c=1.0), rounds=6, seconds=1.0, clock=machine.clock)
    assert "".join(machine.log) == "abc" + "abcbcacabcbaacbbac"  # the warm-up, then the rounds


def test_short_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    machine = Machine()
    measure(case(machine, ours=1 / 64, peer=1 / 256), rounds=1, seconds=0.5, clock=machine.clock)
    tail = machine.log[-(33 + 129) :]
    assert tail == ["ours"] * 33 + ["peer"] * 129  # the first of each is not timed


def test_one_stalled_warm_up_call_does_not_shorten_the_samples() -> None:
    machine = Machine()
    contenders = {"ours": machine.contender("ours", lambda calls: 0.75 if calls == 0 else 0.125)}
    measure(Case("toy", "()", contenders, []), rounds=1, seconds=0.5, clock=machine.clock)
    assert machine.log.count("ours") == 3 + 1 + 4  # warm-up, one call that is not timed, then 0.5 s of 0.125 s


def test_fresh_is_timed_without_its_preparation() -> None:
    machine = Machine()
    prepare = machine.contender("prepare", 100.0)
    run = machine.contender("run", 0.5)
    contenders: dict[str, Callable[[], object]]
    contenders = {"ours": Fresh(prepare, lambda inputs: (inputs, run())), "peer": machine.contender("peer", 1.0)}
    (result,) = measure(Case("toy", "()", contenders, [Versus("ours", "peer")]), 3, 1.0, machine.clock)
    assert result.median == pytest.approx(2.0)
    assert machine.log.count("prepare") == machine.log.count("run")


def test_rates_and_ratios_per_unit_of_work() -> None:
    """The peer does ten times the work in twice the time, so it is five times as fast per operation."""
    machine = Machine()
    contenders = {"ours": machine.contender("ours", 0.5), "mm": machine.contender("mm", 1.0)}
    toy = Case(
        "toy",
        "()",
        contenders,
        [Versus("ours", "mm", per="flops")],
        flops={"ours": 1e9, "mm": 1e10},
        bytes={"ours": 2e9},
    )
    (result,) = measure(toy, rounds=2, seconds=0.5, clock=machine.clock)
    assert result.median == pytest.approx(0.2)
    assert result.quantity == "peer/ours per flops"
    assert (result.ours_gflops, result.peer_gflops, result.ours_gbytes) == pytest.approx((2.0, 10.0, 4.0))
    assert result.peer_gbytes is None


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_disabled_only_while_timing(enabled: bool) -> None:
    seen = []
    if not enabled:
        gc.disable()
    try:
        measure(Case("toy", "()", {"ours": lambda: seen.append(gc.isenabled())}, []), rounds=1, seconds=1e-5)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen
    assert not any(seen)


@pytest.mark.parametrize(
    ("value", "bar", "met"),
    [
        (1.4, ">= 1.4", True),
        (1.39, ">= 1.4", False),
        (4.0, "<= 4.0", True),
        (4.01, "<= 4.0", False),
        (math.nan, ">= 1", False),
        (math.nan, "<=1", False),
        (9.0, None, None),
    ],
)
def test_bars(value: float, bar: str | None, met: bool | None) -> None:
    assert meets(value, bar) is met
    assert measure_figure(Figure("memory", "()", lambda: value, "MiB", bar)).met is met


@pytest.mark.parametrize(("bar", "met"), [(">= 2.5", False), (">= 1.5", True), ("<= 1.5", False), ("<= 2.5", True)])
def test_bars_apply_to_the_median_ratio(bar: str, met: bool) -> None:
    machine = Machine()
    (result,) = measure(case(machine, bar, ours=1.0, peer=2.0), rounds=2, seconds=1.0, clock=machine.clock)
    assert (result.bar, result.met) == (bar, met)


def test_parity_is_checked_before_timing() -> None:
    def clock() -> float:
        raise AssertionError("the clock was read")

    contenders = {"ours": lambda: torch.tensor([1.0, 2.5]), "peer": lambda: torch.tensor([1.0, 2.0])}
    toy = Case("toy", "(2,)", contenders, [Versus("ours", "peer")], Parity("peer", rtol=0.0, atol=0.25))
    with pytest.raises(ParityError) as caught:
        measure(toy, clock=clock)
    assert str(caught.value) == (
        "toy (2,): output 0 of ours (2.5 at flat index 1) must equal that of peer within atol=0.25, rtol=0; "
        "got 2 there, a difference of 0.5; 1 of 2 elements differ. Nothing was timed."
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Case("toy", "()", {"a": lambda: 1}, [Versus("a", "b")]),
            r"toy: contender \('b'\) must be one of \['a'\]; got 'b'\.",
        ),
        (
            lambda: Case("toy", "()", {"a": lambda: 1}, [], Parity("c")),
            r"toy: contender \('c'\) must be one of \['a'\]; got 'c'\.",
        ),
        (
            lambda: Case("toy", "()", {"a": int, "b": int}, [Versus("a", "b", per="bytes")], bytes={"a": 1}),
            r"toy: bytes \(\['a'\]\) must name every contender compared per bytes; got none for 'b'\.",
        ),
        (
            lambda: Versus("a", "b", "> 1.4"),
            r"bench: bar \('> 1\.4'\) must read '>= NUMBER' or '<= NUMBER'; got '> 1\.4'",
        ),
        (lambda: Versus("a", "b", ">= 1.4x"), r"bench: bar \('>= 1\.4x'\) must read"),
        (lambda: Figure("a", "()", float, "MiB", "low"), r"bench: bar \('low'\) must read"),
        (lambda: measure(Case("toy", "()", {}, []), rounds=0), r"measure: rounds \(0\) and seconds \(0\.02\) must be"),
        (
            lambda: measure(Case("toy", "()", {}, []), seconds=-1.0),
            r"rounds \(15\) and seconds \(-1\.0\) must be positive",
        ),
        (
            lambda: measure(Case("toy", "()", {"a": int}, []), clock=lambda: 7.0),
            r"measure: clock must advance while a runs; got 10000 calls in 0 s",
        ),
    ],
)
def test_errors_contain_the_values(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_docstring_examples() -> None:
    assert doctest.testmod(harness).failed == 0
