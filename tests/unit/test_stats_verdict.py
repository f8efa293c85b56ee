import pytest
from hypothesis import given
from hypothesis import strategies as st
from refill.stats.verdict import Value, judge, judge_seen, noise_floor

positive = st.floats(0.01, 1e4)


def values(*numbers):
    return [Value(n) for n in numbers]


def floor(*numbers, relative=True):
    return [noise_floor(values(*numbers), relative)]


def test_floor_by_hand():
    # The published drain times of A1, B2 and C2.
    assert floor(683.679, 1026.894, 474.362)[0].size == pytest.approx(1026.894 / 474.362)
    assert floor(0.97, 0.99, relative=False)[0].size == pytest.approx(0.02)


def test_published_drain_of_b4_is_within_the_published_noise():
    verdict = judge(values(283.9), values(474.4), "below", floor(683.7, 1026.9, 474.4))
    assert verdict.verdict == "undecidable"
    assert "1.67x is within the spread 2.16x over 3 identical runs" in verdict.why


def test_effect_above_the_floor():
    assert judge(values(256.6), values(4.3), "above", floor(4.3, 4.1, 4.1)).verdict == "reproduced"
    assert judge(values(256.6), values(4.3), "below", floor(4.3, 4.1)).verdict == "contradicted"


@pytest.mark.parametrize("numbers", [(), (4.1,)])
def test_no_floor_is_undecidable_and_says_why(numbers):
    verdict = judge(values(256.6), values(4.3), "above", floor(*numbers))
    assert verdict.verdict == "undecidable"
    assert f"{len(numbers)} identical runs, at least 2 are needed" in verdict.why


def test_the_largest_floor_counts():
    floors = floor(1.0, 1.1) + floor(1.0, 3.0)
    assert judge(values(2.0), values(1.0), "above", floors).verdict == "undecidable"


def test_repeats_are_not_averaged():
    # The means differ by far more than the floor, but one repeat lies on the other side.
    verdict = judge(values(10.0, 0.9), values(1.0, 1.0), "above", floor(1.0, 1.05))
    assert verdict.verdict == "undecidable"
    assert "overlap" in verdict.why


def test_effect_is_the_closest_pair():
    assert judge(values(10.0, 4.0), values(1.0, 2.0), "above", floor(1.0, 1.1)).effect == 2.0


def test_a_lower_bound_decides_only_on_the_larger_side():
    bound = [Value(180.0, bound=True)]
    assert judge(bound, values(12.0), "above", floor(12, 13)).verdict == "reproduced"
    assert judge(values(12.0), bound, "below", floor(12, 13)).verdict == "reproduced"
    assert judge(values(300.0), bound, "above", floor(12, 13)).verdict == "undecidable"


def test_what_is_too_short_to_resolve_decides_only_on_the_smaller_side():
    short = [Value(0.25, at_most=True)]
    assert judge(short, values(12.0), "below", floor(12, 13)).verdict == "reproduced"
    assert judge(short, values(0.1), "above", floor(12, 13)).verdict == "undecidable"
    assert noise_floor([*short, Value(0.3)], relative=True).size is None


def test_a_floor_with_a_lower_bound_is_no_floor():
    found = noise_floor([Value(1.0), Value(180.0, bound=True)], relative=True)
    assert found.size is None
    assert "lower bound" in found.why


def test_shares_compare_by_difference():
    same = floor(0.99, 1.0, relative=False)
    assert judge(values(0.6), values(1.0), "below", same).verdict == "reproduced"
    assert judge(values(1.0), values(1.0), "below", same).verdict == "undecidable"
    assert judge(values(0.0), values(1.0), "below", same).verdict == "reproduced"


def test_zero_has_no_factor():
    assert judge(values(1.0), values(0.0), "above", floor(1, 2)).verdict == "undecidable"
    assert noise_floor(values(0.0, 1.0), relative=True).size is None


def test_seen():
    assert judge_seen([True, True], expected=True).verdict == "reproduced"
    assert judge_seen([False], expected=True).verdict == "contradicted"
    assert judge_seen([False], expected=False).verdict == "reproduced"
    assert judge_seen([True, False], expected=True).verdict == "undecidable"


@given(
    st.lists(positive, min_size=1, max_size=4),
    st.lists(positive, min_size=1, max_size=4),
    st.lists(positive, min_size=0, max_size=4),
)
def test_the_opposite_claim_gets_the_opposite_verdict(left, right, same):
    opposite = {"reproduced": "contradicted", "contradicted": "reproduced"}
    above = judge(values(*left), values(*right), "above", floor(*same)).verdict
    below = judge(values(*left), values(*right), "below", floor(*same)).verdict
    assert below == opposite.get(above, above)


@given(st.lists(positive, min_size=2, max_size=6))
def test_an_identical_run_never_beats_its_own_floor(same):
    for one in same:
        for other in same:
            assert judge(values(one), values(other), "above", floor(*same)).verdict == "undecidable"


def test_refuses_nothing_to_compare():
    with pytest.raises(ValueError, match="not measured"):
        judge([], values(1.0), "above", floor(1, 2))
    with pytest.raises(ValueError, match="above or below"):
        judge(values(1.0), values(1.0), "sideways", floor(1, 2))


def test_equal_values_give_no_floor():
    for relative in (True, False):
        assert noise_floor(values(2.0, 2.0), relative).size is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(number):
    with pytest.raises(ValueError, match="a measured value is a number"):
        Value(number)
    with pytest.raises(ValueError, match="a resolution is 0 or more"):
        Value(1.0, resolution=number)
