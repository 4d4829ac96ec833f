/* All tests, listed by the files that define them; main.c runs them. */
#ifndef CUDA_TESTS_H
#define CUDA_TESTS_H

/* devices.c */
void test_absent(void);
void test_status_text(void);
void test_count(void);
void test_visible_all(void);
void test_properties(void);
void test_first_device(void);
void test_last_device(void);
void test_set_and_restore(void);

/* work.c */
/* Exercise streams, events and memory of one device.  Any device may be
 * current, and the thread may have no context. */
void *exercise(void *device);
void test_threads(void);
void test_across(void);
void test_capture(void);

/* gates.c */
void test_gates(void);
void test_gates_reused(void);
void test_gates_raced(void);
void test_gates_refused(void);
void test_gates_failed(void);

#endif
