// Load on RabbitMQ for bench/peers, on Debian's librabbitmq-dev: one thread and one connection for each client.
//
// Law: it works as the harness's own client does (bench/load.py): it prepares, says "ready", waits for a line, runs through its
// warm-up and then counts what begins in so many seconds; then it prints one line of JSON, and when its input has ended it removes
// its queues.
// Connections go round the given ports.
//
//   rabbitmq_client WORKLOAD PORTS CONNECTIONS SIZE BODY_BYTES RING WARM_SECONDS SECONDS PREFIX
//
// WORKLOAD is one of
//   publish   transactions of SIZE messages, each connection into a queue of its own (tx.select, tx.commit)
//   move      transactions that take SIZE messages from one queue and publish SIZE into another, to and fro
//   stream    durable messages outside transactions, at most SIZE of them unconfirmed
//   consume   SIZE messages of each connection's queue, published before, taken and acknowledged
// RING is the length at which a queue drops its oldest message; 0: none. The queues are quorum queues, messages are persistent.

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PORTS_MAX = 16, PREFETCH = 1000, MOVED = 1000, ACK_EVERY = 100, FILL_WINDOW = 2000 };

typedef struct {
  int number;
  amqp_connection_state_t connection;
  char queue[2][96];
  uint64_t operations, messages;
  uint32_t *latencies;  // microseconds
  size_t latency_count, latency_room;
  double begin, end;  // of what was counted, seconds
  uint64_t published, confirmed;
} Worker;

static const char *workload, *prefix;
static int ports[PORTS_MAX], port_count;
static long size, body_bytes, ring;
static double warm_seconds, seconds;
static double first, last;  // what begins between them counts
static amqp_bytes_t body;
static pthread_barrier_t ready, go;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  fprintf(stderr, "rabbitmq_client: %s\n", what);
  exit(1);
}

static void check(amqp_connection_state_t connection, const char *what) {
  amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
  if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
  if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
    amqp_channel_close_t *close = reply.reply.decoded;
    fprintf(stderr, "%.*s\n", (int)close->reply_text.len, (char *)close->reply_text.bytes);
  }
  fail(what);
}

static void publish(Worker *worker, const char *queue) {
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
  int status = amqp_basic_publish(worker->connection, 1, amqp_empty_bytes, amqp_cstring_bytes(queue), 0, 0, &properties, body);
  if (status != AMQP_STATUS_OK) fail(amqp_error_string2(status));
  worker->published++;
}

static void count(Worker *worker, double start, double end, long messages) {
  if (start < first || start >= last) return;
  worker->operations++;
  worker->messages += messages;
  if (worker->latency_count == worker->latency_room) {
    worker->latency_room = worker->latency_room ? 2 * worker->latency_room : 4096;
    worker->latencies = realloc(worker->latencies, worker->latency_room * sizeof *worker->latencies);
    if (!worker->latencies) fail("no memory");
  }
  worker->latencies[worker->latency_count++] = (uint32_t)((end - start) * 1e6);
}

// Takes confirms off the socket: those that are there, or until at least one has come.
static void hear(Worker *worker, bool is_waiting) {
  uint64_t before = worker->confirmed;
  for (;;) {
    struct timeval none = {0, 0}, long_time = {30, 0};
    amqp_frame_t frame;
    bool must_wait = is_waiting && worker->confirmed == before;
    int status = amqp_simple_wait_frame_noblock(worker->connection, &frame, must_wait ? &long_time : &none);
    if (status == AMQP_STATUS_TIMEOUT) {
      if (must_wait) fail("no confirm within 30 s");
      return;
    }
    if (status != AMQP_STATUS_OK) fail(amqp_error_string2(status));
    if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD) fail("not a confirm");
    amqp_basic_ack_t *ack = frame.payload.method.decoded;
    // Confirms of single messages may come out of order; only their number matters here.
    worker->confirmed = ack->multiple ? (ack->delivery_tag > worker->confirmed ? ack->delivery_tag : worker->confirmed)
                                      : worker->confirmed + 1;
    amqp_maybe_release_buffers(worker->connection);
  }
}

static void fill(Worker *worker, const char *queue, long messages) {
  // On a channel of its own: the first is put into its mode by who works on it.
  amqp_channel_open(worker->connection, 2);
  check(worker->connection, "channel.open");
  amqp_confirm_select(worker->connection, 2);
  check(worker->connection, "confirm.select");
  uint64_t published = worker->published = 0;
  worker->confirmed = 0;
  for (long number = 0; number < messages; number++) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    if (amqp_basic_publish(worker->connection, 2, amqp_empty_bytes, amqp_cstring_bytes(queue), 0, 0, &properties, body)) fail("publish");
    published++;
    if (number % 64 == 0) hear(worker, false);
    while (published - worker->confirmed >= FILL_WINDOW) hear(worker, true);
  }
  while (worker->confirmed < published) hear(worker, true);
  amqp_channel_close(worker->connection, 2, AMQP_REPLY_SUCCESS);
  worker->published = worker->confirmed = 0;
}

static void declare(Worker *worker, const char *queue) {
  amqp_table_entry_t entries[3];
  int entry_count = 0;
  entries[entry_count].key = amqp_cstring_bytes("x-queue-type");
  entries[entry_count].value.kind = AMQP_FIELD_KIND_UTF8;
  entries[entry_count++].value.value.bytes = amqp_cstring_bytes("quorum");
  if (ring) {
    entries[entry_count].key = amqp_cstring_bytes("x-max-length");
    entries[entry_count].value.kind = AMQP_FIELD_KIND_I64;
    entries[entry_count++].value.value.i64 = ring;
  }
  amqp_table_t table = {.num_entries = entry_count, .entries = entries};
  amqp_queue_declare(worker->connection, 1, amqp_cstring_bytes(queue), 0, 1, 0, 0, table);
  check(worker->connection, "queue.declare");
}

static void consume(Worker *worker, const char *queue) {
  amqp_basic_consume(worker->connection, 1, amqp_cstring_bytes(queue), amqp_cstring_bytes(queue), 0, 0, 0, amqp_empty_table);
  check(worker->connection, "basic.consume");
}

static void take(Worker *worker, amqp_envelope_t *envelope) {
  struct timeval long_time = {30, 0};
  amqp_maybe_release_buffers(worker->connection);
  if (amqp_consume_message(worker->connection, envelope, &long_time, 0).reply_type != AMQP_RESPONSE_NORMAL) fail("no message");
}

static void run_publish(Worker *worker) {
  double start;
  while ((start = now()) < last) {
    for (long number = 0; number < size; number++) publish(worker, worker->queue[0]);
    amqp_tx_commit(worker->connection, 1);
    check(worker->connection, "tx.commit");
    amqp_maybe_release_buffers(worker->connection);
    count(worker, start, now(), size);
  }
}

// Messages of both queues arrive as they like; those that come of the other queue meanwhile wait in their count.
static void run_move(Worker *worker) {
  uint64_t *tags[2] = {malloc(sizeof(uint64_t) * (PREFETCH + 1)), malloc(sizeof(uint64_t) * (PREFETCH + 1))};
  long waiting[2] = {0, 0};
  int from = 0;
  while (now() < last) {
    while (waiting[from] < size) {
      amqp_envelope_t envelope;
      take(worker, &envelope);
      int of = envelope.consumer_tag.len == strlen(worker->queue[1]) &&
               memcmp(envelope.consumer_tag.bytes, worker->queue[1], envelope.consumer_tag.len) == 0;
      tags[of][waiting[of]++] = envelope.delivery_tag;
      amqp_destroy_envelope(&envelope);
    }
    double start = now();
    for (long number = 0; number < size; number++) {
      publish(worker, worker->queue[!from]);
      if (amqp_basic_ack(worker->connection, 1, tags[from][number], 0) != AMQP_STATUS_OK) fail("basic.ack");
    }
    waiting[from] -= size;
    memmove(tags[from], tags[from] + size, sizeof(uint64_t) * waiting[from]);
    amqp_tx_commit(worker->connection, 1);
    check(worker->connection, "tx.commit");
    count(worker, start, now(), 2 * size);
    from = !from;
  }
}

// Counts what was confirmed since the last time, and returns how many are counted.
static uint64_t count_confirmed(Worker *worker, const double *sent_at, uint64_t counted) {
  for (double end = counted < worker->confirmed ? now() : 0; counted < worker->confirmed; counted++)
    count(worker, sent_at[counted % size], end, 1);
  return counted;
}

static void run_stream(Worker *worker) {
  double *sent_at = malloc(sizeof(double) * size);
  uint64_t counted = 0;
  double time;
  while ((time = now()) < last) {
    sent_at[worker->published % size] = time;
    publish(worker, worker->queue[0]);
    if (worker->published % 32 == 0) hear(worker, false);
    while (worker->published - worker->confirmed >= (uint64_t)size) hear(worker, true);
    counted = count_confirmed(worker, sent_at, counted);
  }
  while (counted < worker->published) {
    hear(worker, true);
    counted = count_confirmed(worker, sent_at, counted);
  }
}

static void run_consume(Worker *worker) {
  amqp_basic_qos(worker->connection, 1, 0, PREFETCH, 0);
  check(worker->connection, "basic.qos");
  worker->begin = now();
  consume(worker, worker->queue[0]);
  for (long number = 1; number <= size; number++) {
    amqp_envelope_t envelope;
    take(worker, &envelope);
    if (number % ACK_EVERY == 0 || number == size) amqp_basic_ack(worker->connection, 1, envelope.delivery_tag, 1);
    amqp_destroy_envelope(&envelope);
  }
  worker->end = now();
  worker->operations = worker->messages = size;
}

static void connect_to(Worker *worker, int port) {
  worker->connection = amqp_new_connection();
  amqp_socket_t *socket = amqp_tcp_socket_new(worker->connection);
  if (!socket || amqp_socket_open(socket, "127.0.0.1", port)) fail("no connection");
  amqp_rpc_reply_t reply =
      amqp_login(worker->connection, "/", AMQP_DEFAULT_MAX_CHANNELS, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
  if (reply.reply_type != AMQP_RESPONSE_NORMAL) fail("no login");
  amqp_channel_open(worker->connection, 1);
  check(worker->connection, "channel.open");
}

static void prepare(Worker *worker) {
  connect_to(worker, ports[worker->number % port_count]);
  bool is_moving = strcmp(workload, "move") == 0;
  for (int which = 0; which <= is_moving; which++) {
    snprintf(worker->queue[which], sizeof worker->queue[which], "%s-%d-%d", prefix, worker->number, which);
    declare(worker, worker->queue[which]);
    if (is_moving) fill(worker, worker->queue[which], MOVED);
  }
  if (strcmp(workload, "consume") == 0) fill(worker, worker->queue[0], size);
  if (strcmp(workload, "stream") == 0) amqp_confirm_select(worker->connection, 1);
  if (strcmp(workload, "publish") == 0 || is_moving) amqp_tx_select(worker->connection, 1);
  check(worker->connection, "select");
  if (is_moving) {
    amqp_basic_qos(worker->connection, 1, 0, 10 * size, 0);
    check(worker->connection, "basic.qos");
    consume(worker, worker->queue[0]);
    consume(worker, worker->queue[1]);
  }
}

static void *work(void *argument) {
  Worker *worker = argument;
  prepare(worker);
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&go);
  worker->begin = first;
  worker->end = last;
  if (strcmp(workload, "publish") == 0) run_publish(worker);
  else if (strcmp(workload, "move") == 0) run_move(worker);
  else if (strcmp(workload, "stream") == 0) run_stream(worker);
  else run_consume(worker);
  return NULL;
}

static void clean_up(Worker *worker) {
  // A new connection: the old one may have deliveries on their way.
  amqp_destroy_connection(worker->connection);
  connect_to(worker, ports[worker->number % port_count]);
  for (int which = 0; which < 2; which++)
    if (worker->queue[which][0]) amqp_queue_delete(worker->connection, 1, amqp_cstring_bytes(worker->queue[which]), 0, 0);
  amqp_connection_close(worker->connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(worker->connection);
}

static void report(Worker *workers, int connections) {
  uint64_t operations = 0, messages = 0;
  double begin = workers[0].begin, end = workers[0].end;
  for (int number = 0; number < connections; number++) {
    operations += workers[number].operations;
    messages += workers[number].messages;
    if (workers[number].begin < begin) begin = workers[number].begin;
    if (workers[number].end > end) end = workers[number].end;
  }
  printf("{\"operations\": %" PRIu64 ", \"messages\": %" PRIu64 ", \"seconds\": %.6f, \"latencies_us\": [", operations, messages, end - begin);
  const char *separator = "";
  for (int number = 0; number < connections; number++)
    for (size_t which = 0; which < workers[number].latency_count; which++, separator = ",")
      printf("%s%" PRIu32, separator, workers[number].latencies[which]);
  printf("]}\n");
}

int main(int argument_count, char **arguments) {
  if (argument_count != 10) {
    fprintf(stderr, "usage: rabbitmq_client WORKLOAD PORTS CONNECTIONS SIZE BODY_BYTES RING WARM_SECONDS SECONDS PREFIX\n");
    return 2;
  }
  workload = arguments[1];
  for (char *port = strtok(arguments[2], ","); port && port_count < PORTS_MAX; port = strtok(NULL, ","))
    ports[port_count++] = atoi(port);
  int connections = atoi(arguments[3]);
  size = atol(arguments[4]);
  body_bytes = atol(arguments[5]);
  ring = atol(arguments[6]);
  warm_seconds = atof(arguments[7]);
  seconds = atof(arguments[8]);
  prefix = arguments[9];
  body.len = body_bytes;
  body.bytes = calloc(1, body_bytes);
  Worker *workers = calloc(connections, sizeof *workers);
  pthread_t *threads = calloc(connections, sizeof *threads);
  pthread_barrier_init(&ready, NULL, connections + 1);
  pthread_barrier_init(&go, NULL, connections + 1);
  for (int number = 0; number < connections; number++) {
    workers[number].number = number;
    if (pthread_create(&threads[number], NULL, work, &workers[number])) fail("no thread");
  }
  pthread_barrier_wait(&ready);
  printf("ready\n");
  fflush(stdout);
  char line[16];
  if (!fgets(line, sizeof line, stdin)) return 1;
  first = now() + warm_seconds;
  last = first + seconds;
  pthread_barrier_wait(&go);
  for (int number = 0; number < connections; number++) pthread_join(threads[number], NULL);
  report(workers, connections);
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
  }
  for (int number = 0; number < connections; number++) clean_up(&workers[number]);
  return 0;
}
