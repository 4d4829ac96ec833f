/* All tests, listed by the files that define them; main.c runs them.  Each
 * test leaves the engine idle and without failures. */
#ifndef ENGINE_TESTS_H
#define ENGINE_TESTS_H

/* streams.c */
void test_fifo(void);
void test_priorities(void);
void test_node_priority(void);
void test_threads_few(void);
void test_full_queue(void);
void test_device_synchronize(void);
void test_destroy_pending(void);

/* events.c */
void test_versions(void);
void test_chains(void);
void test_timers(void);

/* failures.c */
void test_failures(void);
void test_failed_waits(void);

/* notifications.c */
void test_notifications(void);
void test_notifications_failed(void);
void test_notifications_refused(void);
void test_notifications_cancelled(void);
void test_notifications_raced(void);

/* gates.c */
void test_gates(void);
void test_gates_opened_within(void);
void test_gates_failed(void);
void test_gates_refused(void);
void test_gates_shared(void);
void test_timed_waits(void);
void test_interrupted_waits(void);
void test_busy_workers(void);

/* graphs.c */
void test_graphs(void);
void test_captures_refused(void);
void test_empty_child(void);
void test_captures_lost(void);

/* handles.c */
void test_handles(void);

/* known.c */
void probe_forks(void); /* call before the engine is made */
void test_without_lock(void);
void test_known(void);
void test_known_raced(void);

/* memory.c */
void test_memory(void);
void test_transfers(void);

/* partitions.c */
void test_partitions(void);

/* process.c */
void test_fork(void);
void test_no_thread(void);
void test_shutdown(void);

/* shared.c */
void test_shared(void);
void test_shared_by_the_dead(void);

/* stress.c */
void test_stress(void);

/* bench.c; not a test, because it only measures times. */
void bench(void);

#endif
