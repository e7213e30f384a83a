"""First weights: their moments, what stays as it was, and networks with other activations."""

import pytest
import torch
from torch import nn

from regatta.models import dnn, initialise
from regatta.models.initial import KNOWN

LAYERS = {  # a layer, fan in, fan out
    "linear": (lambda: nn.Linear(300, 200), 300, 200),
    "conv1d": (lambda: nn.Conv1d(40, 80, 11), 40 * 11, 80 * 11),
    "conv2d": (lambda: nn.Conv2d(32, 64, (3, 5)), 32 * 15, 64 * 15),
}


def drawn(layer: str, how: str) -> tuple[nn.Module, int, int]:
    make, fan_in, fan_out = LAYERS[layer]
    torch.manual_seed(0)
    module = make()
    initialise(module, how)
    return module, fan_in, fan_out


@pytest.mark.parametrize("layer", LAYERS)
def test_xavier_is_uniform_with_glorots_limit(layer):
    module, fan_in, fan_out = drawn(layer, "xavier")
    limit = (6 / (fan_in + fan_out)) ** 0.5
    weight = module.weight.detach()
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.mean().abs() < 0.02 * limit
    assert weight.std() == pytest.approx(limit / 3**0.5, rel=0.02)
    assert torch.count_nonzero(module.bias) == 0


@pytest.mark.parametrize("layer", LAYERS)
def test_lecun_is_gaussian_and_keeps_variance(layer):
    module, fan_in, _ = drawn(layer, "lecun")
    weight, deviation = module.weight.detach(), fan_in**-0.5
    assert weight.std() == pytest.approx(deviation, rel=0.02)
    assert weight.mean().abs() < 0.02 * deviation
    beyond = (weight.abs() > 2 * deviation).float().mean()
    assert beyond == pytest.approx(0.0455, abs=0.005)  # of a Gaussian
    assert torch.count_nonzero(module.bias) == 0


def test_a_sum_over_inputs_keeps_its_variance_under_lecun():
    torch.manual_seed(0)
    layer = nn.Linear(500, 500)
    initialise(layer, "lecun")
    assert layer(torch.randn(400, 500)).var().item() == pytest.approx(1.0, rel=0.05)


def test_torch_leaves_everything_and_draws_nothing():
    torch.manual_seed(0)
    model = dnn((8, 6, 4))
    before = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    initialise(model, "torch")
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(state, torch.get_rng_state())


def test_draws_come_from_the_global_generator():
    def weights(seed: int) -> torch.Tensor:
        model = dnn((8, 6, 4))
        torch.manual_seed(seed)
        initialise(model, "xavier")
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_other_layers_and_missing_biases_stay_as_they_are():
    model = nn.Sequential(nn.Embedding(4, 6), nn.Conv1d(6, 3, 2))
    embedding, conv = (layer.weight.clone() for layer in model)
    initialise(model, "lecun")
    assert torch.equal(embedding, model[0].weight)
    assert not torch.equal(conv, model[1].weight)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    initialise(nn.Linear(3, 2, bias=False), "xavier")


def test_an_unknown_one_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'kaiming'; there are xavier, lecun, torch"):
        initialise(dnn((2, 2)), "kaiming")
    assert set(KNOWN) == {"xavier", "lecun", "torch"}


# -- activations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "kind"),
    [("relu", nn.ReLU), ("tanh", nn.Tanh), ("softplus", nn.Softplus), ("sigmoid", nn.Sigmoid)],
)
def test_a_dnn_has_its_activation_between_layers_alone(activation, kind):
    model = dnn((5, 4, 3, 2), activation)
    assert [type(layer) for layer in model] == [nn.Linear, kind, nn.Linear, kind, nn.Linear]


def test_a_dnn_has_the_same_weights_by_the_same_names_whatever_its_activation():
    states = []
    for words in ((), ("relu",), ("sigmoid",)):
        torch.manual_seed(3)
        states.append(dnn((5, 4, 3), *words).state_dict())
    assert list(states[0]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for state in states[1:]:
        assert list(state) == list(states[0])
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_an_unknown_activation_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'gelu'; there are relu, tanh, softplus, sigmoid"):
        dnn((2, 2), "gelu")
