"""Studies of order, heads, normalisation, data, the three advantages and sizes: complete runs, tasks and verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.image_files import idx_bytes
from studies import advantages, data, heads, normalisation, order, sizes
from studies.__main__ import main
from studies._compare import leads, parameters
from studies._strokes import alphabet, draw_letters

NAMES = ("order", "heads", "normalisation", "data", "advantages", "sizes")
WORDS = ("held: ", "did not hold here: ", "held in part: ")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_study_gives_figure_results_and_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--quick", "--seeds", "1", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr()
    first = [line for line in output.out.splitlines() if line.startswith(WORDS)]
    assert len(first) == 1 and first[0].endswith(".")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    measured = json.loads((tmp_path / "results.json").read_text())["measured"]
    assert measured and len(output.err.splitlines()) == len(measured)
    assert main([name, "--quick", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""  # all results were stored


def test_studies_have_the_numbers_of_their_claims() -> None:
    assert [study.NUMBER for study in (order, heads, normalisation, data, advantages, sizes)] == [*range(7, 13)]


# --- order


def test_order_asks_for_the_preceding_and_the_marked_symbol() -> None:
    ids, before, marked = order.rows(5, 7, 3, generator())
    for row, names, one in zip(ids.tolist(), before.tolist(), marked.tolist(), strict=True):
        assert [value % 5 for value in row[:-1]] == names[1:]
        assert [value - 5 for value in row if value >= 5] == one


@pytest.mark.parametrize("way", order.WAYS)
def test_only_without_positions_and_mask_is_a_model_permutation_equivariant(way: str) -> None:
    torch.manual_seed(0)
    moved = order.shuffled(order.Reader(way, order.QUICK), order.QUICK, generator())
    assert (moved < order.EXACT) == (way == order.NONE)


def _order(share: float, none: float = 0.06, causal: float = 0.06, moved: float = 0.0) -> dict[str, list[Any]]:
    shares = {order.NONE: none, order.CAUSAL: causal}
    return {
        way: [{"before": [shares.get(way, share)] * 7, "shuffled": moved if way == order.NONE else 0.5}]
        for way in order.WAYS
    }


def test_verdicts_of_order() -> None:
    settings = order.Settings()
    assert order.judge(_order(1.0), settings).startswith("held: without positions, a shuffled row gave the shuffled")
    output = order.judge(_order(1.0, causal=0.5), settings)
    assert output.startswith("held in part") and "but a causal mask alone also reveals order (50%)" in output
    assert output.endswith("in rows of 128, trained on at most 32: sinusoidal 100%, learned 100%, rotary 100%.")
    assert order.judge(_order(0.5, none=0.5, causal=0.5, moved=0.1), settings).startswith("did not hold here: without")
    assert "but positions gave sinusoidal 50%" in order.judge(_order(0.5), settings)


# --- heads


def test_the_shelf_has_the_requested_keys() -> None:
    settings = heads.Settings()
    keys, values, asked, wanted = heads.shelves(settings, 4, 50, generator())
    for row in zip(keys.tolist(), values.tolist(), asked.tolist(), wanted.tolist(), strict=True):
        shelf = dict(zip(row[0], row[1], strict=True))
        assert len(shelf) == settings.items and len(set(row[2])) == 4
        assert [shelf[key] for key in row[2]] == row[3]


def test_the_number_of_heads_does_not_change_the_number_of_parameters() -> None:
    settings = heads.Settings()
    assert len({parameters(heads.Finder(number, 4, settings)) for number in settings.heads}) == 1


def test_verdicts_of_heads() -> None:
    good, bad = [0.98, 0.99], [0.50, 0.52]
    assert heads.judge({4: {1: bad, 4: good}}) == (
        "held: for 4 keys at once, one head returned 51% of the values and 4, the best number of several, 98%."
    )
    assert heads.judge({1: {1: good, 4: good, 8: bad}}).startswith("did not hold here: for one key")
    output = heads.judge({1: {1: good, 4: good, 8: bad}, 4: {1: bad, 4: good, 8: bad}})
    assert output.startswith("held in part: for 4") and "(8: 51%); but for one key" in output


# --- normalisation


def test_sums_add_the_own_and_the_marked_symbol() -> None:
    ids, sums = normalisation.rows(5, 6, 4, generator())
    for row, expected in zip(ids.tolist(), sums.tolist(), strict=True):
        assert [(value + max(row)) % 5 for value in row] == expected


def test_models_have_the_requested_norms() -> None:
    settings = normalisation.QUICK
    ids, _ = normalisation.rows(settings.symbols, 6, 3, generator())
    for norm, kind in normalisation.NORMS.items():
        model = normalisation.Adder(settings, 2, norm)
        assert sum(isinstance(part, kind) for part in model.modules()) == 5
        assert model(ids).shape == (3, 6, settings.symbols)
    after = normalisation.Adder(settings, 2, norm_position="after")
    assert not any(block.around_attention.norm_first for block in after.blocks)
    assert sum(isinstance(part, torch.nn.LayerNorm) for part in after.modules()) == 4


def test_rows_are_independent_of_their_batch_only_with_layer_norm() -> None:
    settings = normalisation.QUICK
    ids, _ = normalisation.rows(settings.symbols, 6, 3, generator())
    for norm in normalisation.NORMS:
        torch.manual_seed(0)
        model = normalisation.Adder(settings, 2, norm)
        assert torch.allclose(model(ids)[:1], model(ids[:1]), atol=1e-5) == (norm == "layer")


def _norms(layer: Sequence[float], batch: Sequence[float], before: Sequence[float], after: Sequence[float]) -> str:
    batches = {
        (norm, varying, size): shares
        for norm, shares in (("layer", layer), ("batch", batch))
        for varying in (False, True)
        for size in (1, 32)
    }
    rates = {
        (position, warm, 0.01): shares
        for position, shares in (("before", before), ("after", after))
        for warm in (False, True)
    }
    return normalisation.judge(batches, rates)


def test_verdicts_of_normalisation() -> None:
    good, bad = [0.9, 0.92], [0.4, 0.42]
    assert _norms(good, bad, good, bad).startswith(
        "held: in batches of 1 row, layer and batch norm reached 91% against 41%"
    )
    assert _norms(bad, good, bad, bad).startswith("did not hold here: in batches of 1 row")
    output = _norms(good, bad, bad, good)
    assert output.startswith("held in part") and "but without warm-up at the highest rate (0.01)" in output


# --- data


def test_letters_can_be_classified_by_nearest_neighbours() -> None:
    draw = generator()
    letters = alphabet(4, draw)
    labels = torch.randint(4, (600,), generator=draw)
    pictures = draw_letters(letters[labels], 12, draw, chunk=250).flatten(1)
    nearest = torch.cdist(pictures[500:], pictures[:500]).argmin(-1)
    assert (labels[:500][nearest] == labels[500:]).float().mean() > 0.6  # chance: 0.25
    assert not torch.equal(pictures[0], pictures[1]) and abs(pictures.mean()) < 0.6


def test_both_image_models_have_similar_numbers_of_parameters() -> None:
    settings = data.Settings()
    vit, cnn = (parameters(data.model_of(way, settings.classes, settings)) for way in data.WAYS)
    assert abs(vit - cnn) < 0.05 * vit


def test_pretraining_and_training_share_no_class(tmp_path: Path) -> None:
    labels = np.arange(240, dtype=np.uint8) % 6
    pixels = np.zeros((240, 8, 8), np.uint8) + 40 * labels[:, None, None]
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    world = data.from_folder(tmp_path, data.QUICK, 0)
    shades = [{round(value, 3) for value in part.images.mean((1, 2, 3)).tolist()} for part in world]
    assert len(shades[0]) == len(shades[1]) == 3 and not shades[0] & shades[1] and shades[1] == shades[2]
    assert [len(part.labels) for part in world] == [40, 20, 30] and set(world.learned.labels.tolist()) == {0, 1, 2}
    assert world.learned.images.shape[1:] == (1, 6, 6)
    with pytest.raises(ValueError, match="must have 500 images of 3 classes"):
        data.from_folder(tmp_path, replace(data.QUICK, pretrained=500), 0)
    options = ["data", "--quick", "--seeds", "1", "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert main(options) == 0
    assert json.loads((tmp_path / "out/results.json").read_text())["settings"]["data"] == str(tmp_path)


def test_missing_data_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--quick", "--data", str(tmp_path / "none"), "--out", str(tmp_path)]) == 1
    assert "must be a folder" in capsys.readouterr().err


def test_a_pretrained_model_keeps_all_but_its_classifier() -> None:
    settings = data.QUICK
    for way in data.WAYS:
        names = set(data.model_of(way, 5, settings).state_dict())
        assert {name for name in names if name.startswith("classifier")} == {"classifier.weight", "classifier.bias"}


def _data(scratch: tuple[float, float], pretrained: tuple[float, float]) -> str:
    accuracies = {
        way: [{"scratch": [scratch[at]] * 4, "pretrained": [pretrained[at]] * 4} for _ in range(2)]
        for at, way in enumerate(data.WAYS)
    }
    return data.judge(accuracies, data.Settings())


def test_verdicts_of_data() -> None:
    assert _data((0.5, 0.7), (0.9, 0.8)) == (
        "held: trained on 100 images, the accuracy of ViT and residual network was 50% against 70% (on 6,400: 50% "
        "against 70%); pretrained on 20,000 images of other classes and trained on 6,400, it was 90% against 80% "
        "(on 100: 90% against 80%)."
    )
    assert _data((0.5, 0.7), (0.8, 0.9)).startswith("held in part: trained on 100")
    assert _data((0.7, 0.5), (0.8, 0.9)).startswith("did not hold here: trained on 100")


# --- the three advantages


def test_an_oracle_solves_the_three_tasks() -> None:
    ids, wanted = advantages.recall(40, 5, generator())
    for row, answers in zip(ids.tolist(), wanted.tolist(), strict=True):
        shelf = dict(divmod(value, 8) for value in row if value < 64)
        assert len(shelf) == 8 and max(at for at, value in enumerate(row) if value < 64) < 20
        assert [shelf[value - 65] for value in row[-8:]] == answers[-8:]
        assert set(answers[:-8]) == {advantages.UNASKED} and set(row[20:-8]) == {64}
    ids, wanted = advantages.neighbours(9, 2, generator())
    for row, answers in zip(ids.tolist(), wanted.tolist(), strict=True):
        assert answers[1:-1] == [sum(row[at - 1 : at + 2]) % 4 for at in range(1, 8)]
    ids, wanted = advantages.running(9, 2, generator())
    for row, answers in zip(ids.tolist(), wanted.tolist(), strict=True):
        assert answers == [sum(row[: at + 1]) % 3 for at in range(9)]


def test_the_three_models_have_equal_budgets() -> None:
    settings = advantages.Settings()
    for way in advantages.WAYS:
        assert abs(parameters(advantages.within(way, settings)) - settings.budget) < 0.05 * settings.budget


def test_the_convolution_covers_the_rows() -> None:
    settings = advantages.Settings()
    assert advantages.within("convolution", settings).path(settings.length - 1) < 6


def _advantages(block: int, time: float, share: float) -> str:
    layer = {
        "attention, with feed-forward": block,
        "attention alone": 40,
        "recurrence, GRU": 45,
        "convolution of 5": 50,
    }
    times = {length: [{"attention": time, "recurrence": 1.0, "convolution": 0.5}] for length in (16, 64)}
    shares = {task: {"attention": [share], "recurrence": [0.5], "convolution": [0.6]} for task in ("recall", "running")}
    return advantages.judge(layer, times, shares)


def test_verdicts_of_the_three_advantages() -> None:
    output = _advantages(40, 0.25, 0.9)
    assert output.startswith("held: a layer has 40 parameters (40 of them attention), one of the others 45 to 50")
    assert "0.25 of the time of recurrence and 0.5 of the time of convolution at length 16" in output
    assert _advantages(120, 2.0, 0.55).startswith("did not hold here: a layer has 120")
    output = _advantages(120, 0.25, 0.55)
    assert output.startswith("held in part: its step took") and "but a layer has 120" in output
    assert output.endswith(
        "recall: attention 55%, recurrence 50%, convolution 60%; running: attention 55%, "
        "recurrence 50%, convolution 60%."
    )


def test_a_lead_exceeds_the_sum_of_deviations() -> None:
    assert leads([0.9, 0.9], [0.8, 0.8]) and not leads([0.9, 0.7], [0.8, 0.6]) and not leads([0.5], [0.5])


# --- sizes


def test_parts_of_the_play_have_the_requested_length() -> None:
    letters, train, held_out = sizes.play()
    assert len(train) == 120_118 and len(train) + len(held_out) == 133_465
    parts = [sizes.part_of_play(500, seed) for seed in (0, 0, 1)]
    assert {len(part) for part in parts} == {500} and (parts[0] == parts[1]).all() and (parts[0] != parts[2]).any()
    text = letters.decode(train)
    assert all(letters.decode(part) in text for part in parts)
    assert len(sizes.part_of_play(len(train), 3)) == len(train)


def test_sizes_are_counted_without_embeddings() -> None:
    counted = [sizes.size_of(width, sizes.Settings()) for width in (32, 64)]
    assert counted == [3 * (12 * width**2 + 13 * width) + 2 * width for width in (32, 64)]


def test_a_model_learns_the_play_and_its_lowest_loss_counts() -> None:
    settings = replace(sizes.QUICK, steps=60)
    short, long = (sizes.measure(16, 60_000, replace(settings, steps=steps), 0) for steps in (4, 60))
    assert long < short - 0.3
    assert sizes.measure(16, 20, settings, 0) < 5  # learned by heart, so that its last loss is high


def _losses(exponent: float, least: float = 1.0) -> dict[int, dict[int, list[float]]]:
    """Losses that fall with both; `least` is the part of the gain of size with the least text."""
    result: dict[int, dict[int, list[float]]] = {}
    for width, size in ((16, 1), (32, 4), (64, 16)):
        result[width] = {}
        for amount in (100, 1000):
            gain = (size**-exponent - 1) * (least if amount == 100 else 1.0)
            loss = 3 * (amount / 100) ** -exponent * (1 + gain)
            result[width][amount] = [loss, loss * 1.001]
    return result


def test_verdicts_of_sizes() -> None:
    counts = {16: 1, 32: 4, 64: 16}
    output = sizes.judge(_losses(0.1, least=0.2), counts)
    assert output.startswith("held: with more text") and "as a power of 0.100 within 0.0%" in output
    assert sizes.judge(_losses(0.1), counts).startswith("held in part: ")
    assert "but the largest model gained 0.73 over the smallest" in sizes.judge(_losses(0.1), counts)
    assert sizes.judge(_losses(0.0), counts).startswith("did not hold here: ")
