"""Death at every moment: a deed done in a forked child that ends, as if killed, at its k-th call into the system."""

import fcntl
import io
import os
import traceback
import warnings

CALLS = {
    os: ["open", "close", "replace", "rename", "unlink", "rmdir", "mkdir", "fsync", "write", "truncate", "symlink"],
    fcntl: ["flock"],
    io: ["open"],
}
"""Where `pathlib` and our own code call the system; what safetensors does by itself is one step."""


def deaths(deed, before=lambda: None, limit=200):
    """Do the deed in a child that dies at its k-th call, for k = 0, 1, ...; yield k each time, until it survives.

    Args:
        deed: What to do, in the child.
        before: What to do before each, in this process.
        limit: How many calls the deed may make.
    """
    for k in range(limit):
        before()
        code = _in_child(deed, k)
        assert code in (0, 9), f"the deed failed, exit code {code}"
        yield k
        if code == 0:
            return
    raise AssertionError(f"more than {limit} calls")


def _in_child(deed, k):
    def doomed():
        _arm(k)
        deed()

    return os.waitstatus_to_exitcode(os.waitpid(forked(doomed), 0)[1])


def forked(deed):
    """The process id of a child that does the deed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the tests hold no lock that we need
        child = os.fork()
    if child:
        return child
    try:
        deed()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _arm(k):
    """Count every call into the system, and die instead of making the k-th."""
    left = iter(range(k))

    def deadly(function):
        def call(*arguments, **options):
            if next(left, None) is None:
                os._exit(9)
            return function(*arguments, **options)

        return call

    for module, names in CALLS.items():
        for name in names:
            setattr(module, name, deadly(getattr(module, name)))
