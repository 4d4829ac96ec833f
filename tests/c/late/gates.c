/* Runs the tests of gates and notifications in tests/c/cuda on the fake CUDA
 * of late_cuda, except the tests of captures and failures, which the fake CUDA
 * does not support. */
#include "../cuda/check.h"
#include "../cuda/tests.h"

#include <stdio.h>

int
main(void)
{
    OK(gpu->device_count(gpu, &devices));
    test_gates();
    test_gates_reused();
    test_gates_raced();
    printf("%d failed\n", failed);
    return failed != 0;
}
