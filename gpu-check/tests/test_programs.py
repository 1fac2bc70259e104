"""Running the project's own programs, without a GPU: shell scripts take their place."""

import sys

import pytest

import suite

sys.path.insert(0, str(suite.WORKLOADS_DIR))

import cuda_programs
from harness import CheckFailed, Settings, SkipWorkload


def program(tmp_path, name, script):
    path = tmp_path / name
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def test_lines_of_notes_are_not_compared(tmp_path):
    one = program(tmp_path, "one", "#!/bin/sh\necho result\necho '# took 5 ms'\n")
    two = program(tmp_path, "two", "#!/bin/sh\necho '# took 7 ms'\necho result\n")
    other = program(tmp_path, "other.py", "print('another result')\n")
    run = cuda_programs.WORKLOADS
    assert run[one](Settings()).digest == run[two](Settings()).digest
    assert run[one](Settings()).digest != run[other](Settings()).digest


def test_failure_says_why(tmp_path):
    path = program(tmp_path, "fails", "#!/bin/sh\necho 'expected 3, got 4' >&2\nexit 5\n")
    with pytest.raises(CheckFailed, match=r"ended with 5: expected 3, got 4"):
        cuda_programs.WORKLOADS[path](Settings())


def test_missing_library_is_nobodys_fault_unless_it_is_the_driver(tmp_path):
    words = (
        "#!/bin/sh\necho 'x: error while loading shared libraries: {}: cannot open shared object file' >&2\nexit 127\n"
    )
    with pytest.raises(SkipWorkload, match=r"libnvrtc\.so\.13"):
        cuda_programs.run(program(tmp_path, "a", words.format("libnvrtc.so.13")), Settings())
    with pytest.raises(CheckFailed, match=r"libcuda\.so\.1"):
        cuda_programs.run(program(tmp_path, "b", words.format("libcuda.so.1")), Settings())
