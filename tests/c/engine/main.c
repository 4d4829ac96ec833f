/* Tests the CPU engine through its table, without Python.
 *
 *   engine                  all tests: "N passed, 0 failed"
 *   engine --bench          nanoseconds per operation
 *   engine --plant race     a fault of this program itself, which the
 *          leak | overflow  sanitizer in use must report */
#include "check.h"
#include "tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int planted; /* no lock guards it: this is the race */

static void *
plant_race(void *argument)
{
    for (int i = 0; i < 100000; i++) {
        planted++;
    }
    return argument;
}

static int
plant(const char *fault)
{
    if (strcmp(fault, "race") == 0) {
        run_threads(plant_race);
    }
    else if (strcmp(fault, "leak") == 0) {
        char *volatile lost = malloc(1000);
        lost[0] = 1;
        lost = NULL;
    }
    else if (strcmp(fault, "overflow") == 0) {
        volatile char *block = malloc(1000);
        volatile int end = 1000;
        block[end] = 1;
        free((void *)block);
    }
    else {
        fprintf(stderr, "unknown fault: %s\n", fault);
        return 2;
    }
    return 0;
}

int
main(int argc, char **argv)
{
    /* test_no_thread comes first.  It limits memory so that no thread can be
     * created.  This would not work after a thread has ended, because a new
     * thread could reuse its stack. */
    static void (*const tests[])(void) = {
        test_no_thread,
        test_fifo,
        test_versions,
        test_chains,
        test_priorities,
        test_node_priority,
        test_timers,
        test_handles,
        test_without_lock,
        test_known,
        test_known_raced,
        test_full_queue,
        test_failures,
        test_failed_waits,
        test_transfers,
        test_device_synchronize,
        test_memory,
        test_fork,
        test_destroy_pending,
        test_threads_few,
        test_gates,
        test_notifications,
        test_notifications_failed,
        test_notifications_refused,
        test_notifications_cancelled,
        test_notifications_raced,
        test_gates_opened_within,
        test_gates_failed,
        test_gates_refused,
        test_gates_shared,
        test_timed_waits,
        test_interrupted_waits,
        test_busy_workers,
        test_shared,
        test_shared_by_the_dead,
        test_graphs,
        test_captures_refused,
        test_empty_child,
        test_captures_lost,
        test_partitions,
        test_stress,
        test_shutdown,
    };
    probe_forks();
    cpu = ps_cpu_backend("cpu", PS_DEVICE_CPU, 2, 0);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return failed != 0;
    }
    if (argc > 2 && strcmp(argv[1], "--plant") == 0) {
        return plant(argv[2]);
    }
    if (argc > 1) {
        fprintf(stderr, "usage: %s [--bench | --plant FAULT]\n", argv[0]);
        return 2;
    }
    alarm(120); /* a hang is a failure */
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        tests[i]();
    }
    OK(cpu->device_synchronize(cpu, 0, NULL));
    OK(cpu->shutdown(cpu, 10000000000));
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
