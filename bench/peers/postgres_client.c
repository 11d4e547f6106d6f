// Load on PostgreSQL for bench/peers, on Debian's libpq-dev: one thread and one connection for each client.
//
// Law: it works as bench/load.py does: it prepares, says "ready", waits for a line, runs through its warm-up and then counts what
// begins in so many seconds; then it prints one line of JSON, and when its input has ended it empties the table.
//
//   postgres_client CONNINFO WORKLOAD CONNECTIONS SIZE BODY_BYTES WARM_SECONDS SECONDS
//
// WORKLOAD is one of
//   publish   transactions of one statement that inserts SIZE rows
//   xa        begin, an insert of SIZE rows, prepare transaction, commit prepared
// The table is bench (client int, body bytea).

#include <inttypes.h>
#include <postgresql/libpq-fe.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATEMENT_BYTES_MAX = 1 << 20 };

typedef struct {
  int number;
  PGconn *connection;
  uint64_t operations;
  uint32_t *latencies;  // microseconds
  size_t latency_room;
} Worker;

static const char *conninfo;
static bool is_two_phase;
static int size, body_bytes;
static double warm_seconds, seconds;
static double first, last;  // what begins between them counts
static const char **values;
static int *lengths, *formats;
static pthread_barrier_t ready, go;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static void check(PGresult *result, PGconn *connection) {
  if (PQresultStatus(result) != PGRES_COMMAND_OK) {
    fprintf(stderr, "postgres_client: %s\n", PQerrorMessage(connection));
    exit(1);
  }
  PQclear(result);
}

static void execute(Worker *worker, const char *statement) { check(PQexec(worker->connection, statement), worker->connection); }

static void insert(Worker *worker) {
  check(PQexecPrepared(worker->connection, "insert_rows", size, values, lengths, formats, 0), worker->connection);
}

static void prepare(Worker *worker) {
  worker->connection = PQconnectdb(conninfo);
  if (PQstatus(worker->connection) != CONNECTION_OK) {
    fprintf(stderr, "postgres_client: %s\n", PQerrorMessage(worker->connection));
    exit(1);
  }
  char *statement = malloc(STATEMENT_BYTES_MAX), *at = statement;
  at += sprintf(at, "insert into bench values ");
  for (int number = 1; number <= size; number++)
    at += sprintf(at, "%s(%d, $%d::bytea)", number > 1 ? "," : "", worker->number, number);
  check(PQprepare(worker->connection, "insert_rows", statement, size, NULL), worker->connection);
  free(statement);
}

static void count(Worker *worker, double start) {
  if (start < first) return;
  if (worker->operations == worker->latency_room) {
    worker->latency_room = worker->latency_room ? 2 * worker->latency_room : 4096;
    worker->latencies = realloc(worker->latencies, worker->latency_room * sizeof *worker->latencies);
  }
  worker->latencies[worker->operations++] = (uint32_t)((now() - start) * 1e6);
}

static void *work(void *argument) {
  Worker *worker = argument;
  char prepare_it[64], commit_it[64];
  sprintf(prepare_it, "prepare transaction 'bench-%d'", worker->number);
  sprintf(commit_it, "commit prepared 'bench-%d'", worker->number);
  prepare(worker);
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&go);
  for (double start; (start = now()) < last; count(worker, start)) {
    if (is_two_phase) execute(worker, "begin");
    insert(worker);
    if (is_two_phase) execute(worker, prepare_it), execute(worker, commit_it);
  }
  return NULL;
}

static void report(const Worker *workers, int connections) {
  uint64_t operations = 0;
  for (int number = 0; number < connections; number++) operations += workers[number].operations;
  printf("{\"operations\": %" PRIu64 ", \"messages\": %" PRIu64 ", \"seconds\": %.6f, \"latencies_us\": [", operations,
         operations * size, seconds);
  const char *separator = "";
  for (int number = 0; number < connections; number++)
    for (uint64_t which = 0; which < workers[number].operations; which++, separator = ",")
      printf("%s%" PRIu32, separator, workers[number].latencies[which]);
  printf("]}\n");
  fflush(stdout);
}

int main(int argument_count, char **arguments) {
  if (argument_count != 8) {
    fprintf(stderr, "usage: postgres_client CONNINFO WORKLOAD CONNECTIONS SIZE BODY_BYTES WARM_SECONDS SECONDS\n");
    return 2;
  }
  conninfo = arguments[1];
  is_two_phase = strcmp(arguments[2], "xa") == 0;
  int connections = atoi(arguments[3]);
  size = atoi(arguments[4]);
  body_bytes = atoi(arguments[5]);
  warm_seconds = atof(arguments[6]);
  seconds = atof(arguments[7]);
  char *body = malloc(body_bytes);
  memset(body, 'x', body_bytes);
  values = calloc(size, sizeof *values);
  lengths = calloc(size, sizeof *lengths);
  formats = calloc(size, sizeof *formats);
  for (int number = 0; number < size; number++) values[number] = body, lengths[number] = body_bytes, formats[number] = 1;
  Worker *workers = calloc(connections, sizeof *workers);
  pthread_t *threads = calloc(connections, sizeof *threads);
  pthread_barrier_init(&ready, NULL, connections + 1);
  pthread_barrier_init(&go, NULL, connections + 1);
  for (int number = 0; number < connections; number++) {
    workers[number].number = number;
    pthread_create(&threads[number], NULL, work, &workers[number]);
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
  while (fgets(line, sizeof line, stdin)) {
  }
  execute(&workers[0], "truncate bench");
  for (int number = 0; number < connections; number++) PQfinish(workers[number].connection);
  return 0;
}
