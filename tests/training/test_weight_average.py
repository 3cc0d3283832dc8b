"""Weight averages compared with an explicit mean of the states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.models.weights import load_weights, weights_of
from regard.training import Training
from regard.training.weight_average import Average, Exponential, Last, average_of, averaged_weights


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def moved(model: nn.Module) -> dict[str, Tensor]:
    """Change the weights like a training step, and return them."""
    model(torch.randn(7, 3))  # updates the running statistics
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    return {name: value.clone() for name, value in weights_of(model).items()}


def test_exponential_is_the_weighted_sum_of_all_states() -> None:
    model, decay = model_of(), 0.4
    average = Exponential(model, decay)
    states = []
    for _ in range(9):
        states.append(moved(model))
        average.update()
    for name, value in average.weights().items():
        if not value.is_floating_point():
            assert torch.equal(value, states[-1][name]), "a counter is that of the last step"
            continue
        wanted = states[0][name].double()
        for n, state in enumerate(states[1:], 1):
            d = min(decay, (1 + n) / (10 + n))
            wanted = d * wanted + (1 - d) * state[name].double()
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("updates", [1, 2, 3, 4, 8])
def test_last_is_the_mean_of_the_last_three(updates: int) -> None:
    model = model_of()
    average = Last(model, 3)
    states = []
    for _ in range(updates):
        states.append(moved(model))
        average.update()
    for name, value in average.weights().items():
        if value.is_floating_point():
            wanted = torch.stack([state[name].double() for state in states[-3:]]).mean(0)
            torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, states[-1][name])


@pytest.mark.parametrize("kind", ["exponential", "last", "none"])
def test_a_restored_average_continues_exactly(kind: str) -> None:
    config = Training(average=kind, average_decay=0.5, average_states=3)  # type: ignore[arg-type]
    model = model_of()
    unbroken = average_of(config, model)
    for step in range(8):
        if step == 5:
            broken: Average = average_of(config, model)
            broken.load({name: value.clone() for name, value in unbroken.state().items()})
        moved(model)
        for average in (unbroken, broken) if step >= 5 else (unbroken,):
            average.update()
    for name, value in unbroken.weights().items():
        assert torch.equal(value, broken.weights()[name])


def test_averaged_weights_are_applied_temporarily() -> None:
    model = model_of()
    average = Exponential(model, 0.9)
    for _ in range(4):
        before = moved(model)
        average.update()
    inside, wanted = {}, average.weights()
    with pytest.raises(KeyboardInterrupt), averaged_weights(average, model):
        inside = {name: value.clone() for name, value in weights_of(model).items()}
        raise KeyboardInterrupt
    assert all(torch.equal(inside[name], wanted[name]) for name in wanted)
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())
    assert not torch.equal(inside["0.weight"], before["0.weight"])


def test_tied_weights_have_one_name_and_stay_tied() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(4, 3), "b": nn.Linear(3, 4, bias=False)})
    model["b"].weight = model["a"].weight
    held = {name: value + 1 for name, value in weights_of(model).items()}
    assert list(held) == ["a.weight"]
    load_weights(model, held)
    assert torch.equal(model["b"].weight, held["a.weight"])


def test_weights_of_another_model_are_refused() -> None:
    held = weights_of(nn.Linear(3, 2))
    held["extra"] = held.pop("bias")
    with pytest.raises(ValueError) as caught:
        load_weights(nn.Linear(4, 2), held, "here")
    assert str(caught.value) == (
        "here: weights (2) must be those of this model (2); got missing: bias; unknown: extra; of another shape: "
        "weight (2, 3) for (2, 4). Build the model from the configuration in the same folder."
    )
