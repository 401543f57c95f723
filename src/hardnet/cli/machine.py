"""hardnet doctor | warmup: what this machine has, and how long its kernels take."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from hardnet.cli.common import AS_JSON, argument, command, print_json


@command(
    argument("--timing", default=True, action=BooleanOptionalAction, help="Time one call of each kernel."),
    AS_JSON,
)
def doctor(timing: bool, as_json: bool) -> None:
    """What is installed, which kernels are active, and how long one call of each takes."""
    from hardnet.cli.doctor import examine, in_words

    findings = examine(timing)
    if as_json:
        print_json(findings)
    else:
        print(in_words(findings))


@command(AS_JSON)
def warmup(as_json: bool) -> None:
    """Compile the CPU kernels ahead of time, on all cores, so that no first call computes without them."""
    from hardnet.warming import warmup as compile_all

    compiled = compile_all(quiet=as_json)
    if as_json:
        print_json(compiled)
