"""The scheme of a random subsample of all leave-one-out folds."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from pcv.base.errors import PcvError, key_path
from pcv.base.section import SURROGATE, DecideConfig, Section, Surrogate, Text, doubling, problem
from pcv.folds.sections.scheme import FromFullData, Table, shown

if TYPE_CHECKING:
    import xarray as xr

    from pcv.folds.base import Folds
    from pcv.folds.exchangeable import Terms


class GrowConfig(Section):
    """A subsample doubles until an estimate of it by PSIS satisfies this."""

    subsampling_se_over_se: Annotated[float, Field(gt=0)] | None = None
    decide: DecideConfig | None = None
    max_m: Annotated[int, Field(ge=2)] | None = None  # None: 10 m

    @model_validator(mode="after")
    def _a_rule(self) -> "GrowConfig":
        if self.subsampling_se_over_se is None and self.decide is None:
            raise problem("name a rule: subsampling_se_over_se and/or decide")
        return self


FEW_EFFECTS = 1000
"""terms per parameter"""


def _listed(names: Any) -> Any:
    return [names] if isinstance(names, str) else names


NAME = {"type": "string", "pattern": SURROGATE}
SCHEMA = {"anyOf": [NAME, {"type": "array", "minItems": 1, "items": NAME}]}
Names = Annotated[
    list[Surrogate], Field(min_length=1), BeforeValidator(_listed), WithJsonSchema(SCHEMA)
]


def _or_group_by(schema: dict[str, Any]) -> None:
    schema["properties"]["group_by"] = schema["properties"]["group"]


class Subsampling(FromFullData):
    """Leave-one-out of some units, or groups, chosen at random."""

    model_config = ConfigDict(json_schema_extra=_or_group_by)
    scheme: Literal["subsample"]
    m: Annotated[int, Field(ge=2)]
    group: Annotated[Text | None, Field(validation_alias=AliasChoices("group", "group_by"))] = None
    surrogate: Names = ["auto"]  # the first is used
    exact: Literal["auto", "psis", "folds"] = "auto"
    until: GrowConfig | None = None

    @model_validator(mode="after")
    def _once_each(self) -> "Subsampling":
        for name in self.surrogate:
            if self.surrogate.count(name) > 1:
                raise problem(f"{name!r} is named twice; name each surrogate once", "surrogate")
        return self

    @model_validator(mode="after")
    def _grows(self) -> "Subsampling":
        used = self.surrogate[0]
        if self.until and self.exact != "psis" and used in ("psis", "tis"):
            what = f"PSIS estimates hardly differ from surrogate {used!r}, and would stop at once"
            raise problem(f"{what}; take 'waic', or exact: psis", "until")
        if self.until and self.until.max_m is not None and self.until.max_m < self.m:
            raise problem(f"must be at least m, {self.m}", "until", "max_m")
        return self

    @property
    def from_full_data(self) -> bool:
        return True

    def surrogates(self, num_terms: int, num_parameters: int) -> list[str]:
        """Their names, with "auto" as Magnusson et al. (2020) advise: the errors of plpd, about p/n
        nats per term, are small where effects are few and terms are many.

        >>> scheme = Subsampling(scheme="subsample", m=400, surrogate=["auto", "waic"])
        >>> scheme.surrogates(1_000_000, 100), scheme.surrogates(12_573, 390)
        (['plpd', 'waic'], ['waic'])
        """
        auto = "plpd" if num_terms >= FEW_EFFECTS * num_parameters else "waic"
        return list(dict.fromkeys(auto if name == "auto" else name for name in self.surrogate))

    @property
    def title(self) -> str:
        return f"subsample of {f'groups of {shown(self.group)}' if self.group else 'units'}"

    @property
    def sizes(self) -> list[int]:
        """Numbers of terms at which to see whether they suffice."""
        most = (self.until.max_m or 10 * self.m) if self.until else self.m
        return doubling(self.m, most)

    def terms(self, table: Table) -> "Terms":
        """All terms of the data."""
        from pcv.folds.exchangeable import terms_of

        group = None if self.group is None else table.column("group", self.group)
        return terms_of(table.data["unit"].values, group, shown(self.group or ""))

    def order(self, table: Table) -> "xr.Dataset":
        """All terms in the order in which they are chosen, and their strata."""
        import numpy as np
        import xarray as xr

        from pcv.folds.exchangeable import in_order

        if table.order is not None:
            return table.order
        one = np.zeros(len(self.terms(table).name), int)
        return xr.Dataset({"order": ("term", in_order(table.seed, one)), "stratum": ("term", one)})

    def lay_out(self, table: Table) -> "Folds":
        terms = self.terms(table)
        if self.m > len(terms.name):
            raise PcvError(
                f"{key_path(('folds', 'm'))} is {self.m}, but there are {len(terms.name)} "
                f"{terms.noun}; take fewer of them, or leave each out in turn"
            )
        return terms.folds(self.order(table)["order"].values[: self.sizes[-1]])

    def described(self, table: Table) -> "xr.Dataset":
        """Term, place in the order and stratum of each fold; and the strata's sizes."""
        import numpy as np
        import xarray as xr

        order, stratum = (self.order(table)[name].values for name in ("order", "stratum"))
        first = order[: self.sizes[-1]]
        by_data = np.argsort(first)
        return xr.Dataset(
            {
                "chosen": ("fold", first[by_data]),
                "place": ("fold", by_data),
                "stratum": ("fold", stratum[first[by_data]]),
                "stratum_size": ("any_stratum", np.bincount(stratum)),
            }
        )
