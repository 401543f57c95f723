"""A scikit-learn pipeline whose predictions add up and stay in bounds, in the units of the data."""

import numpy as np
import torch
from sklearn.model_selection import cross_val_score

import hardnet as hn
from hardnet.integrations.sklearn import HardNetRegressor


def demand(x: torch.Tensor) -> torch.Tensor:
    """The first feature: what three plants must deliver together, in MW."""
    return x[..., :1]


def plants() -> hn.sets.ConstraintSet:
    """Power that adds up to the demand, and limits of each plant."""
    balance = hn.Equality([[1.0, 1.0, 1.0]], demand, name="balance")
    return balance & hn.Box([0.0, 50.0, 0.0], [400.0, 900.0, 300.0], name="limits")


def data(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Demand and price, and a dispatch that was measured with noise."""
    generator = np.random.default_rng(seed)
    total, price = generator.uniform(200, 1400, samples), generator.normal(30, 5, samples)
    share = np.stack([np.minimum(total / 4, 400), 0.55 * total, 8 * (price - 20)], axis=1)
    return np.stack([total, price], axis=1), share + generator.normal(0, 10, share.shape)


def main() -> None:
    """Fit, check the guarantee on fresh inputs, and cross-validate like any estimator."""
    X, y = data(400, seed=0)
    regressor = HardNetRegressor(plants(), epochs=30, random_state=0).fit(X, y)
    fresh, _ = data(1000, seed=1)
    print(regressor.check(fresh))
    print("totals:", np.abs(regressor.predict(fresh).sum(1) - fresh[:, 0]).max(), "MW off at most")
    print("R2 in 2 folds:", cross_val_score(regressor, X, y, cv=2).round(3))


if __name__ == "__main__":
    main()
