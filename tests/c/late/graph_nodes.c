/* Tests the member graph_nodes of the CUDA backend.  The driver's functions
 * are replaced with functions that know a single graph, and list its nodes and
 * edges in reverse order. */
#include "../../../csrc/backends/cuda/driver.h"

#include "check.h"

#include <stdint.h>
#include <string.h>

/* The nodes of the graph.  A copy, a kernel and a host function depend on a
 * fill, and a record depends on these three.  The last node is an allocation,
 * which has no edges. */
enum { FILL, COPY, KERNEL, HOST, RECORD, OTHER, NODES };

static const CUgraphNodeType types[NODES] = {
    CU_GRAPH_NODE_TYPE_MEMSET,       CU_GRAPH_NODE_TYPE_MEMCPY,
    CU_GRAPH_NODE_TYPE_KERNEL,       CU_GRAPH_NODE_TYPE_HOST,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_MEM_ALLOC};

static const int ends[][2] = {{COPY, RECORD}, {KERNEL, RECORD}, {HOST, RECORD},
                              {FILL, HOST},   {FILL, KERNEL},   {FILL, COPY}};

enum { EDGES = sizeof(ends) / sizeof(ends[0]) };

/* The numbers of nodes and edges that the driver reports.  main() sets them to
 * 0 to test a graph without nodes and edges. */
static int node_total = NODES, edge_total = EDGES;

static CUgraphNode
node_of(int index)
{
    return (CUgraphNode)(uintptr_t)(16 * (index + 1));
}

static int
index_of(CUgraphNode node)
{
    return (int)((uintptr_t)node / 16) - 1;
}

static int
graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    (void)graph;
    for (int i = 0; nodes != NULL && i < node_total; i++) {
        nodes[i] = node_of(NODES - 1 - i);
    }
    *count = (size_t)node_total;
    return nodes != NULL && node_total == 0 ? CUDA_ERROR_INVALID_VALUE
                                            : CUDA_SUCCESS;
}

static int
graph_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *known,
            size_t *count)
{
    /* The bytes of CUgraphEdgeData: from_port, to_port, type, five reserved.
     */
    uint8_t(*data)[8] = known;
    (void)graph;
    CHECK((from == NULL) == (data == NULL));
    for (int i = 0; from != NULL && i < edge_total; i++) {
        from[i] = node_of(ends[i][0]);
        to[i] = node_of(ends[i][1]);
        data[i][0] = ends[i][0] == KERNEL;
        data[i][2] = ends[i][0] == KERNEL;
    }
    *count = (size_t)edge_total;
    return from != NULL && edge_total == 0 ? CUDA_ERROR_INVALID_VALUE
                                           : CUDA_SUCCESS;
}

static int
node_type(CUgraphNode node, CUgraphNodeType *type)
{
    *type = types[index_of(node)];
    return CUDA_SUCCESS;
}

static int
node_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *found)
{
    (void)node;
    found->kern = (CUkernel)&wrong;
    found->gridDimX = 1;
    found->gridDimY = 2;
    found->gridDimZ = 3;
    found->blockDimX = 4;
    found->blockDimY = 5;
    found->blockDimZ = 6;
    found->sharedMemBytes = 7;
    return CUDA_SUCCESS;
}

static int
kernel_name(const char **name, CUkernel kernel)
{
    *name = kernel == (CUkernel)&wrong ? "a kernel" : NULL;
    return CUDA_SUCCESS;
}

static int
node_copy(CUgraphNode node, CUDA_MEMCPY3D *found)
{
    (void)node;
    found->WidthInBytes = 7;
    return CUDA_SUCCESS;
}

static int
node_fill(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *found)
{
    (void)node;
    found->elementSize = 4;
    found->width = 5;
    found->height = 1;
    return CUDA_SUCCESS;
}

static int
node_host(CUgraphNode node, CUDA_HOST_NODE_PARAMS *found)
{
    (void)node;
    found->userData = &wrong;
    return CUDA_SUCCESS;
}

static int
node_record(CUgraphNode node, CUevent *event)
{
    *event = (CUevent)node;
    return CUDA_SUCCESS;
}

static void
load(void)
{
    int count;
    gpu->device_count(gpu, &count);
    cuda_driver.graph_nodes = graph_nodes;
    cuda_driver.graph_edges = graph_edges;
    cuda_driver.node_type = node_type;
    cuda_driver.node_kernel = node_kernel;
    cuda_driver.kernel_name = kernel_name;
    cuda_driver.node_copy = node_copy;
    cuda_driver.node_fill = node_fill;
    cuda_driver.node_host = node_host;
    cuda_driver.node_record = node_record;
}

/* The numbers that a driver for CUDA 13.1 gives to nodes and executables. */
static int
node_number(CUgraphNode node, unsigned long long *number)
{
    *number = 7ull << 32 | (unsigned)(100 + index_of(node));
    return CUDA_SUCCESS;
}

static int
executable_number(CUgraphExec executable, unsigned *number)
{
    *number = executable == (CUgraphExec)&wrong ? 5 : 0;
    return CUDA_SUCCESS;
}

static void
check_numbers(void)
{
    struct ps_graph_node nodes[NODES];
    size_t node_count = NODES, edge_count = 0;
    ps_handle executable = (ps_handle)&wrong;
    uint64_t number = 0;
    cuda_driver.node_number = NULL;
    cuda_driver.executable_number = NULL;
    CHECK(gpu->executable_number(gpu, 0, executable, &number) ==
          PS_ERROR_NOT_SUPPORTED);
    cuda_driver.node_number = node_number;
    cuda_driver.executable_number = executable_number;
    CHECK(gpu->executable_number(gpu, 0, executable, &number) == PS_SUCCESS);
    CHECK(number == 5);
    CHECK(gpu->graph_nodes(gpu, 0, 1, nodes, &node_count, NULL, &edge_count) ==
          PS_SUCCESS);
    CHECK(nodes[0].number == 100 + OTHER && nodes[1].number == 100 + FILL);
}

int
main(void)
{
    static const enum ps_node_kind kinds[NODES] = {
        PS_NODE_OTHER,  PS_NODE_FILL, PS_NODE_COPY,
        PS_NODE_KERNEL, PS_NODE_HOST, PS_NODE_RECORD};
    struct ps_graph_node nodes[NODES];
    struct ps_graph_edge edges[EDGES];
    size_t node_count = 0, edge_count = 0;
    load();
    OK(gpu->graph_nodes(gpu, 0, 1, NULL, &node_count, NULL, &edge_count));
    CHECK(node_count == NODES && edge_count == EDGES);
    OK(gpu->graph_nodes(gpu, 0, 1, nodes, &node_count, edges, &edge_count));
    for (int i = 0; i < NODES; i++) {
        CHECK(nodes[i].kind == kinds[i]);
    }
    CHECK(nodes[1].nbytes == 20 && nodes[2].nbytes == 7);
    CHECK(nodes[3].name != NULL && nodes[3].name[0] == 'a');
    CHECK(nodes[3].grid[0] == 1 && nodes[3].grid[1] == 2 &&
          nodes[3].grid[2] == 3);
    CHECK(nodes[3].block[0] == 4 && nodes[3].block[1] == 5 &&
          nodes[3].block[2] == 6);
    CHECK(nodes[3].shared_nbytes == 7 && nodes[2].shared_nbytes == 0);
    CHECK(nodes[2].grid[0] == 0);
    CHECK(nodes[0].name != NULL && strcmp(nodes[0].name, "mem_alloc") == 0);
    for (uint32_t i = 0; i < NODES; i++) {
        CHECK(nodes[i].number == i);
    }
    CHECK(nodes[4].argument == &wrong);
    CHECK(nodes[5].event == (ps_handle)node_of(RECORD));
    for (int i = 0; i < EDGES; i++) {
        CHECK(edges[i].from < edges[i].to);
        CHECK(edges[i].from == 1 || edges[i].to == 5);
        CHECK(edges[i].from_port == (edges[i].from == 3));
        CHECK(edges[i].type == (edges[i].from == 3) && edges[i].to_port == 0);
    }
    check_numbers();
    edge_total = 0;
    OK(gpu->graph_nodes(gpu, 0, 1, nodes, &node_count, edges, &edge_count));
    CHECK(node_count == NODES && edge_count == 0);
    node_total = 0;
    OK(gpu->graph_nodes(gpu, 0, 1, nodes, &node_count, edges, &edge_count));
    CHECK(node_count == 0);
    return report();
}
