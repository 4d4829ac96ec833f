#!/usr/bin/env bash
# The tests of memory, copies and order under compute-sanitizer's memcheck, on
# a GPU: invalid accesses, and memory used before its allocation or after its
# release in stream order.  Each kind must first be reported where it is
# planted.  racecheck does not apply: it is of shared memory, which the kernel
# of pystreams has none of.
#
#   PYTHON             the interpreter; .venv/bin/python
#   COMPUTE_SANITIZER  the tool; that of PATH, else of CUDA_HOME
#
# Arguments go to pytest, in place of the tests below.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
tool=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer ||
    echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")}
if [ ! -x "$tool" ]; then
    echo "compute-sanitizer was not found; COMPUTE_SANITIZER says where it is"
    exit 1
fi
reported=66
failed=0
export SANITIZER=compute-sanitizer

build() {
    "$python" setup.py -q build_ext --inplace >/dev/null
}

# What is built in place takes part, and is built as it was when all is done.
trap build EXIT
PYSTREAMS_SANITIZE=compute build || exit 1

sanitized() {
    # Tests of what is refused make the API errors.  For a backtrace the tool
    # keeps Python's frames, and with them the memory that they hold.
    timeout 900 "$tool" --tool memcheck --error-exitcode $reported \
        --report-api-errors no --track-stream-ordered-races all \
        --show-backtrace no "$python" "$@"
}

# planted KIND STATUS
planted() {
    local said status
    said=$(sanitized tests/support/planted_gpu.py "$1" 2>&1)
    status=$?
    grep -m 1 -E "Invalid|[Rr]ace|[Uu]se.(before|after)" <<<"$said"
    if [ $status -ne "$2" ]; then
        echo "$said" | tail -20
        echo "planted $1: ended with $status, expected $2"
        failed=1
    fi
}

planted none 0
planted address $reported
planted order $reported

if [ $# -eq 0 ]; then
    set -- tests/api/test_stream.py \
        tests/api/test_event.py \
        tests/memory/test_buffer.py \
        tests/memory/test_memory_use.py \
        tests/memory/test_copy.py \
        tests/memory/test_dlpack_export.py \
        tests/memory/test_array_interface.py
fi
sanitized -m pytest -q -p no:cacheprovider -k cuda "$@"
status=$?
case $status in
$reported) echo "compute-sanitizer reported something" ;;
0) ;;
*) echo "the tests ended with $status" ;;
esac
[ $failed -eq 0 ] && [ $status -eq 0 ]
