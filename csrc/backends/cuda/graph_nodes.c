/* The member graph_nodes.  The driver lists the nodes of a graph in any order.
 * This file sorts them, so that each node comes after the nodes on which it
 * depends.  It also replaces the three nodes of a captured gate by one
 * node. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "graph_gate.h"
#include "table.h"

struct vertex {
    CUgraphNode node;
    /* The number of its incoming edges from nodes that are not sorted yet. */
    size_t waits;
    size_t edges; /* the index of its first outgoing edge */
    size_t index; /* its index among the described nodes */
};

/* A graph's nodes and edges as the driver has them.  In `order` and `edges`, a
 * node is given by its index in `vertices`. */
struct picture {
    struct vertex *vertices; /* sorted by handle */
    size_t *order;
    size_t vertex_count;
    struct ps_graph_edge *edges; /* sorted by their first node */
    size_t edge_count;
};

/* The same as CUgraphEdgeData, which older toolkits do not declare. */
struct edge_data {
    uint8_t from_port;
    uint8_t to_port;
    uint8_t type;
    uint8_t reserved[5];
};

static int
compare_vertices(const void *left, const void *right)
{
    uintptr_t a = (uintptr_t)((const struct vertex *)left)->node;
    uintptr_t b = (uintptr_t)((const struct vertex *)right)->node;

    return (a > b) - (a < b);
}

static int
compare_edges(const void *left, const void *right)
{
    const struct ps_graph_edge *a = left, *b = right;

    return a->from != b->from ? (a->from > b->from) - (a->from < b->from)
                              : (a->to > b->to) - (a->to < b->to);
}

static size_t
find(const struct picture *picture, CUgraphNode node)
{
    const struct vertex wanted = {.node = node};
    const struct vertex *found =
        bsearch(&wanted, picture->vertices, picture->vertex_count,
                sizeof(wanted), compare_vertices);

    return (size_t)(found - picture->vertices);
}

/* Read the nodes.  Sets `order` to the order in which the driver lists
 * them. */
static ps_status
list_vertices(struct picture *picture, CUgraph graph)
{
    size_t count = picture->vertex_count;
    CUgraphNode *nodes = calloc(count + 1, sizeof(CUgraphNode));
    ps_status status = PS_ERROR_OUT_OF_MEMORY;

    if (nodes != NULL) {
        status = (ps_status)cuda_driver.graph_nodes(graph, nodes, &count);
    }
    for (size_t i = 0; status == PS_SUCCESS && i < count; i++) {
        picture->vertices[i].node = nodes[i];
    }
    if (status == PS_SUCCESS) {
        qsort(picture->vertices, count, sizeof(*picture->vertices),
              compare_vertices);
    }
    for (size_t i = 0; status == PS_SUCCESS && i < count; i++) {
        picture->order[i] = find(picture, nodes[i]);
    }
    free(nodes);
    return status;
}

static ps_status
list_edges(struct picture *picture, CUgraph graph)
{
    size_t count = picture->edge_count;
    CUgraphNode *ends = calloc(2 * count + 1, sizeof(CUgraphNode));
    struct edge_data *data = calloc(count + 1, sizeof(*data));
    ps_status status = PS_ERROR_OUT_OF_MEMORY;

    if (ends != NULL && data != NULL) {
        status = (ps_status)cuda_driver.graph_edges(graph, ends, ends + count,
                                                    data, &count);
    }
    for (size_t i = 0; status == PS_SUCCESS && i < count; i++) {
        picture->edges[i] = (struct ps_graph_edge){
            find(picture, ends[i]), find(picture, ends[count + i]),
            data[i].from_port, data[i].to_port, data[i].type};
        picture->vertices[picture->edges[i].to].waits++;
    }
    if (status == PS_SUCCESS) {
        qsort(picture->edges, count, sizeof(*picture->edges), compare_edges);
    }
    for (size_t i = count; status == PS_SUCCESS && i-- > 0;) {
        picture->vertices[picture->edges[i].from].edges = i;
    }
    free(ends);
    free(data);
    return status;
}

/* Sort `order` so that each node comes after its predecessors. */
static void
sort(struct picture *picture)
{
    size_t *order = picture->order;
    size_t ready = 0;

    for (size_t i = 0; i < picture->vertex_count; i++) {
        if (picture->vertices[order[i]].waits == 0) {
            order[ready++] = order[i];
        }
    }
    for (size_t i = 0; i < ready; i++) {
        size_t at = picture->vertices[order[i]].edges;
        for (; at < picture->edge_count && picture->edges[at].from == order[i];
             at++) {
            size_t to = picture->edges[at].to;
            if (--picture->vertices[to].waits == 0) {
                order[ready++] = to;
            }
        }
    }
}

/* Read a graph into *picture.  The graph must not change meanwhile. */
static ps_status
look(struct picture *picture, CUgraph graph)
{
    ps_status status = (ps_status)cuda_driver.graph_nodes(
        graph, NULL, &picture->vertex_count);

    if (status == PS_SUCCESS) {
        status = (ps_status)cuda_driver.graph_edges(graph, NULL, NULL, NULL,
                                                    &picture->edge_count);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    picture->vertices =
        calloc(picture->vertex_count + 1, sizeof(*picture->vertices));
    picture->order =
        calloc(picture->vertex_count + 1, sizeof(*picture->order));
    picture->edges = calloc(picture->edge_count + 1, sizeof(*picture->edges));
    if (picture->vertices == NULL || picture->order == NULL ||
        picture->edges == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    /* If a graph has no edges, do not list them, because the driver would
     * return an error. */
    if (picture->vertex_count > 0) {
        status = list_vertices(picture, graph);
    }
    if (status == PS_SUCCESS && picture->edge_count > 0) {
        status = list_edges(picture, graph);
    }
    if (status == PS_SUCCESS) {
        sort(picture);
    }
    return status;
}

/* ---- Nodes ---- */

/* The value of CU_GRAPH_NODE_TYPE_CONDITIONAL, which older toolkits do not
 * declare. */
enum { CONDITIONAL = 13 };

/* True if the driver has the function and the call succeeds.  An older driver
 * sets only the fields that it knows; the other fields keep their values. */
#define ASK(function, ...)           \
    (cuda_driver.function != NULL && \
     cuda_driver.function(__VA_ARGS__) == CUDA_SUCCESS)

static void
describe_kernel(CUgraphNode node, struct ps_graph_node *found)
{
    CUDA_KERNEL_NODE_PARAMS kernel = {0};

    if (!ASK(node_kernel, node, &kernel)) {
        return;
    }
    if (kernel.func == NULL ||
        !ASK(function_name, &found->name, kernel.func)) {
        (void)(kernel.kern != NULL &&
               ASK(kernel_name, &found->name, kernel.kern));
    }
    const unsigned grid[] = {kernel.gridDimX, kernel.gridDimY,
                             kernel.gridDimZ};
    const unsigned block[] = {kernel.blockDimX, kernel.blockDimY,
                              kernel.blockDimZ};
    memcpy(found->grid, grid, sizeof(grid));
    memcpy(found->block, block, sizeof(block));
    found->shared_nbytes = kernel.sharedMemBytes;
}

static size_t
at_least_one(size_t extent)
{
    return extent > 0 ? extent : 1;
}

static struct ps_graph_node
describe(CUgraphNode node)
{
    struct ps_graph_node found = {.kind = PS_NODE_OTHER};
    CUgraphNodeType type;
    CUDA_MEMCPY3D copy = {0};
    CUDA_MEMSET_NODE_PARAMS fill = {0};
    CUDA_HOST_NODE_PARAMS host = {0};
    CUevent event = NULL;

    if (cuda_driver.node_type(node, &type) != CUDA_SUCCESS) {
        return found;
    }
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        found.kind = PS_NODE_KERNEL;
        describe_kernel(node, &found);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        found.kind = PS_NODE_COPY;
        if (ASK(node_copy, node, &copy)) {
            found.nbytes = copy.WidthInBytes * at_least_one(copy.Height) *
                           at_least_one(copy.Depth);
        }
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        found.kind = PS_NODE_FILL;
        if (ASK(node_fill, node, &fill)) {
            found.nbytes =
                fill.elementSize * fill.width * at_least_one(fill.height);
        }
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        found.kind = PS_NODE_HOST;
        if (ASK(node_host, node, &host)) {
            found.function = (const void *)host.fn;
            found.argument = host.userData;
        }
        break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        found.kind = PS_NODE_RECORD;
        (void)ASK(node_record, node, &event);
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        found.kind = PS_NODE_WAIT;
        (void)ASK(node_wait, node, &event);
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        found.kind = PS_NODE_GRAPH;
        break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        found.kind = PS_NODE_EMPTY;
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        found.name = "mem_alloc";
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        found.name = "mem_free";
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        found.name = "batch_mem_op";
        break;
    case CONDITIONAL:
        found.name = "conditional";
        break;
    default:
        break;
    }
    found.event = (ps_handle)event;
    return found;
}

/* Returns the value of ps_graph_node.number.  CUDA gives the node a number of
 * 64 bits.  Its upper 32 bits only identify the captured graph, so the lower
 * 32 bits are enough.  Drivers before CUDA 13.1 give no numbers.  With such a
 * driver, returns `index`. */
static uint32_t
number_of(CUgraphNode node, size_t index)
{
    unsigned long long number;

    return ASK(node_number, node, &number) ? (uint32_t)number
                                           : (uint32_t)index;
}

/* Describe the nodes.  Of the three nodes of a gate, only the first is
 * described.  It stands for the whole gate, because the gate's nodes run one
 * after another. */
static void
describe_vertices(struct picture *picture, ps_handle graph,
                  struct ps_graph_node *nodes, size_t *node_count)
{
    size_t index = 0;

    for (size_t i = 0; i < picture->vertex_count; i++) {
        struct vertex *vertex = &picture->vertices[picture->order[i]];
        void *argument = NULL;
        CUgraphNode first =
            cuda_gates_first_node(graph, vertex->node, &argument);
        if (first != NULL && first != vertex->node) {
            vertex->index = picture->vertices[find(picture, first)].index;
            continue;
        }
        if (index < *node_count) {
            nodes[index] = describe(vertex->node);
            if (first != NULL) {
                nodes[index] = (struct ps_graph_node){.kind = PS_NODE_GATE,
                                                      .argument = argument};
            }
            nodes[index].number = number_of(vertex->node, index);
        }
        vertex->index = index++;
    }
    *node_count = index;
}

static void
describe_edges(const struct picture *picture, struct ps_graph_edge *edges,
               size_t *edge_count)
{
    size_t index = 0;

    for (size_t i = 0; i < picture->edge_count; i++) {
        struct ps_graph_edge edge = picture->edges[i];
        edge.from = picture->vertices[edge.from].index;
        edge.to = picture->vertices[edge.to].index;
        if (edge.from == edge.to) {
            continue;
        }
        if (index < *edge_count) {
            edges[index] = edge;
        }
        index++;
    }
    *edge_count = index;
}

static void
forget(struct picture *picture)
{
    free(picture->vertices);
    free(picture->order);
    free(picture->edges);
}

static bool
can_look(void)
{
    return cuda_driver.graph_nodes != NULL &&
           cuda_driver.graph_edges != NULL && cuda_driver.node_type != NULL;
}

size_t
cuda_node_index(int device, ps_handle graph, const void *node)
{
    struct picture picture = {0};
    size_t index = SIZE_MAX, none = 0;

    if (node != NULL && can_look() &&
        ON_DEVICE(device, look(&picture, (CUgraph)graph)) == PS_SUCCESS) {
        describe_vertices(&picture, graph, NULL, &none);
        for (size_t i = 0; i < picture.vertex_count; i++) {
            if (picture.vertices[i].node == node) {
                index = picture.vertices[i].index;
            }
        }
    }
    forget(&picture);
    return index;
}

ps_status
cuda_graph_nodes(const struct ps_backend *backend, int device, ps_handle graph,
                 struct ps_graph_node *nodes, size_t *node_count,
                 struct ps_graph_edge *edges, size_t *edge_count)
{
    struct picture picture = {0};

    if (!can_look()) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = ON_DEVICE(device, look(&picture, (CUgraph)graph));
    if (status == PS_SUCCESS) {
        describe_vertices(&picture, graph, nodes, node_count);
        describe_edges(&picture, edges, edge_count);
    }
    forget(&picture);
    return status;
}

ps_status
cuda_executable_number(const struct ps_backend *backend, int device,
                       ps_handle executable, uint64_t *number)
{
    unsigned found;

    if (cuda_driver.executable_number == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = (ps_status)cuda_driver.executable_number(
        (CUgraphExec)executable, &found);
    if (status == PS_SUCCESS) {
        *number = found;
    }
    return status;
}
