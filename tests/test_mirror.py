"""Tests mirror the sources: ``src/hardnet/room/module.py`` is tested by ``tests/room/test_module.py``.

`ELSEWHERE` lists the modules that are tested under the name of another file, by that file. A new module needs a test of
its own name, or a line here that says where its tests stand.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES, TESTS = ROOT / "src" / "hardnet", ROOT / "tests"
ELSEWHERE = {
    "cli/test_experiments.py": "experiments/demo",
    "cli/test_machine.py": "experiments/doctor experiments/warmup",
    "experiments/suites/test_interior.py": "experiments/suites/convex experiments/suites/references",
    "experiments/suites/test_power.py": "experiments/suites/acopf",
    "experiments/suites/test_run.py": "experiments/suites/base experiments/suites/dc3 experiments/suites/pinet "
    "experiments/suites/programs",
    "experiments/suites/test_separable.py": "experiments/suites/fsnet experiments/suites/snarenet",
    "experiments/suites/test_unicycle.py": "experiments/suites/hardnetpp",
    "experiments/test_figures.py": "experiments/pictures experiments/style",
    "experiments/test_limits.py": "experiments/optimal experiments/substeps",
    "experiments/test_report.py": "experiments/report_page experiments/sections",
    "experiments/test_run.py": "experiments/results experiments/row experiments/specs",
    "experiments/test_tables.py": "experiments/paper",
    "functional/test_affine.py": "functional/affine_factors functional/affine_formulas shapes",
    "functional/test_affine_strict.py": "functional/strict",
    "functional/test_box_rows.py": "functional/box_rows_gradient",
    "functional/test_cones.py": "solvers/conic/cones solvers/conic/semidefinite",
    "functional/test_intersection.py": "functional/conic functional/conic_gradient",
    "functional/test_nearest_few.py": "functional/nearest_formulas solvers/polyhedron/few_rows solvers/solution",
    "functional/test_nonlinear.py": "functional/nonlinear_call functional/nonlinear_gradient solvers/nonlinear/kkt",
    "functional/test_polyhedron.py": "functional/samples",
    "functional/test_polyhedron_fixed.py": "solvers/polyhedron/fixed solvers/polyhedron/single",
    "functional/test_polyhedron_gradient.py": "solvers/polyhedron/active",
    "functional/test_quadratic.py": "solvers/conic/quadratic_root",
    "functional/test_simplex_ball_box.py": "functional/elementary",
    "kernels/test_active_set.py": "kernels/cpu/active_set kernels/cpu/approach kernels/cpu/definite kernels/cpu/kkt "
    "kernels/cpu/retraction",
    "kernels/test_affine.py": "kernels/checking kernels/gpu/affine kernels/gpu/affine_reference kernels/gpu/blocks "
    "kernels/gpu/common kernels/gpu/gram kernels/limits",
    "kernels/test_affine_shared.py": "kernels/gpu/affine_shared",
    "kernels/test_conic.py": "kernels/cpu/conic kernels/cpu/conic_blocks kernels/cpu/conic_entry "
    "kernels/cpu/conic_layout kernels/cpu/conic_sample kernels/cpu/conic_steps kernels/cpu/conic_system "
    "kernels/cpu/small_eigen",
    "kernels/test_cpu.py": "kernels/cpu/affine kernels/cpu/affine_few kernels/cpu/affine_shared kernels/cpu/launch",
    "kernels/test_cpu_modes.py": "kernels/cpu/compiling kernels/cpu/gram_schmidt kernels/cpu/tiles modes",
    "kernels/test_definite.py": "kernels/gpu/definite",
    "kernels/test_launch.py": "kernels/gpu/affine_blocks kernels/gpu/affine_few kernels/gpu/affine_plan "
    "kernels/gpu/launch kernels/gpu/layouts",
    "kernels/test_nearest_box.py": "kernels/cpu/nearest_box",
    "kernels/test_nearest_box_gpu.py": "kernels/gpu/nearest_box kernels/gpu/nearest_box_short",
    "kernels/test_nearest_box_rows.py": "kernels/cpu/nearest_box_rows kernels/cpu/box_interior",
    "kernels/test_nearest_cpu.py": "kernels/cpu/nearest_few kernels/cpu/nearest_program kernels/cpu/nearest_tiles",
    "kernels/test_nearest_gpu.py": "kernels/gpu/nearest kernels/gpu/nearest_few kernels/gpu/nearest_program",
    "kernels/test_pivoting.py": "kernels/gpu/pivoting solvers/polyhedron/pivoting",
    "kernels/test_projection.py": "kernels/gpu/projection",
    "kernels/test_projection_backward.py": "kernels/gpu/projection_backward",
    "kernels/test_projection_cpu.py": "kernels/cpu/pivoting kernels/cpu/projection",
    "layers/test_dc3.py": "functional/completion functional/dc3",
    "layers/test_hardnet_aff.py": "layers/constant_rows layers/equality_rows",
    "layers/test_hardnet_cvx.py": "functional/program layers/projection",
    "layers/test_options.py": "layers/invalid",
    "layers/test_rayen.py": "solvers/conic/blocks solvers/conic/images solvers/offline/interior "
    "solvers/offline/interior_cone",
    "layers/test_soft.py": "layers/base",
    "problems/suites/test_hardnetpp.py": "problems/suites/hardnetpp_rows",
    "problems/test_data.py": "problems/base",
    "problems/test_unicycle.py": "problems/barrier",
    "sets/test_affine_sets.py": "sets/affine sets/intersection",
    "sets/test_constants.py": "sets/base sets/description",
    "sets/test_curved.py": "sets/ball sets/lmi sets/quadratic sets/simplex sets/smooth sets/soc",
    "sets/test_nonlinear.py": "solvers/nonlinear/existence",
    "sets/test_relaxed.py": "functional/relaxed",
    "sets/test_scaled.py": "sets/scaled_sets",
    "sets/test_sparse.py": "functional/sparse_rows solvers/polyhedron/sparse_factor "
    "solvers/polyhedron/sparse_interior solvers/polyhedron/sparse_rows",
    "solvers/conic/test_fixed.py": "solvers/conic/barrier_cones solvers/conic/barrier_matrices solvers/conic/barriers "
    "solvers/conic/interior solvers/algebra/eigen solvers/conic/quadratic_image solvers/conic/saddle",
    "solvers/conic/test_solve.py": "solvers/conic/distance solvers/conic/iterate solvers/conic/lagrangian "
    "solvers/conic/newton solvers/polyhedron/proximal solvers/conic/stack",
    "solvers/nonlinear/test_solve.py": "solvers/nonlinear/derivatives solvers/nonlinear/direction "
    "solvers/nonlinear/guesses solvers/nonlinear/input solvers/nonlinear/iterate solvers/nonlinear/measure "
    "solvers/nonlinear/nearest solvers/nonlinear/nearest_compiled solvers/nonlinear/nearest_step "
    "solvers/nonlinear/program solvers/nonlinear/retract solvers/nonlinear/retract_compiled "
    "solvers/nonlinear/retract_state solvers/nonlinear/retract_step solvers/nonlinear/rows solvers/nonlinear/search "
    "solvers/nonlinear/status solvers/nonlinear/step solvers/algebra/small",
    "solvers/offline/test_elimination.py": "solvers/ordered_clamp solvers/polyhedron/orthogonal",
    "solvers/polyhedron/test_box_rows.py": "solvers/polyhedron/box_breakpoints solvers/polyhedron/box_checks "
    "solvers/polyhedron/box_factor solvers/polyhedron/box_interior solvers/polyhedron/box_problem",
    "solvers/polyhedron/test_projection.py": "solvers/polyhedron/coordinates solvers/polyhedron/problem "
    "solvers/polyhedron/projection_steps",
    "solvers/polyhedron/test_shared_rows.py": "solvers/polyhedron/shared_blocks solvers/polyhedron/shared_factor "
    "solvers/polyhedron/shared_guess",
    "test_certificate.py": "sets/judge_records sets/judge_rows sets/judge_sparse sets/judgment",
    "test_contract.py": "testing/poison testing/promise",
    "test_gradients.py": "functional/derivatives",
    "test_public.py": "errors",
    "test_rows.py": "structure",
    "test_storage_functions.py": "sets/fingerprint",
    "test_transforms.py": "solvers/algebra/square",
    "train/test_stacked.py": "train/normalization train/stacked_module",
    "train/test_training.py": "train/batches train/loop train/settings",
}
"""Test file: the modules that it tests, without their ending."""
MODULES = {
    path.relative_to(SOURCES).with_suffix("").as_posix()
    for path in SOURCES.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}
LISTED = {module: place for place, modules in ELSEWHERE.items() for module in modules.split()}


def mirrored(module: str) -> bool:
    """Whether there is a test file of the module's own name."""
    path = TESTS / module
    return path.with_name(f"test_{path.name}.py").exists()


def untested(modules: set[str]) -> list[str]:
    """The modules without a test file of their name or a line in the table."""
    return sorted(module for module in modules if not mirrored(module) and module not in LISTED)


def test_every_module_has_its_tests():
    assert not untested(MODULES), "write tests/room/test_module.py, or say in ELSEWHERE where the tests stand"


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_table_names_tests_and_modules_that_exist(place):
    assert (TESTS / place).exists()
    assert not [module for module in ELSEWHERE[place].split() if module not in MODULES], "gone: take it off the table"


def test_no_module_stands_in_the_table_twice():
    assert len(LISTED) == sum(len(modules.split()) for modules in ELSEWHERE.values())


def test_the_rule_can_fail():
    assert untested({"sets/no_such_module", "model"}) == ["sets/no_such_module"]
