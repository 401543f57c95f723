"""hardnet methods | explain | check | enforce: what the library enforces, how, and whether it holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hardnet.cli.common import AS_JSON, BROKEN, argument, command, print_json, print_table
from hardnet.laboratory import laboratory


@command(
    argument("--measure", action="store_true", help="Measure violation and time of each on standard sets, now."),
    argument("--device", default="cpu", help="auto, cpu or cuda, with --measure."),
    AS_JSON,
)
def methods(measure: bool, device: str, as_json: bool) -> None:
    """Table 1 of the paper: what each method of the library enforces and guarantees."""
    from dataclasses import asdict

    from hardnet.layers.table import methods as rows

    if measure:
        _measure_methods(device, as_json)
        return
    table = [asdict(row) for row in rows()]
    if as_json:
        print_json(table)
    else:
        print_table(table, ("name", "constraint", "input_dependence", "guarantee", "computation"))


def _measure_methods(device: str, as_json: bool) -> None:
    """Print the violation and the time of every method on every standard set."""
    measured = laboratory("experiments.measured")
    rows = measured.measure(str(laboratory("experiments.run").choose_device(device)))
    if as_json:
        print_json(rows)
    else:
        print(f"{measured.overview(rows)}\n\n{measured.table(rows)}")


DATA = "Inputs x, one sample a row: .safetensors (tensor x), .npy or .csv."
NET = argument("--net", required=True, help="module:function or FILE.py:NAME: the network, or the whole HardNet.")


@command(
    argument("constraint", metavar="FILE.py:SET", help="A set, a model, or a function of one."),
    argument("--data", type=Path, help=f"{DATA} Rows that depend on x need one."),
    AS_JSON,
)
def explain(constraint: str, data: Path | None, as_json: bool) -> None:
    """Which method 'auto' chooses for a set, the structure it found, and why not the others."""
    from hardnet.cli.inputs import find_set, read_inputs
    from hardnet.layers import explain as choose

    found = find_set(constraint)
    explanation = choose(found, None if data is None else read_inputs(data))
    if as_json:
        print_json({"set": str(found), "method": explanation.method, "reasons": explanation.reasons})
    else:
        print(f"{found}\n\n{explanation}")


@command(
    argument("model", type=Path, help="Folder that hn.save wrote."),
    argument("data", type=Path, help=DATA),
    NET,
    argument("--tolerance", type=float, help="Absolute; a few roundings by default."),
    AS_JSON,
)
def check(model: Path, data: Path, net: str, tolerance: float | None, as_json: bool) -> int:
    """Certificate of a saved model on a data file; exit code 0: it holds, 1: violated, 2: could not be checked."""
    from hardnet.cli.inputs import certify

    certificate = certify(model, data, net, tolerance)
    if as_json:
        satisfied = certificate.satisfied
        numbers = {"samples": satisfied.numel(), "satisfied": int(satisfied.sum())}
        rows = {name: row._asdict() for name, row in certificate.by_name().items()}
        print_json(numbers | {"max_violation": certificate.max_violation, "ok": certificate.ok, "rows": rows})
    else:
        print(certificate)
    return 0 if certificate.ok else BROKEN


@command(
    argument("model", type=Path, help="Folder that hn.save wrote."),
    argument("table", type=Path, help="A Parquet file, or a folder of them."),
    argument("out", type=Path, help="Folder of the results, a file for each row group; a second call goes on."),
    NET,
    argument("--set", dest="constraint", help="FILE.py:NAME, for a set with functions."),
    argument("--x", default="x", help="Comma-separated columns, or FILE.py:NAME, a function."),
    argument("--keep", default="", help="Comma-separated columns that the results have too."),
    argument("--shards", default="1/1", help="k/n: only row groups k, k + n, ...; k from 1 to n."),
    argument("--device", default="cpu", help="cpu or cuda."),
    argument("--batch", default=16384, type=int, help="Rows at once."),
    AS_JSON,
)
def enforce(model: Path, table: Path, out: Path, as_json: bool, **how: Any) -> int:
    """Enforce a saved model on a table, with the certificate of each row.

    Exit code 0: every row holds its constraint, 1: some do not, 2: something could not be read.
    """
    from hardnet.cli.inputs import enforced

    show = (lambda line: None) if as_json else (lambda line: print(line, file=sys.stderr))
    names = tuple(how.pop(name) for name in ("net", "constraint", "x", "keep"))
    total = enforced(model, table, out, names, show=show, **how)
    if as_json:
        print_json(total._asdict() | {"ok": total.satisfied == total.rows})
    else:
        holds = f"{total.satisfied} of {total.rows} rows satisfy every row of their set"
        print(f"{holds}; largest violation {total.violation:.3g}; results in {out}")
    return 0 if total.satisfied == total.rows else BROKEN
