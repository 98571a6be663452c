"""How many batches a model's folds are cut into to fit in memory."""

import xarray as xr

from pcv.folds import columns
from pcv.pipeline.job import Job
from pcv.pipeline.stages.common.chains import engine_of, in_chains
from pcv.pipeline.stages.common.problem import folds_of, sampled_folds, scored
from pcv.pipeline.storage.artifacts import begin, keep, opened, require, stamp_of


def cut(job: Job) -> None:
    """Cut a model's folds into batches that fit in memory: ``batches.zarr``.

    The memory of a block of draws is read off its compiled function. Where the config gives the
    number of batches, nothing is measured.
    """
    from pcv.base import devices
    from pcv.models import scores as scoring
    from pcv.pipeline.status import in_bytes
    from pcv.pipeline.storage import idata
    from pcv.sampling import memory

    cv = job.settings.cv
    if cv.fold_batches != "auto":
        job.say(f"cut {job.model}: nothing to measure, cv.fold_batches is {cv.fold_batches}")
        return
    making = begin(job, "cut")
    known = {"data": require(job, "data", {})}
    known["fit"] = require(job, "fit", known)
    all_folds, stamps = folds_of(job, known)
    known |= stamps
    folds = sampled_folds(job, all_folds)
    if not len(folds.id):
        keep(job, xr.Dataset(attrs={"fold_batches": 1}), stamp_of(job, making, known))
        job.say(f"cut {job.model}: the full-data fit suffices, no fold is sampled")
        return
    with devices.at_work(job.config.precision):
        arrays = columns.model_data(opened(job, "data"))
        fitted = idata.fit(opened(job, "fit", "kernel"))
        how = scored(job, arrays, all_folds)
        model, predictive, *_ = in_chains(job, how, arrays, all_folds, fitted)
        scores = scoring.named(job.scores, job.objects)
        num_units = columns.num_units(arrays)
        scoring.check(scores, model, job.model, arrays, num_units, predictive, folds.test.shape[1])
        first = folds.some(slice(1))
        engine = engine_of(job, predictive, arrays, model, scores)
        there = memory.of_devices()
        taken: dict[int, memory.Step] = {}

        def share(num_folds: int) -> float:
            taken[num_folds] = memory.of_step(engine, first, cv.chains, num_folds)
            return taken[num_folds].host / there.host  # a device holds one tile, whatever the folds

        number = memory.num_batches(len(folds.id), share, cv.memory_share)
        on = devices.describe()
    most = -(-len(folds.id) // number)
    if most not in taken:
        share(most)
    sizes = {
        f"{what}_{name}": int(x)
        for what, step in (("batch", taken[most]), ("machine", there))
        for name, x in step._asdict().items()
    }
    found = xr.Dataset(attrs={"fold_batches": number, **sizes})
    keep(job, found, stamp_of(job, making, known, on=on))
    batches = "one batch," if number == 1 else f"{number} batches of at most {most}, each"
    job.say(
        f"cut {job.model}: {len(folds.id)} folds in {batches} "
        f"{in_bytes(sizes['batch_host'])} of {in_bytes(sizes['machine_host'])} in the machine's "
        f"memory and {in_bytes(sizes['batch_device'])} of {in_bytes(sizes['machine_device'])} "
        "on each device"
    )
    if taken[most].device > cv.memory_share * there.device:
        job.say(
            f"warning: cut {job.model}: a tile of chains takes more than the share "
            f"{cv.memory_share:g} (cv.memory_share) of a device; smaller tiles are used if it does "
            "not fit"
        )
    if taken[most].host > cv.memory_share * there.host:
        job.say(
            f"warning: cut {job.model}: even a batch of one fold takes more than the share "
            f"{cv.memory_share:g} (cv.memory_share); use fewer cv.chains or a smaller cv.batch_size"
        )
