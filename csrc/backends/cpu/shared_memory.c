/* Memory that several processes share.  The memory is a file that files.c
 * creates.  The file is mapped behind a private page, in which the engine
 * keeps its own data about the memory.  The process that allocated the memory
 * keeps the file open, so that other processes can open it.  A process that
 * has mapped the memory does not need the open file.
 *
 * The rule: another process may write anything into the file at any time, so
 * the engine keeps no data of its own there. */
#include "shared.h"

#include <string.h>

struct local {
    struct cpu_pages pages;
    struct cpu_range range;
    /* The memory's file.  It is open only in the process that allocated the
     * memory. */
    struct cpu_file file;
};

_Static_assert(sizeof(struct local) <= CPU_PAGE_BYTES,
               "struct local fits in the private page");

/* Returns the sizes of the mapping for nbytes of memory.  The mapping begins
 * with the private page.  The file follows; its first page contains the nonce,
 * and the data begin at its second page. */
static struct cpu_pages
pages_for(size_t nbytes)
{
    size_t data =
        (nbytes + CPU_PAGE_BYTES - 1) & ~(size_t)(CPU_PAGE_BYTES - 1);
    return (struct cpu_pages){CPU_PAGE_BYTES, CPU_PAGE_BYTES + data};
}

static struct local *
local_of(void *data)
{
    return (struct local *)((char *)data - (size_t)2 * CPU_PAGE_BYTES);
}

/* Add mapped memory to the engine.  `file` is the descriptor of the memory's
 * file, or -1 if another process has allocated the memory.  After a failure,
 * the file is closed and the memory is unmapped. */
static ps_status
add(struct cpu_engine *engine, int device, const struct cpu_pages *pages,
    void *mapped, int file, void **data)
{
    char *first = (char *)mapped + CPU_PAGE_BYTES;
    struct local *local = local_of(first);
    *local = (struct local){
        .pages = *pages,
        .range = {.first = (uintptr_t)first,
                  .nbytes = pages->nbytes - CPU_PAGE_BYTES,
                  .device = device,
                  .counted = file >= 0},
        .file = {.number = -1},
    };
    cpu_lock(engine);
    if (file >= 0) {
        cpu_file_keep_locked(engine, &local->file, file);
    }
    ps_status status = cpu_is_lazy(engine)
                           ? PS_ERROR_SCHEDULED
                           : cpu_range_add_locked(engine, &local->range);
    if (status != PS_SUCCESS) {
        cpu_file_close_locked(&local->file);
    }
    cpu_unlock(engine);
    if (status != PS_SUCCESS) {
        cpu_pages_unmap(pages, mapped);
        return status;
    }
    *data = first;
    return PS_SUCCESS;
}

static ps_status
cpu_shared_allocate(const struct ps_backend *backend, int device,
                    size_t nbytes, unsigned char handle[PS_IPC_HANDLE_BYTES],
                    void **data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_token token;
    void *mapped;
    uint64_t most = engine->memory != 0 ? engine->memory : cpu_host_memory();
    if (nbytes > most) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    struct cpu_pages pages = pages_for(nbytes);
    ps_status status = cpu_token_create(engine, CPU_SHARE_MEMORY, device,
                                        &pages, &token, &mapped);
    if (status == PS_SUCCESS) {
        status = add(engine, device, &pages, mapped, token.file, data);
    }
    if (status == PS_SUCCESS) {
        memcpy(handle, &token, sizeof(token));
    }
    return status;
}

static ps_status
cpu_shared_open(const struct ps_backend *backend, int device,
                const unsigned char handle[PS_IPC_HANDLE_BYTES], size_t nbytes,
                void **data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_token token;
    void *mapped;
    if (nbytes > cpu_host_memory()) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_pages pages = pages_for(nbytes);
    ps_status status = cpu_token_open(engine, CPU_SHARE_MEMORY, device, &pages,
                                      handle, &token, &mapped);
    return status == PS_SUCCESS ? add(engine, device, &pages, mapped, -1, data)
                                : status;
}

static ps_status
cpu_shared_free(const struct ps_backend *backend, int device, void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct local *local = local_of(data);
    struct cpu_pages pages = local->pages;
    (void)device;
    cpu_lock(engine);
    cpu_range_remove_locked(engine, &local->range);
    cpu_file_close_locked(&local->file);
    cpu_unlock(engine);
    cpu_pages_unmap(&pages, (char *)data - CPU_PAGE_BYTES);
    return PS_SUCCESS;
}

void
cpu_shared_memory_members(struct ps_backend *table)
{
    table->shared_allocate = cpu_shared_allocate;
    table->shared_open = cpu_shared_open;
    table->shared_free = cpu_shared_free;
}
