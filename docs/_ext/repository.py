"""Pages of the repository that the site includes: their links lead to the site's own pages."""

from pathlib import Path

from sphinx.application import Sphinx

REPLACED = {
    "GLOSSARY.md": {},
    "CHANGELOG.md": {},
    "config/README.md": {
        "](config.yaml)": "](../../config/config.yaml)",
        "](paper/": "](../../config/paper/",
        "](loo_subsampling/": "](../../config/loo_subsampling/",
        "](cumulative/": "](../../config/cumulative/",
        "](subspace/": "](../../config/subspace/",
        "](nested_rhat/": "](../../config/nested_rhat/",
        "](../workflow/": "](../../workflow/",
        "](../pcv/models/zoo)": "](api.md#models-of-the-examples)",
        "](../docs/stopping.md)": "](../stopping.md)",
        "](../docs/mixing.md#": "](../mixing.md#",
    },
    "results/README.md": {},
}
"""by file of the repository, and what stands there in its links"""


def rewritten(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    file = (Path(app.srcdir) / path).resolve().relative_to(Path(app.srcdir).parent.resolve())
    for old, new in REPLACED[file.as_posix()].items():
        if old not in content[0]:
            raise ValueError(f"{file} has no {old}: correct docs/_ext/repository.py")
        content[0] = content[0].replace(old, new)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("include-read", rewritten)
    return {"parallel_read_safe": True}
