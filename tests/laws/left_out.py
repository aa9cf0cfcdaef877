"""Public names that no table has, each with its reason; `test_laws.py` fails for a name that is neither here nor in a table."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "a result: functions in the tables make it, and the laws look at its numbers": """
        core.Certificate linalg.correlation.Control tangent.Coverage tangent.FeatureMatrices tangent.LayerFeatures
        measures.changepoint.ChangePoint measures.changepoint.Jump measures.collapse.ClassMoments
        measures.collapse.Collapse measures.datamodeling.DatamodelingScore measures.dimension.Estimate
        measures.dimension.TwoNN measures.faithfulness.Faithfulness measures.kendall.Kendall
        measures.monotone.MonotoneFit measures.probe_agreement.ProbesAt measures.probe_agreement.CollapseLayer
        measures.probes.ProbeSweep measures.regression.OutputFidelity measures.resampled.ResampledTest
        measures.spectra.SpectrumClass measures.uncertainty.Summary machines.KernelMachine xray.Review""",
    "an error or a warning": """
        core.NtkscopeError core.NumericalError core.UsageError linalg.NumericalWarning storage.DamageWarning""",
    "a type, a protocol or an abstract class: there is nothing to call": """
        core.Inputs core.Params linalg.Gram measures.probe_agreement.Sweep training.Loop""",
    "a registry: its entries are checked one by one": """
        data.DATASETS models.MODELS kernels.KERNELS surrogates.INPUT_SURROGATES surrogates.SURROGATES
        measures.MEASURES xray.SECTIONS report.VIEWS""",
    "a kind of Gram: `contracts/gram.py` draws chains of views and compares each with its dense matrix": """
        linalg.OperatorGram linalg.TileValues storage.TiledGram""",
    "has no numbers: it is made by what reads or runs it, and tests/core, tests/doors and tests/report feed it odd files": """
        core.Snapshot core.Split core.progress storage.fill kernels.extend models.save_tensors models.save_weights
        training.restore training.save_snapshot""",
    "a module without options, or one that another entry makes": """
        models.ByteTokenizer models.Erf surrogates.Linearized""",
    "a decorator or a declaration: called when a part is written, not by users": """
        infinite.module_rule measures.measure""",
    "an inner step, whose arguments another function in the tables has checked": """
        linalg.correlation.haar_corner measures.dimension.shared_neighbours
        measures.kendall.below_in_both measures.uncertainty.resampled_means""",
    "needs a language model on disk": "models.text",
    "a whole run, minutes long: tests/xray, tests/tracking, tests/machines, tests/explain and tests/training attack it": """
        training.replay xray.xray tracking.Tracker machines.kernel_pairs explain.probes""",
}
ENTRIES: dict[str, str] = {
    "needs files on disk: tests/data reads broken ones": """
        data:cifar10 data:cifar2 data:cola data:fashion-mnist data:fmnist2 data:image-folder data:mnist data:mnist2
        data:olivetti data:sentiment140 data:table""",
    "needs a language model on disk": "model:text",
    "a section or view of an X-ray: `contracts/section.py` and `contracts/view.py` hold each to its suite": """
        section: view:""",
}


def listed(reasons: dict[str, str]) -> set[str]:
    return {name for names in reasons.values() for name in names.split()}
