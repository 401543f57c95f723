"""Put onnxruntime-web beside the playground: ``python docs/playground/fetch_runtime.py``.

The WebAssembly file is 14 MB, too large for the repository. npm installs the locked version (checked by its hash) into
a temporary folder, and the two files that the page loads are copied to ``runtime/``, which git ignores. Without npm or
a registry the page is whole but for its second tab, which says what is missing; this script says so too and succeeds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = HERE / "runtime"
LOCK = "package-lock.json"
FILES = {"ort.wasm.bundle.min.mjs": "ort.mjs", "ort-wasm-simd-threaded.wasm": "ort-wasm-simd-threaded.wasm"}
"""Names in the package, and beside the page."""
SECONDS = 300


def fetch() -> str | None:
    """Fill ``runtime/`` unless it holds the locked version; what is in the way, or None."""
    if present():
        return None
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", LOCK):
            shutil.copy(HERE / name, folder)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            return f"npm could not install the runtime ({error})"
        _copy(Path(folder) / "node_modules" / "onnxruntime-web" / "dist")
    return None


def present() -> bool:
    """Whether ``runtime/`` holds what the lock file names."""
    lock = RUNTIME / LOCK
    return lock.exists() and lock.read_bytes() == (HERE / LOCK).read_bytes()


def _copy(source: Path) -> None:
    """The files first and the lock last, so that an interrupted copy is not taken for a whole one."""
    RUNTIME.mkdir(exist_ok=True)
    for name, here in FILES.items():
        shutil.copy(source / name, RUNTIME / here)
    shutil.copy(HERE / LOCK, RUNTIME / LOCK)


if __name__ == "__main__":
    problem = fetch()
    if problem is not None:
        sys.stderr.write(f"playground: {problem}; the tab of trained models will say that its runtime is missing\n")
