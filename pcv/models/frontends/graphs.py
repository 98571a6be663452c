"""Graphs of PyMC models, compiled to JAX."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from jaxtyping import Array, Key
from pytensor import config
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.link.jax.dispatch import jax_funcify, jax_typify
from pytensor.scalar.math import Erfcx
from pytensor.tensor.random.type import RandomType

from pcv.base.errors import PcvError, in_one_line
from pcv.models.model import Data, Params


def _jaxified() -> Callable[..., Any]:
    """PyMC's function, without its module setting XLA_FLAGS to a hundred host devices; its sources
    stay in PyTensor's own folder, where they are found again, not in the temporary one."""
    before = os.environ.get("XLA_FLAGS")
    try:
        from pymc.sampling.jax import get_jaxified_graph
    finally:
        if before is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = before
    sources = str(Path(config.compiledir) / "pcv")
    return config.change_flags(generated_src_dir=sources)(get_jaxified_graph)


get_jaxified_graph = _jaxified()


OF_PYTENSOR = jax_funcify.dispatch(Erfcx)


@jax_funcify.register(Erfcx)
def _of_elements(op: Any, **kwargs: Any) -> Callable[..., Any]:
    """In JAX 0.12 erfcx has a second derivative for single numbers, and a TypeError for arrays."""
    return jnp.vectorize(OF_PYTENSOR(op, **kwargs))


def content(value: Any) -> np.ndarray:
    """The value of a PyTensor constant or shared variable."""
    if hasattr(value, "get_value"):
        return value.get_value()
    return value.eval(mode="FAST_COMPILE")  # Numba takes a second to start


def compiled(inputs: list[Any], outputs: list[Any], where: str) -> Callable[..., Any]:
    try:
        return get_jaxified_graph(inputs=inputs, outputs=outputs)
    except NotImplementedError as error:
        said = re.sub(r"\{.*\}", "", in_one_line(error))  # without objects' addresses
        raise PcvError(f"{where}: JAX does not implement part of it: {said}") from error


def unconstrainer(
    model: pm.Model,
) -> Callable[[Mapping[str, Array]], Params] | None:
    """Map from one draw of the free variables to unconstrained values, or None if JAX lacks one of
    the transforms."""
    free = {rv: rv.type(rv.name) for rv in model.free_RVs}
    transforms = [model.rvs_to_transforms[rv] for rv in free]
    values = [
        x if transform is None else transform.forward(x, *rv.owner.inputs)
        for (rv, x), transform in zip(free.items(), transforms)
    ]
    try:
        found = get_jaxified_graph(
            inputs=list(free.values()), outputs=graph_replace(values, free, strict=False)
        )
    except NotImplementedError:
        return None
    inputs, names = [rv.name for rv in free], [model.rvs_to_values[rv].name for rv in free]

    def unconstrain(variables: Mapping[str, Array]) -> Params:
        params = found(*(variables[name] for name in inputs))
        return {name: jnp.asarray(x, float) for name, x in zip(names, params)}

    return unconstrain


def replicates(
    model: pm.Model, at: Callable[[Params], list[Array]], example: list[np.ndarray]
) -> Callable[..., Array] | None:
    """Function that draws the observed variable, or None if JAX cannot."""
    (rv,) = model.observed_RVs
    constrained = model.replace_rvs_by_values(model.free_RVs)
    (free,) = graph_replace([rv], dict(zip(model.free_RVs, constrained)), strict=False)
    generators: list[Any] = [x for x in graph_inputs([free]) if isinstance(x.type, RandomType)]
    inputs = [x.type() for x in generators]
    try:
        (free,) = graph_replace([free], dict(zip(generators, inputs)), strict=False)
        drawn = get_jaxified_graph(inputs=[*model.value_vars, *inputs], outputs=[free])
    except NotImplementedError:
        return None
    states = [jax_typify(x.get_value(borrow=False)) for x in generators]

    def by_keys(keys: Array, *values: Array) -> Array:
        given = [{**s, "jax_state": jax.random.key_data(k)} for s, k in zip(states, keys)]
        return jnp.ravel(drawn(*values, *given)[0]).astype(float)

    number = len(states)
    try:  # some parts fail only when traced
        jax.eval_shape(by_keys, jax.random.split(jax.random.key(0), number), *example)
    except NotImplementedError:
        return None

    def predict(key: Key[Array, ""], params: Params, data: Data) -> Array:
        drawn_anew: Array = by_keys(jax.random.split(key, number), *at(params))
        return drawn_anew

    return predict
