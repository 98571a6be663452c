"""The config of the stopping rule, and the numbers of draws at which it is checked. No NumPy."""

from typing import Annotated

from pydantic import Field, model_validator

from pcv.base.section import Count, DecideConfig, Section, problem

GROWTH = 1.5


def looks(min_draws: int, max_draws: int, batch_size: int) -> list[int]:
    """Numbers of draws per chain at which folds may end: whole batches, growing by half.

    >>> looks(100, 500, 50)
    [100, 150, 200, 300, 450, 500]
    """
    found = [min_draws]
    while found[-1] < max_draws:
        further = max(int(found[-1] * GROWTH) // batch_size * batch_size, found[-1] + batch_size)
        found.append(min(further, max_draws))
    return found


class UntilConfig(Section):
    fold_mcse: Annotated[float, Field(gt=0)] | None = None
    fold_mcse_over_se: Annotated[float, Field(gt=0)] | None = None
    mcse_over_se: Annotated[float, Field(gt=0)] | None = None
    decide: DecideConfig | None = None
    rhat: Annotated[float, Field(gt=1)] = 1.05
    min_draws: Count = 200
    max_draws: Count

    @model_validator(mode="after")
    def _one_tolerance(self) -> "UntilConfig":
        of_folds = [self.fold_mcse, self.fold_mcse_over_se]
        rules = sum(x is not None for x in of_folds) + self.of_comparison
        if rules != 1:
            raise problem(
                "name one rule: fold_mcse, fold_mcse_over_se, or (mcse_over_se and/or decide)"
            )
        if self.max_draws < self.min_draws:
            raise problem(f"must be at least min_draws, {self.min_draws}", "max_draws")
        return self

    @property
    def of_comparison(self) -> bool:
        """Whether the comparison of all models decides, rather than each fold by itself."""
        return self.mcse_over_se is not None or self.decide is not None
