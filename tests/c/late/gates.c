/* The tests of gates and notifications in tests/c/cuda, but for those of
 * captures and failures, over late_cuda. */
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
