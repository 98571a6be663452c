"""The README's table and picture, from what `make run` left: written anew, or compared (--check).

Chains magnify rounding, which differs between numbers of cores, kinds of CPU and versions of JAX:
numbers are compared within four of their Monte Carlo errors, words as they are.
"""

import re
import shutil
import sys
from math import hypot
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs/images/difference.png"
RUN = ROOT / "results/rats"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)
ROW = re.compile(r"^\w+ +\d+ +-?[\d.]+ .*\n", re.MULTILINE)
ROUNDING = 0.1


def rows(text: str) -> dict[tuple[str, str], list[float]]:
    """elpd_diff, dse, mcse_diff, elpd, se and mcse of each model in each table."""
    found = {}
    for table in re.split(r"\n(?=Pointwise)", text):
        for row in ROW.findall(table):
            model, _, *numbers = row.split()
            found[table.split()[0], model] = [float(x) for x in numbers[:3] + numbers[-3:]]
    return found


def words(text: str) -> str:
    return re.sub(r"-?\d+(\.\d+)?", "#", " ".join(ROW.sub("", text).split()))


def wrong(told: str, printed: str) -> list[str]:
    """What stands in the README and is not what was printed."""
    if words(told) != words(printed):
        return [f"it says\n{told}\nand what is printed is\n{printed}"]
    here = rows(printed)
    problems = []
    for key, numbers in rows(told).items():
        for start, names in ((0, ("elpd_diff", "dse")), (3, ("elpd", "se"))):
            error = 4 * hypot(numbers[start + 2], here[key][start + 2]) + ROUNDING
            for i, name in enumerate(names, start):
                if abs(numbers[i] - here[key][i]) > error:
                    problems.append(f"{' '.join(key)}: {name} {numbers[i]}, printed {here[key][i]}")
    return problems


def main() -> None:
    text, printed = README.read_text(), (RUN / "logs/compare.log").read_text().strip() + "\n"
    if "--check" in sys.argv:
        found = wrong(BLOCK.search(text)[0], printed)
        sys.exit("\n".join(f"error: README.md: {line}" for line in found) or 0)
    README.write_text(BLOCK.sub(lambda _: printed, text, count=1))
    shutil.copy(RUN / "figures/difference.png", PICTURE)


if __name__ == "__main__":
    main()
