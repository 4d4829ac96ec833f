/* Receives the ranges and marks that any library in the process reports
 * through NVTX.
 *
 * A library may call NVTX with any lock held.  To avoid a deadlock, the
 * functions here take only the locks of timeline.c and names.c.  While no
 * timeline is recording, marks and starts of ranges cost little, because the
 * functions check this first. */
#include "nvtx.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "names.h"
#include "timeline.h"

/* The name for the default domain, for which NVTX passes NULL. */
static const char default_domain[] = "NVTX";

/* The ranges that a thread has pushed but not popped, in the order of the
 * calls.  A range is not added to the stack if the stack is empty and no
 * timeline is recording.  Ranges of different domains need not be nested, so a
 * pop removes the latest range of its domain. */
struct stack {
    size_t count, room;
    struct pushed {
        const void *domain;
        uint64_t source; /* 0 if the range is not recorded */
    } items[];
};

static pthread_key_t stack_key;
static bool has_key;

/* ---- Texts ---- */

static size_t
encode(uint32_t code, char *bytes)
{
    static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
    size_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    bytes[0] = (char)(first[more] | code >> (6 * more));
    for (size_t i = 1; i <= more; i++) {
        bytes[i] = (char)(0x80 | (code >> (6 * (more - i)) & 0x3f));
    }
    return more + 1;
}

/* Returns the number of the text, or 0 if the text is NULL or memory runs
 * out. */
static uint32_t
number_of(const char *text)
{
    return text != NULL ? ps_name_number(text) : 0;
}

static uint32_t
number_of_wide(const wchar_t *text)
{
    char *bytes = text != NULL ? malloc(4 * wcslen(text) + 1) : NULL;
    size_t size = 0;
    if (bytes == NULL) {
        return 0;
    }
    for (; *text != L'\0'; text++) {
        uint32_t code = (uint32_t)*text;
        size += encode(code > 0x10ffff ? 0xfffd : code, bytes + size);
    }
    bytes[size] = '\0';
    uint32_t number = ps_name_number(bytes);
    free(bytes);
    return number;
}

/* Convert the handle of a domain or registered string to the number of its
 * name.  The handles that this file returns to libraries are such numbers.  A
 * library may also pass a handle that it got from another tool earlier.
 * Returns 0 if no name has the handle as its number. */
static uint32_t
number_of_handle(const void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    return number <= UINT32_MAX && ps_name_text((uint32_t)number) != NULL
               ? (uint32_t)number
               : 0;
}

static uint32_t
name_of(const struct nvtx_event *event)
{
    switch (event != NULL ? event->message_type : 0) {
    case NVTX_TEXT:
        return number_of(event->message.text);
    case NVTX_WIDE_TEXT:
        return number_of_wide(event->message.wide);
    case NVTX_REGISTERED:
        return number_of_handle(event->message.registered);
    default:
        return 0;
    }
}

static struct nvtx_event
event_of(const char *text)
{
    return (struct nvtx_event){.message_type = NVTX_TEXT,
                               .message.text = text};
}

static struct nvtx_event
event_of_wide(const wchar_t *text)
{
    return (struct nvtx_event){.message_type = NVTX_WIDE_TEXT,
                               .message.wide = text};
}

/* ---- Ranges ---- */

static uint64_t
begin(enum ps_slice_kind kind, const void *domain,
      const struct nvtx_event *event)
{
    if (!ps_timeline_is_on()) {
        return 0;
    }
    uint32_t number = number_of_handle(domain);
    number = number != 0 ? number : ps_name_number(default_domain);
    return number != 0 ? ps_timeline_range(kind, name_of(event), number) : 0;
}

static struct stack *
with_room(struct stack *stack)
{
    if (stack != NULL && stack->count < stack->room) {
        return stack;
    }
    size_t room = stack != NULL ? 2 * stack->room : 16;
    struct stack *grown =
        realloc(stack, sizeof(*grown) + room * sizeof(*grown->items));
    if (grown == NULL) {
        return NULL;
    }
    grown->count = stack != NULL ? grown->count : 0;
    grown->room = room;
    if (pthread_setspecific(stack_key, grown) != 0) {
        free(grown);
        return NULL;
    }
    return grown;
}

static int
push(const void *domain, const struct nvtx_event *event)
{
    struct stack *stack = pthread_getspecific(stack_key);
    bool is_open = stack != NULL && stack->count > 0;
    if (!is_open && !ps_timeline_is_on()) {
        return NVTX_NO_PUSH_POP_TRACKING;
    }
    struct stack *grown = with_room(stack);
    if (grown != NULL) {
        uint64_t source = begin(PS_SLICE_SPAN, domain, event);
        grown->items[grown->count++] = (struct pushed){domain, source};
    }
    else if (is_open) {
        /* The range could not be added to the stack.  Empty the stack, because
         * otherwise the next pop would end the wrong range. */
        stack->count = 0;
    }
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int
pop(const void *domain)
{
    struct stack *stack = pthread_getspecific(stack_key);
    size_t i = stack != NULL ? stack->count : 0;
    while (i > 0 && stack->items[i - 1].domain != domain) {
        i--;
    }
    if (i > 0) {
        ps_timeline_range_end(stack->items[i - 1].source);
        for (stack->count--; i <= stack->count; i++) {
            stack->items[i - 1] = stack->items[i];
        }
    }
    return NVTX_NO_PUSH_POP_TRACKING;
}

/* ---- Functions that NVTX calls ---- */

static void
mark_ex(const struct nvtx_event *event)
{
    begin(PS_SLICE_MARK, NULL, event);
}

static void
mark_a(const char *text)
{
    struct nvtx_event event = event_of(text);
    begin(PS_SLICE_MARK, NULL, &event);
}

static void
mark_w(const wchar_t *text)
{
    struct nvtx_event event = event_of_wide(text);
    begin(PS_SLICE_MARK, NULL, &event);
}

static void
domain_mark_ex(const void *domain, const struct nvtx_event *event)
{
    begin(PS_SLICE_MARK, domain, event);
}

/* Returns the identifier of the new range (see ps_timeline_range), or 0 if the
 * range is not recorded. */
static uint64_t
range_start_ex(const struct nvtx_event *event)
{
    return begin(PS_SLICE_SPAN, NULL, event);
}

static uint64_t
range_start_a(const char *text)
{
    struct nvtx_event event = event_of(text);
    return begin(PS_SLICE_SPAN, NULL, &event);
}

static uint64_t
range_start_w(const wchar_t *text)
{
    struct nvtx_event event = event_of_wide(text);
    return begin(PS_SLICE_SPAN, NULL, &event);
}

static uint64_t
domain_range_start_ex(const void *domain, const struct nvtx_event *event)
{
    return begin(PS_SLICE_SPAN, domain, event);
}

static void
domain_range_end(const void *domain, uint64_t source)
{
    (void)domain;
    ps_timeline_range_end(source);
}

static int
range_push_ex(const struct nvtx_event *event)
{
    return push(NULL, event);
}

static int
range_push_a(const char *text)
{
    struct nvtx_event event = event_of(text);
    return push(NULL, &event);
}

static int
range_push_w(const wchar_t *text)
{
    struct nvtx_event event = event_of_wide(text);
    return push(NULL, &event);
}

static int
range_pop(void)
{
    return pop(NULL);
}

static const void *
domain_create_a(const char *text)
{
    return (const void *)(uintptr_t)number_of(text);
}

static const void *
domain_create_w(const wchar_t *text)
{
    return (const void *)(uintptr_t)number_of_wide(text);
}

static const void *
domain_register_string_a(const void *domain, const char *text)
{
    (void)domain;
    return (const void *)(uintptr_t)number_of(text);
}

static const void *
domain_register_string_w(const void *domain, const wchar_t *text)
{
    (void)domain;
    return (const void *)(uintptr_t)number_of_wide(text);
}

struct handler {
    unsigned id;
    nvtx_function function;
};

#define HANDLER(id, function)         \
    {                                 \
        id, (nvtx_function)(function) \
    }

static const struct handler core[] = {
    HANDLER(NVTX_MARK_EX, mark_ex),
    HANDLER(NVTX_MARK_A, mark_a),
    HANDLER(NVTX_MARK_W, mark_w),
    HANDLER(NVTX_RANGE_START_EX, range_start_ex),
    HANDLER(NVTX_RANGE_START_A, range_start_a),
    HANDLER(NVTX_RANGE_START_W, range_start_w),
    HANDLER(NVTX_RANGE_END, ps_timeline_range_end),
    HANDLER(NVTX_RANGE_PUSH_EX, range_push_ex),
    HANDLER(NVTX_RANGE_PUSH_A, range_push_a),
    HANDLER(NVTX_RANGE_PUSH_W, range_push_w),
    HANDLER(NVTX_RANGE_POP, range_pop),
};

static const struct handler core2[] = {
    HANDLER(NVTX_DOMAIN_MARK_EX, domain_mark_ex),
    HANDLER(NVTX_DOMAIN_RANGE_START_EX, domain_range_start_ex),
    HANDLER(NVTX_DOMAIN_RANGE_END, domain_range_end),
    HANDLER(NVTX_DOMAIN_RANGE_PUSH_EX, push),
    HANDLER(NVTX_DOMAIN_RANGE_POP, pop),
    HANDLER(NVTX_DOMAIN_REGISTER_STRING_A, domain_register_string_a),
    HANDLER(NVTX_DOMAIN_REGISTER_STRING_W, domain_register_string_w),
    HANDLER(NVTX_DOMAIN_CREATE_A, domain_create_a),
    HANDLER(NVTX_DOMAIN_CREATE_W, domain_create_w),
};

static void
make_key(void)
{
    has_key = pthread_key_create(&stack_key, free) == 0;
}

static bool
serve(const struct nvtx_callbacks *callbacks, int module,
      const struct handler *handlers, size_t count)
{
    nvtx_function **functions;
    unsigned known;
    if (!callbacks->module(module, &functions, &known)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (handlers[i].id < known && functions[handlers[i].id] != NULL) {
            *functions[handlers[i].id] = handlers[i].function;
        }
    }
    return true;
}

int
InitializeInjectionNvtx2(nvtx_export_table export_table)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct nvtx_callbacks *callbacks = export_table(NVTX_CALLBACKS);
    pthread_once(&once, make_key);
    ps_timeline_prepare();
    return callbacks != NULL && has_key &&
           serve(callbacks, NVTX_CORE, core, sizeof(core) / sizeof(*core)) &&
           serve(callbacks, NVTX_CORE2, core2, sizeof(core2) / sizeof(*core2));
}
