"""The regressor: an ordinary estimator whose predictions satisfy the constraint in the units of the data."""

import pickle

import numpy as np
import pytest
import torch

import hardnet as hn

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from hardnet.integrations.sklearn import HardNetRegressor


def total_of(x):
    return x[..., :1]


def plants():
    """Outputs of very different sizes that add up to the first feature."""
    balance = hn.Equality([[1.0, 1.0, 1.0]], total_of, name="balance")
    return balance & hn.Box([0.0, 0.0, 0.0], [1e6, 3e3, 5.0], name="limits")


def data(samples=60, seed=0):
    generator = np.random.default_rng(seed)
    X = np.stack([generator.uniform(1e5, 9e5, samples), generator.normal(30, 5, samples)], axis=1)
    y = np.stack([0.9 * X[:, 0], 0.01 * X[:, 0], 0.1 * X[:, 1]], axis=1)
    return X, y


def quick(constraint=None, **options):
    return HardNetRegressor(plants() if constraint is None else constraint, epochs=8, random_state=0, **options)


def test_predictions_satisfy_the_constraint_in_the_units_of_y():
    regressor = quick().fit(*data())
    fresh, _ = data(200, seed=1)
    assert regressor.check(fresh).ok
    assert regressor.check(fresh).exact_box.all()
    y = torch.as_tensor(regressor.predict(fresh))
    assert hn.check(plants(), y, torch.as_tensor(fresh)).ok


def test_it_learns():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 2))
    y = 1e4 + 100 * np.sin(X)
    regressor = HardNetRegressor(hn.Box(9_950.0, 10_050.0), epochs=60, hidden=(32,), random_state=0).fit(X, y)
    assert regressor.score(X, y.clip(9_950, 10_050)) > 0.5  # the best constant scores 0
    assert regressor.loss_[-1] < regressor.loss_[0]


def test_it_is_reproducible_cloned_pickled_and_leaves_the_seed_alone():
    X, y = data()
    state = torch.random.get_rng_state()
    first = quick().fit(X, y)
    assert torch.equal(state, torch.random.get_rng_state())
    for other in (clone(first).fit(X, y), pickle.loads(pickle.dumps(first))):
        assert np.array_equal(other.predict(X), first.predict(X))
    assert clone(first).get_params()["epochs"] == 8


def test_it_stands_in_a_pipeline():
    X, y = data()
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), quick())
    assert pipeline.fit(X, y).predict(X).shape == y.shape
    assert pipeline[-1].check(pipeline[:-1].transform(X)).ok


@pytest.mark.parametrize(
    ("constraint", "options"),
    [
        (hn.Ball([1e5, 1e3, 3.0], 10.0), {}),
        (plants(), {"method": "projection", "options": {"on_infeasible": "nearest"}}),
        (hn.Simplex(3, total=7.0), {"method": "rayen"}),
        (hn.Equality([[1.0, 1.0, 1.0]], 5.0), {"method": "aff-eq"}),
    ],
)
def test_other_sets_and_methods(constraint, options):
    X, y = data()
    regressor = quick(constraint, **options).fit(X, y)
    assert regressor.predict(X).shape == y.shape
    assert hn.check(regressor.constraint_, torch.as_tensor(regressor.predict(X)), torch.as_tensor(X), tolerance=1e-5).ok


def test_float32_constants_and_an_own_network():
    box = hn.Box(torch.zeros(3), torch.ones(3))
    regressor = quick(box, net=lambda inputs, outputs: torch.nn.Linear(inputs, outputs)).fit(*data())
    assert regressor.predict(data()[0]).max() <= 1.0


def test_fitting_leaves_the_constraint_alone():
    box = hn.Box(torch.zeros(3), [1.0, 2.0, 3.0])
    before = {name: (value.dtype, value.tolist()) for name, value in box.state_dict().items()}
    quick(box).fit(*data())
    assert {name: (value.dtype, value.tolist()) for name, value in box.state_dict().items()} == before


def test_what_is_no_set_is_refused():
    with pytest.raises(hn.errors.OptionError, match="constraint"):
        quick("box").fit(*data())


ESTIMATOR = HardNetRegressor(hn.Box(-1e6, 1e6), epochs=40, hidden=(16,), batch_size=100, learning_rate=0.05)


UNHASHABLE = {"check_estimators_overwrite_params": "joblib gives tensors and their copies different hashes"}


@parametrize_with_checks([ESTIMATOR], expected_failed_checks=lambda _: UNHASHABLE)
def test_sklearn_checks(estimator, check):
    check(estimator)
