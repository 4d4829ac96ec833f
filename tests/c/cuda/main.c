/* Tests the CUDA backend through its table, on the GPUs of this machine.  If
 * there is no GPU, tests only how the backend behaves then.  Prints "N passed,
 * 0 failed".
 *
 * This process only counts devices, and does not initialize the driver.  Each
 * test runs in its own child process, so it begins with no context on any
 * device. */
#include "check.h"
#include "tests.h"

#include <stdio.h>

int
main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu->device_count(gpu, &devices);
    run("status text", test_status_text);
    if (devices == 0) {
        run("no GPU", test_absent);
        printf("no GPU here: only the behaviour without one was tested\n");
    }
    else {
        run("count", test_count);
        run("CUDA_VISIBLE_DEVICES", test_visible_all);
        run("properties", test_properties);
        run("first device", test_first_device);
        run("threads", test_threads);
        run("capture", test_capture);
        run("gates", test_gates);
        run("gates reused", test_gates_reused);
        run("gates raced", test_gates_raced);
        run("gates refused", test_gates_refused);
        run("gates failed", test_gates_failed);
        if (devices > 1) {
            run("last device", test_last_device);
            run("set and restore", test_set_and_restore);
            run("across devices", test_across);
        }
        else {
            printf("one GPU here: nothing across devices was tested\n");
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
