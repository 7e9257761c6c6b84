"""Hyperparameters are checked when they are made, refused in one sentence, and come back from plain data."""

import json

import jax
import numpy as np
import pytest

from catalogue import linear, small
from uvax.errors import InvalidInput
from uvax.estimators import BDQNP, DQN, METHODS, RND, UVU, Greedy, Policy, Sampler, config, from_config, make

REFUSED = [
    (DQN, {"width": 0}, "width is 0; expected a whole number, at least 1"),
    (DQN, {"width": 64.5}, "width is 64.5; expected a whole number, at least 1"),
    (DQN, {"width": True}, "width is True; expected a whole number, at least 1"),
    (DQN, {"depth": -1}, "depth is -1; expected a whole number, at least 1"),
    (DQN, {"batch_size": 0}, "batch_size is 0; expected a whole number, at least 1, or None"),
    (DQN, {"gamma": 1.0}, "gamma is 1.0; expected a number in [0, 1)"),
    (DQN, {"gamma": -0.1}, "gamma is -0.1; expected a number in [0, 1)"),
    (DQN, {"gamma": float("nan")}, "gamma is nan; expected a number in [0, 1)"),
    (DQN, {"learning_rate": 0.0}, "learning_rate is 0.0; expected a positive number"),
    (DQN, {"learning_rate": float("inf")}, "learning_rate is inf; expected a positive number"),
    (DQN, {"learning_rate": "1e-3"}, "learning_rate is '1e-3'; expected a positive number"),
    (DQN, {"adam_epsilon": 0.0}, "adam_epsilon is 0.0; expected a positive number"),
    (DQN, {"target_period": -1}, "target_period is -1; expected a whole number, at least 0"),
    (DQN, {"target_lambda": 0.0}, "target_lambda is 0.0; expected a number in (0, 1]"),
    (DQN, {"target_lambda": 1.5}, "target_lambda is 1.5; expected a number in (0, 1]"),
    (DQN, {"sigma_w": 0.0}, "sigma_w is 0.0; expected a positive number"),
    (DQN, {"sigma_b": -1.0}, "sigma_b is -1.0; expected a number, at least 0"),
    (DQN, {"normalise": "no"}, "normalise is 'no'; expected True or False"),
    (DQN, {"optimiser": "adamw"}, "unknown optimiser 'adamw': did you mean 'adam'? known are adam, sgd"),
    (DQN, {"network": "mpl"}, "unknown network 'mpl': did you mean 'mlp'? known are conditioned, mlp"),
    (DQN, {"parametrisation": "nkt"}, "unknown parametrisation 'nkt': did you mean 'ntk'? known are he_uniform, ntk"),
    (
        DQN,
        {"activation": "rely"},
        "unknown activation 'rely': did you mean 'relu' or 'gelu'?",
    ),
    (DQN, {"bootstrap": "greedy"}, "bootstrap is 'greedy'; expected Greedy(), Policy(probs) or Sampler(sample)"),
    (BDQNP, {"members": 1}, "members is 1; expected at least 2: one has no variance (use DQN)"),
    (BDQNP, {"members": 3.0}, "members is 3.0; expected a whole number"),
    (BDQNP, {"prior_scale": -1.0}, "prior_scale is -1.0; expected a number, at least 0"),
    (RND, {"heads": 0}, "heads is 0; expected a whole number, at least 1"),
    (RND, {"prior": "true"}, "prior is 'true'; expected True or False"),
    (RND, {"rnd_learning_rate": -1e-4}, "rnd_learning_rate is -0.0001; expected a positive number"),
    (RND, {"intrinsic_scale": 0.0}, "intrinsic_scale is 0.0; expected a positive number"),
    (UVU, {"heads": 0}, "heads is 0; expected a whole number, at least 1"),
    (UVU, {"uvu_learning_rate": 0}, "uvu_learning_rate is 0; expected a positive number"),
    (UVU, {"prior_scale": 0.0}, "prior_scale is 0.0; expected a positive number"),
    (UVU, {"error_scale": -1.0}, "error_scale is -1.0; expected a number, at least 0"),
    (UVU, {"q_width": 0}, "q_width is 0; expected a whole number, at least 1, or None"),
    (UVU, {"q_depth": 0}, "q_depth is 0; expected a whole number, at least 1, or None"),
]


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(("cls", "wrong", "sentence"), REFUSED, ids=[f"{c.__name__} {w}" for c, w, _ in REFUSED])
def test_refused_in_one_sentence(cls, wrong, sentence):
    with pytest.raises(InvalidInput) as refusal:
        cls(**wrong)
    message = str(refusal.value)
    assert message.startswith(sentence)
    assert "\n" not in message


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize("cls", [DQN, BDQNP, RND, UVU])
def test_numpy_numbers_and_whole_learning_rates_are_numbers(cls):
    estimator = cls(width=np.int64(8), learning_rate=1, gamma=0, batch_size=None)
    assert estimator == cls(width=8, learning_rate=1.0, gamma=0.0, batch_size=None)
    assert from_config(json.loads(json.dumps(config(estimator)))) == estimator


def test_the_paper_is_the_default():
    """Table "hpsettings"; the learning rates of RND and UVU and the intrinsic scale are ours."""
    for name in METHODS:
        estimator = make(name)
        assert (estimator.width, estimator.depth, estimator.batch_size) == (512, 3, 512)
        assert (estimator.gamma, estimator.learning_rate, estimator.adam_epsilon) == (0.9, 3e-4, 0.005)
        assert (estimator.target_period, estimator.target_lambda) == (256, 1.0)
        assert (estimator.network, estimator.optimiser, estimator.bootstrap) == ("conditioned", "adam", Greedy())
        assert getattr(estimator, "heads", 512) == 512
    assert make("bdqnp3").members == 3
    assert make("bdqnp35").members == 35
    assert make("bdqnp").prior_scale == 1.0
    assert make("uvu").error_scale == 1.0
    assert not make("dqn-rnd").prior
    assert make("dqn-rnd-p").prior


def test_unknown_method_lists_the_close_ones():
    with pytest.raises(InvalidInput, match="unknown method 'uvuu': did you mean 'uvu'") as refusal:
        make("uvuu")
    for name in METHODS:
        assert name in str(refusal.value)


def test_unknown_hyperparameter_lists_the_close_ones():
    with pytest.raises(InvalidInput, match=r"unknown hyperparameter of uvu 'head': did you mean 'heads'"):
        make("uvu", head=3)
    with pytest.raises(InvalidInput, match="unknown hyperparameter of dqn 'heads'"):
        make("dqn", heads=3)


@pytest.mark.parametrize("name", METHODS)
def test_configuration_round_trip(name):
    estimator = make(name, width=32, learning_rate=1e-5, batch_size=None, network="mlp", activation="erf")
    stored = json.loads(json.dumps(config(estimator), allow_nan=False))
    assert stored["class"] == type(estimator).__name__
    assert from_config(stored) == estimator


def test_configuration_records_what_is_inside():
    """Of an estimator that wraps another one, both are written down."""
    stored = json.loads(json.dumps(config(small("a user's own", width=24))))
    assert stored["class"] == "CountedDQN"
    assert stored["dqn"]["class"] == "DQN"
    assert stored["dqn"]["width"] == 24


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"class": "Mine"}, "an estimator called 'Mine', which uvax does not have; pass the estimator itself"),
        ({}, "an estimator called None"),
        ({"class": "UVU", "head": 3}, "unknown hyperparameter of UVU 'head': did you mean 'heads'"),
        ({"class": "UVU", "bootstrap": "policy"}, "cannot be stored; pass the estimator itself"),
        ({"class": "UVU", "width": 0}, "width is 0"),
    ],
)
def test_a_configuration_that_cannot_be_made_is_refused(values, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        from_config(values)


def test_functions_are_stored_by_name_and_refused_when_read_back():
    probs = Policy(lambda obs, task: obs, name="mine")
    sampler = Sampler(lambda key, obs, task: jax.random.bits(key), name="drawn")
    for estimator in (DQN(bootstrap=probs), DQN(bootstrap=sampler), DQN(network=linear(np.ones((1, 1, 1))))):
        stored = json.loads(json.dumps(config(estimator)))
        with pytest.raises(InvalidInput, match="cannot be stored"):
            from_config(stored)
    assert config(DQN(bootstrap=probs))["bootstrap"] == "mine"
